-- What failed last, newest first, with the attempt that decided it.
SELECT
    j.id, j.key, j.source, j.kind, j.model, j.lane, j.finished_at, j.attempt, j.max_attempts, j.error, a.worker,
    extract(epoch FROM tandem_now() - j.finished_at)::float8 AS age_s
FROM job AS j
LEFT JOIN attempt AS a ON a.job_id = j.id AND a.epoch = j.epoch
WHERE j.state = 'failed'
ORDER BY j.finished_at DESC, j.id
LIMIT $1
