-- The last $2 attempts of a worker ($1), newest claim first.
SELECT job_id AS id, claimed_at FROM attempt WHERE worker = $1 ORDER BY claimed_at DESC LIMIT $2
