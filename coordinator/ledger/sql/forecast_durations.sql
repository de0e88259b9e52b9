-- How long the last results of each lane took: at most $2 a lane, of at most $1 lanes. The lanes are found by hopping
-- from one to the next in the index. An attempt of very many stages is told without them. LIMIT 1, so that attempts are
-- looked up by their key also in a plan that does not know $1 and $2.
WITH RECURSIVE done_lane (lane) AS (
    (SELECT lane FROM job WHERE result_epoch IS NOT NULL ORDER BY lane LIMIT 1)
    UNION ALL
    SELECT (
        SELECT job.lane
        FROM job
        WHERE result_epoch IS NOT NULL AND job.lane > done_lane.lane
        ORDER BY job.lane
        LIMIT 1
    )
    FROM done_lane
    WHERE done_lane.lane IS NOT NULL
)
SELECT
    done.lane,
    a.worker,
    extract(epoch FROM a.ended_at - a.claimed_at)::float8 AS took_s,
    a.elapsed_s,
    CASE WHEN jsonb_array_length(a.stages) <= 20 THEN a.stages END AS stages
FROM (SELECT lane FROM done_lane WHERE lane IS NOT NULL LIMIT $1) AS done
CROSS JOIN LATERAL (
    SELECT id, result_epoch
    FROM job
    WHERE result_epoch IS NOT NULL AND lane = done.lane
    ORDER BY finished_at DESC
    LIMIT $2
) AS newest
CROSS JOIN LATERAL (
    SELECT worker, claimed_at, ended_at, elapsed_s, stages
    FROM attempt
    WHERE job_id = newest.id AND epoch = newest.result_epoch
    LIMIT 1
) AS a
WHERE a.ended_at >= a.claimed_at
