-- The last reports that were not accepted, and how long after the end of their attempt they came. $1: the one source that
-- the asker may see, NULL = all.
SELECT
    r.id, r.job_id, r.epoch, r.worker, r.verdict, r.reason, r.current_epoch, r.at,
    r.report ->> 'outcome' AS outcome, r.report -> 'error' AS error,
    extract(epoch FROM r.at - a.ended_at)::float8 AS late_s
FROM rejected_result AS r
LEFT JOIN attempt AS a ON a.job_id = r.job_id AND a.epoch = r.epoch
WHERE $1::text IS NULL OR EXISTS (SELECT FROM job AS j WHERE j.id = r.job_id AND j.source = $1)
ORDER BY r.at DESC, r.id
LIMIT $2
