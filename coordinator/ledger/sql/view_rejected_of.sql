-- The last reports about a job ($1) that were not accepted, newest first, and how long after the end of their attempt they
-- came.
SELECT
    r.epoch, r.worker, r.verdict, r.reason, r.current_epoch, r.at,
    extract(epoch FROM r.at - a.ended_at)::float8 AS late_s
FROM rejected_result AS r
LEFT JOIN attempt AS a ON a.job_id = r.job_id AND a.epoch = r.epoch
WHERE r.job_id = $1
ORDER BY r.at DESC, r.id DESC
LIMIT $2
