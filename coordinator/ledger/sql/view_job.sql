-- One job as an operator asks about it. $2: the one source that the asker may see, NULL = all.
SELECT
    j.id, j.key, j.source, j.kind, j.model, j.models, j.lane, j.state, j.labels, j.spec, j.callback_url,
    j.priority, j.review, j.timeout_s, j.run_after, j.created_at, j.offered_at, j.finished_at,
    first_attempt.claimed_at AS started_at,
    a.claimed_at,
    coalesce(j.worker, a.worker) AS worker,
    a.deadline_at,
    a.ended_at,
    extract(epoch FROM coalesce(a.ended_at, tandem_now()) - a.claimed_at)::float8 AS duration_s,
    extract(epoch FROM coalesce(j.finished_at, tandem_now()) - j.created_at)::float8 AS age_s,
    a.stage, a.progress, a.heartbeats, a.heartbeat_at,
    extract(epoch FROM tandem_now() - a.heartbeat_at)::float8 AS heartbeat_age_s,
    j.lease_expires_at,
    extract(epoch FROM j.lease_expires_at - tandem_now())::float8 AS lease_left_s,
    j.epoch, j.attempt, j.max_attempts, j.lease_losses, j.silences, j.excluded,
    coalesce(j.error, a.error) AS error,
    coalesce(j.error, a.error) ->> 'class' AS error_class,
    coalesce(j.error, a.error) ->> 'message' AS error_text,
    coalesce(j.result_model, a.model) AS used_model,
    a.settings, a.bytes, j.result, j.result_epoch, j.unpublished
FROM job AS j
LEFT JOIN attempt AS a ON a.job_id = j.id AND a.epoch = coalesce(j.result_epoch, j.epoch)
LEFT JOIN LATERAL (
    SELECT f.claimed_at FROM attempt AS f WHERE f.job_id = j.id ORDER BY f.epoch LIMIT 1
) AS first_attempt ON true
WHERE j.id = $1 AND ($2::text IS NULL OR j.source = $2)
