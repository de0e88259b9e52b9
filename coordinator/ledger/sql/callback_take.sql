-- Take up to $1 callbacks that are due, at most $2 of a host and none of the hosts $3; nobody else does for $4 seconds.
WITH due AS (
    SELECT job_id, epoch, state, next_at, row_number() OVER (PARTITION BY host ORDER BY next_at) AS place
    FROM callback
    WHERE next_at <= tandem_now() AND host <> ALL ($3::text[])
), taken AS (
    SELECT c.job_id, c.epoch, c.state
    FROM callback AS c
    JOIN due USING (job_id, epoch, state)
    WHERE due.place <= $2 AND c.next_at <= tandem_now()
    ORDER BY due.next_at
    LIMIT $1
    FOR UPDATE OF c SKIP LOCKED
)
UPDATE callback AS c
SET attempts = c.attempts + 1, tried_at = tandem_now(), next_at = tandem_now() + make_interval(secs => $4)
FROM taken
WHERE c.job_id = taken.job_id AND c.epoch = taken.epoch AND c.state = taken.state
RETURNING
    c.job_id, c.epoch, c.state, c.webhook_id, c.source, c.url, c.host, c.body, c.attempts,
    extract(epoch FROM tandem_now() - c.since)::float8 AS age_s
