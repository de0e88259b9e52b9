-- The attempts of the current epochs of jobs that are locked.
SELECT
    attempt.job_id, attempt.epoch, number, worker, instance, delivery, claimed_at, deadline_at, outcome, ended_at,
    error, result_sha256, stage, progress, heartbeats, heartbeat_at
FROM unnest($1::uuid[], $2::integer[]) AS wanted (job_id, epoch)
JOIN attempt ON attempt.job_id = wanted.job_id AND attempt.epoch = wanted.epoch
