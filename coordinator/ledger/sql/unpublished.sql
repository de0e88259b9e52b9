-- Settled jobs that RESULTS has not acknowledged, the oldest first, with all that their message says.
SELECT
    job.id, job.epoch, job.kind, job.state, job.key, job.source, job.labels, attempt.worker,
    coalesce(job.result_model, job.model) AS model, job.result, files.artifacts, job.error, job.finished_at,
    job.published_epoch, job.callback_url
FROM job
LEFT JOIN attempt ON attempt.job_id = job.id AND attempt.epoch = job.epoch
CROSS JOIN LATERAL (
    SELECT
        coalesce(
            jsonb_agg(
                jsonb_build_object('name', name, 'media_type', media_type, 'size', size, 'sha256', sha256)
                ORDER BY name
            ),
            '[]'
        ) AS artifacts
    FROM artifact
    WHERE artifact.job_id = job.id AND artifact.epoch = job.result_epoch AND linked
) AS files
WHERE job.unpublished
ORDER BY job.finished_at, job.id
LIMIT $1
