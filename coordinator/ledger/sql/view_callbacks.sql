-- What a job's callback_url was told, and what it is still to be told.
SELECT
    epoch, state, webhook_id, url, octet_length(body) AS size, since, attempts, next_at, tried_at, delivered_at,
    given_up_at, status, error
FROM callback
WHERE job_id = $1
ORDER BY since, epoch
