-- Keep a presence, unless it is of a process that a newer one has replaced: then no row comes back.
INSERT INTO worker (name, nkey, instance, first_seen_at, seen_at, presence)
VALUES ($1, $2, $3, tandem_now(), tandem_now(), $4)
ON CONFLICT (name) DO UPDATE
SET
    nkey = coalesce(excluded.nkey, worker.nkey),
    instance = excluded.instance,
    -- The newest are enough: a process that was replaced so often does not come back.
    retired = CASE
        WHEN worker.instance IS NULL OR worker.instance = excluded.instance THEN worker.retired
        ELSE (array_prepend(worker.instance, worker.retired))[:20]
    END,
    first_seen_at = coalesce(worker.first_seen_at, excluded.first_seen_at),
    seen_at = excluded.seen_at,
    presence = excluded.presence
WHERE excluded.instance <> ALL (worker.retired)
RETURNING name, nkey, instance, retired, first_seen_at, seen_at, presence, wanted, rules, 0::float8 AS age_s
