-- Every lane with a job that waits, is offered or is held. The lanes are found by hopping from one to the next in the
-- index; what is due is counted up to $1 a priority.
WITH RECURSIVE waiting_lane (lane) AS (
    (SELECT lane FROM job WHERE state = 'pending' AND offered_at IS NULL ORDER BY lane LIMIT 1)
    UNION ALL
    SELECT (
        SELECT job.lane
        FROM job
        WHERE state = 'pending' AND offered_at IS NULL AND job.lane > waiting_lane.lane
        ORDER BY job.lane
        LIMIT 1
    )
    FROM waiting_lane
    WHERE waiting_lane.lane IS NOT NULL
),
offered AS (
    SELECT lane, count(*) AS jobs FROM job WHERE state = 'pending' AND offered_at IS NOT NULL GROUP BY lane
),
held AS (
    SELECT DISTINCT lane FROM job WHERE state = 'processing'
),
active AS (
    SELECT lane FROM waiting_lane WHERE lane IS NOT NULL
    UNION SELECT lane FROM offered
    UNION SELECT lane FROM held
)
SELECT
    active.lane,
    due.jobs AS waiting,
    coalesce(offered.jobs, 0) AS offered
FROM active
LEFT JOIN offered ON offered.lane = active.lane
CROSS JOIN LATERAL (
    SELECT count(*) AS jobs
    FROM (VALUES (3::smallint), (2::smallint), (1::smallint), (0::smallint)) AS rank (priority)
    CROSS JOIN LATERAL (
        SELECT
        FROM job
        WHERE
            state = 'pending' AND offered_at IS NULL
            AND lane = active.lane AND priority = rank.priority AND run_after <= tandem_now()
        LIMIT $1
    ) AS one
) AS due
ORDER BY active.lane
