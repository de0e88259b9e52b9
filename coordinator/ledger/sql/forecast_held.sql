-- What these workers ($1) hold, at most $2: how far each is.
SELECT j.lane, j.worker, a.claimed_at, a.stage, a.progress, a.heartbeat_at
FROM job AS j
JOIN attempt AS a ON a.job_id = j.id AND a.epoch = j.epoch
WHERE j.state = 'processing' AND j.worker = ANY($1::text[])
LIMIT $2
