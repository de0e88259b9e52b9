-- What is not published yet, or failed, the newest first; of one source ($2) if it is named.
SELECT job_id, epoch, source, kind, post, attempts, since, next_at, tried_at, failed_at, error
FROM publication
WHERE published_at IS NULL AND ($2::text IS NULL OR source = $2)
ORDER BY since DESC, job_id
LIMIT $1
