-- Every lane that has ever had a job, with what is in it now.
SELECT
    l.name, l.paused,
    coalesce(waiting.jobs, 0) AS waiting,
    coalesce(waiting.due, 0) AS due,
    coalesce(offered.jobs, 0) AS offered,
    coalesce(processing.jobs, 0) AS processing,
    extract(epoch FROM tandem_now() - least(waiting.due_since, offered.due_since))::float8 AS waits_s,
    extract(epoch FROM waiting.next_due_at - tandem_now())::float8 AS due_in_s
FROM lane AS l
LEFT JOIN (
    SELECT
        lane, count(*) AS jobs,
        count(*) FILTER (WHERE run_after <= tandem_now()) AS due,
        min(run_after) FILTER (WHERE run_after <= tandem_now()) AS due_since,
        min(run_after) FILTER (WHERE run_after > tandem_now()) AS next_due_at
    FROM job WHERE state = 'pending' AND offered_at IS NULL GROUP BY lane
) AS waiting ON waiting.lane = l.name
LEFT JOIN (
    SELECT lane, count(*) AS jobs, min(run_after) AS due_since
    FROM job WHERE state = 'pending' AND offered_at IS NOT NULL GROUP BY lane
) AS offered ON offered.lane = l.name
LEFT JOIN (
    SELECT lane, count(*) AS jobs FROM job WHERE state = 'processing' GROUP BY lane
) AS processing ON processing.lane = l.name
ORDER BY l.name
