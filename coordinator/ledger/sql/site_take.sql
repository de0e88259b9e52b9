-- Take the paused sites of the sources $1 that are to be checked; nobody else does for $2 seconds.
UPDATE paused_site
SET check_at = tandem_now() + make_interval(secs => $2)
WHERE source = ANY ($1::text[]) AND check_at <= tandem_now()
RETURNING source
