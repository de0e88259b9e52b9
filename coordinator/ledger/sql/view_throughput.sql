-- How attempts ended in the last $1 seconds, in buckets of $2 seconds (0 = the oldest), by kind: how many in which way,
-- and how long those took that completed. Read worker by worker: that is the order of the index. The kind is that of the
-- consumer in the delivery.
WITH since AS (SELECT tandem_now() - make_interval(secs => $1) AS at),
ended AS (
    SELECT
        floor(extract(epoch FROM a.ended_at - since.at)::float8 / $2)::int AS bucket,
        split_part(split_part(a.delivery, '.', 4), '--', 1) AS kind,
        a.outcome,
        extract(epoch FROM a.ended_at - a.claimed_at)::float8 AS took_s
    FROM since
    CROSS JOIN worker AS w
    JOIN attempt AS a ON a.worker = w.name AND a.claimed_at > since.at - interval '1 hour' AND a.ended_at > since.at
)
SELECT
    bucket, kind,
    count(*) FILTER (WHERE outcome = 'completed') AS completed,
    count(*) FILTER (WHERE outcome = 'failed') AS failed,
    count(*) FILTER (WHERE outcome = 'lease_expired') AS lapsed,
    percentile_cont(0.5) WITHIN GROUP (ORDER BY took_s) FILTER (WHERE outcome = 'completed') AS median_s,
    percentile_cont(0.9) WITHIN GROUP (ORDER BY took_s) FILTER (WHERE outcome = 'completed') AS p90_s
FROM ended
GROUP BY bucket, kind
ORDER BY bucket, kind
