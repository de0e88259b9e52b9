SELECT
    epoch, number, worker, instance, claimed_at, deadline_at, ended_at,
    extract(epoch FROM coalesce(ended_at, tandem_now()) - claimed_at)::float8 AS duration_s,
    outcome, error, stage, progress, heartbeats, heartbeat_at, elapsed_s, model, settings, stages, bytes
FROM attempt
WHERE job_id = $1
ORDER BY epoch
