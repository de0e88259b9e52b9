-- What granted jobs are made from; their rows are locked.
-- charges: what ended the newest attempts among those that are charged to the job now, the oldest first. An operator's
-- retry charges none any more, so that those before it count no longer.
SELECT
    id, kind, model, spec, labels, priority, max_attempts,
    (
        SELECT
            coalesce(
                jsonb_agg(
                    jsonb_build_object(
                        'code', error ->> 'code',
                        'verdict', left(error -> 'detail' ->> 'verdict', 40),
                        'worker', worker
                    )
                    ORDER BY epoch
                ),
                '[]'::jsonb
            )
        FROM (
            SELECT epoch, worker, error
            FROM attempt
            WHERE job_id = job.id AND outcome = 'failed' AND error ->> 'class' = 'transient'
            ORDER BY epoch DESC
            LIMIT least(job.attempt, 20)
        ) AS charged
    ) AS charges
FROM job
WHERE id = ANY ($1::uuid[])
