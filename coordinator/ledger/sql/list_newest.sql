-- The places of the $3 newest jobs after the job ($1 created_at, $2 id).
SELECT created_at, id
FROM job
WHERE created_at <= $1 AND (created_at < $1 OR id > $2)
ORDER BY created_at DESC, id
LIMIT $3
