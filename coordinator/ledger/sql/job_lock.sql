-- Lock the jobs of a batch and say what time it is. In id order, so that two coordinators never wait for each other.
-- The attempts are read by a statement of their own (attempt_of.sql): joined here, they would be as old as this
-- statement's snapshot whenever the lock had to wait, beside a job that is newer.
WITH locked AS MATERIALIZED (
    SELECT
        id, source, kind, model, lane, state, content_sha256, max_attempts, timeout_s, review, run_after, created_at,
        epoch, attempt, lease_losses, silences, excluded, offered_at, offered_seq, spent_seq, worker,
        lease_expires_at, finished_at, error, models, priority
    FROM job
    WHERE id = ANY ($1::uuid[])
    ORDER BY id
    FOR UPDATE
)
SELECT
    tandem_now() AS now, coalesce((SELECT max(restored.epoch_floor) FROM restored), 0) AS epoch_floor, locked.*
FROM (VALUES (1)) AS one (n)
LEFT JOIN locked ON true
