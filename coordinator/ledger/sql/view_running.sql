-- What runs where, oldest claim first.
SELECT
    j.id, j.key, j.source, j.kind, j.model, j.worker, j.epoch, j.lane, j.attempt, j.max_attempts,
    a.claimed_at, a.stage, a.progress, a.heartbeat_at,
    extract(epoch FROM tandem_now() - a.claimed_at)::float8 AS since_s,
    extract(epoch FROM tandem_now() - a.heartbeat_at)::float8 AS heartbeat_age_s,
    extract(epoch FROM j.lease_expires_at - tandem_now())::float8 AS lease_left_s
FROM job AS j
JOIN attempt AS a ON a.job_id = j.id AND a.epoch = j.epoch
WHERE j.state = 'processing'
ORDER BY a.claimed_at, j.id
LIMIT $1
