-- The last reports about a job ($1) that were not accepted, newest first.
SELECT epoch, worker, verdict, reason, current_epoch, at
FROM rejected_result
WHERE job_id = $1
ORDER BY at DESC, id DESC
LIMIT $2
