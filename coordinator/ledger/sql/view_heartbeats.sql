SELECT epoch, worker, at, stage, elapsed_s, progress, detail
FROM heartbeat
WHERE job_id = $1
ORDER BY at DESC, id DESC
LIMIT $2
