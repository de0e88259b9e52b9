-- Callbacks that were given up, the newest first; of one source ($2) if it is named.
SELECT job_id, epoch, state, source, url, attempts, since, tried_at, given_up_at, status, error
FROM callback
WHERE given_up_at IS NOT NULL AND ($2::text IS NULL OR source = $2)
ORDER BY given_up_at DESC, job_id
LIMIT $1
