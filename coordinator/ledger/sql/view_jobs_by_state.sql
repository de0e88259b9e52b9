-- As view_jobs.sql, of one state ($8): a statement of its own, since a plan made for both would walk all jobs.
SELECT
    j.id, j.key, j.source, j.kind, j.model, j.lane, j.state, j.labels, j.priority, j.run_after, j.created_at,
    j.offered_at, j.finished_at,
    coalesce(j.worker, a.worker) AS worker,
    a.claimed_at, a.stage, a.progress, a.heartbeat_at,
    extract(epoch FROM coalesce(a.ended_at, tandem_now()) - a.claimed_at)::float8 AS duration_s,
    extract(epoch FROM j.lease_expires_at - tandem_now())::float8 AS lease_left_s,
    j.epoch, j.attempt, j.max_attempts, j.lease_losses, j.silences, j.error
FROM job AS j
LEFT JOIN attempt AS a ON a.job_id = j.id AND a.epoch = coalesce(j.result_epoch, j.epoch)
WHERE
    j.created_at <= $1
    AND (j.created_at < $1 OR j.id > $2)
    AND ($4::text IS NULL OR j.source = $4)
    AND ($5::text IS NULL OR j.kind = $5)
    AND ($6::text IS NULL OR j.worker = $6 OR EXISTS (
        SELECT FROM attempt AS was WHERE was.job_id = j.id AND was.worker = $6
    ))
    AND ($7::text IS NULL OR j.labels @> $7::text::jsonb)
    AND j.state = $8
ORDER BY j.created_at DESC, j.id
LIMIT $3
