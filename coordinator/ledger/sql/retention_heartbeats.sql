-- Forget heartbeats older than $1 seconds, up to $2: the ids are in the order of time.
WITH turn AS MATERIALIZED (
    SELECT pg_try_advisory_xact_lock(8097886210632868) AS mine  -- one coordinator trims at a time
)
DELETE FROM heartbeat
WHERE id IN (
    SELECT first.id
    FROM (SELECT id, at FROM heartbeat WHERE (SELECT mine FROM turn) ORDER BY id LIMIT $2) AS first
    WHERE first.at < tandem_now() - make_interval(secs => $1)
)
RETURNING id
