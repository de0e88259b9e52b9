-- How attempts ended from $1 until before $2, by kind: how many in which way, and how long those took that completed. The
-- kind is that of the consumer in the delivery.
WITH ended AS (
    SELECT
        split_part(split_part(delivery, '.', 4), '--', 1) AS kind,
        outcome,
        extract(epoch FROM ended_at - claimed_at)::float8 AS took_s
    FROM attempt
    WHERE ended_at >= $1 AND ended_at < $2
)
SELECT
    kind,
    count(*) FILTER (WHERE outcome = 'completed') AS completed,
    count(*) FILTER (WHERE outcome = 'failed') AS failed,
    count(*) FILTER (WHERE outcome = 'lease_expired') AS lapsed,
    percentile_cont(0.5) WITHIN GROUP (ORDER BY took_s) FILTER (WHERE outcome = 'completed') AS median_s,
    percentile_cont(0.9) WITHIN GROUP (ORDER BY took_s) FILTER (WHERE outcome = 'completed') AS p90_s
FROM ended
GROUP BY kind
ORDER BY kind
