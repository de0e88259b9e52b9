-- For each worker and lane (by its consumer's name): how many of its last attempts in a row failed in a way that may be
-- the machine's, if $3 or more did. Looked at are each worker's last $2 attempts of the last $1 seconds, since an
-- operator let it back; what says nothing of the machine (released, canceled, asleep, the job's own fault, a job that is
-- not tried again where it met what nobody knows) is passed over. $4: error codes of answers without content; `empty`: the last $3 were such. `others`: another worker succeeded
-- there less than $5 seconds before the last failure, or later.
WITH ended AS (
    SELECT w.name AS worker, a.*
    FROM worker AS w
    CROSS JOIN LATERAL (
        SELECT split_part(delivery, '.', 4) AS consumer, claimed_at, ended_at, outcome, error
        FROM attempt
        WHERE
            worker = w.name
            AND claimed_at > greatest(tandem_now() - make_interval(secs => $1), w.resumed_at)
            AND ended_at <= tandem_now()
            AND (
                outcome = 'completed'
                OR (outcome = 'failed' AND error ->> 'class' = 'transient')
                OR (
                    outcome = 'failed' AND error ->> 'class' = 'elsewhere'
                    AND error -> 'detail' ->> 'verdict' IS DISTINCT FROM 'unknown'
                )
                OR (outcome = 'lease_expired' AND error ->> 'code' IN ('worker_lost', 'worker_restarted'))
            )
        ORDER BY claimed_at DESC
        LIMIT $2
    ) AS a
),
ranked AS (
    SELECT
        *,
        count(*) FILTER (WHERE outcome = 'completed') OVER newest_first AS completed_since,
        row_number() OVER newest_first AS place
    FROM ended
    WINDOW newest_first AS (PARTITION BY worker, consumer ORDER BY ended_at DESC)
),
streak AS (
    SELECT
        worker, consumer,
        count(*) AS failures,
        max(ended_at) AS failed_at,
        bool_and(error ->> 'code' = ANY ($4::text[])) FILTER (WHERE place <= $3) AS empty,
        (array_agg(error ORDER BY ended_at DESC))[1] AS error
    FROM ranked
    WHERE completed_since = 0
    GROUP BY worker, consumer
    HAVING count(*) >= $3
)
SELECT
    worker, consumer, failures, empty,
    error ->> 'code' AS code,
    left(error ->> 'message', 300) AS message,
    extract(epoch FROM tandem_now() - failed_at)::float8 AS age_s,
    EXISTS (
        SELECT FROM ended AS other
        WHERE
            other.consumer = streak.consumer AND other.worker <> streak.worker AND other.outcome = 'completed'
            AND other.ended_at > streak.failed_at - make_interval(secs => $5)
    ) AS others
FROM streak
ORDER BY worker, consumer
