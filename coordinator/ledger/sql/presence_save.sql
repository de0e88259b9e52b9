INSERT INTO worker (name, nkey, instance, first_seen_at, seen_at, presence)
VALUES ($1, $2, $3, tandem_now(), tandem_now(), $4)
ON CONFLICT (name) DO UPDATE
SET
    nkey = coalesce(excluded.nkey, worker.nkey),
    instance = excluded.instance,
    first_seen_at = coalesce(worker.first_seen_at, excluded.first_seen_at),
    seen_at = excluded.seen_at,
    presence = excluded.presence
RETURNING name, nkey, instance, first_seen_at, seen_at, presence, wanted, 0::float8 AS age_s
