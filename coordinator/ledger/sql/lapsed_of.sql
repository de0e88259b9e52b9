-- Which of these jobs ($2) lapsed in a worker's ($1) hands and were not taken since.
SELECT j.id, j.epoch
FROM job AS j
JOIN attempt AS a ON a.job_id = j.id AND a.epoch = j.epoch
WHERE j.id = ANY ($2::uuid[]) AND j.state = 'pending' AND a.worker = $1 AND a.outcome = 'lease_expired'
ORDER BY j.id
