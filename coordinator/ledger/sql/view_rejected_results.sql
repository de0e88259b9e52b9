-- The last reports that were not accepted. $1: the one source that the asker may see, NULL = all.
SELECT
    r.id, r.job_id, r.epoch, r.worker, r.verdict, r.reason, r.current_epoch, r.at,
    r.report ->> 'outcome' AS outcome, r.report -> 'error' AS error
FROM rejected_result AS r
WHERE $1::text IS NULL OR EXISTS (SELECT FROM job AS j WHERE j.id = r.job_id AND j.source = $1)
ORDER BY r.at DESC, r.id
LIMIT $2
