-- How a job's results are published; every epoch that was.
SELECT epoch, post, since, attempts, next_at, tried_at, published_at, failed_at, error, steps
FROM publication
WHERE job_id = $1
ORDER BY epoch
