-- Publish nothing of a source ($1), for this reason ($2), until a check; the next one is in $3 seconds. Says if that is new.
INSERT INTO paused_site (source, reason, since, check_at)
VALUES ($1, $2, tandem_now(), tandem_now() + make_interval(secs => $3))
ON CONFLICT (source) DO UPDATE SET reason = excluded.reason WHERE paused_site.reason <> excluded.reason
RETURNING source
