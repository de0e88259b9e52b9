-- Keep no longer what callbacks said that were delivered or given up more than $1 seconds ago, up to $2.
WITH turn AS MATERIALIZED (
    SELECT pg_try_advisory_xact_lock(8097886210632868) AS mine  -- one coordinator trims at a time
), old AS MATERIALIZED (
    SELECT job_id, epoch, state
    FROM callback
    WHERE
        (SELECT mine FROM turn)
        AND next_at IS NULL AND octet_length(body) > 0
        AND coalesce(delivered_at, given_up_at) < tandem_now() - make_interval(secs => $1)
    ORDER BY coalesce(delivered_at, given_up_at)
    LIMIT $2
    FOR UPDATE SKIP LOCKED
)
UPDATE callback AS c
SET body = ''
FROM old
WHERE c.job_id = old.job_id AND c.epoch = old.epoch AND c.state = old.state
RETURNING c.job_id
