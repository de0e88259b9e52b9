-- How many jobs are in each lane and state; of those that wait, since when the oldest one is due (offered or not).
-- Index-only but for the few that are offered.
WITH oldest AS (
    SELECT lane, min(due_since) AS due_since
    FROM (
        SELECT lane, min(run_after) AS due_since
        FROM job WHERE state = 'pending' AND offered_at IS NULL AND run_after <= tandem_now() GROUP BY lane
        UNION ALL
        SELECT lane, min(run_after) FROM job WHERE state = 'pending' AND offered_at IS NOT NULL GROUP BY lane
    ) AS both_kinds
    GROUP BY lane
)
SELECT
    counted.lane, counted.state, counted.jobs,
    coalesce(l.paused, false) AS paused,
    extract(epoch FROM tandem_now() - oldest.due_since)::float8 AS age_s
FROM (SELECT lane, state, count(*) AS jobs FROM job GROUP BY lane, state) AS counted
LEFT JOIN lane AS l ON l.name = counted.lane
LEFT JOIN oldest ON oldest.lane = counted.lane AND counted.state = 'pending'
ORDER BY counted.state IN ('pending', 'processing', 'awaiting_review') DESC, counted.jobs DESC, counted.lane
