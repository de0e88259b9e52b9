-- What granted jobs are made from; their rows are locked.
-- unexplained: of the attempts that are charged to the job now, how many ended by an error that the agent's table does not
-- know. An operator's retry charges none any more, so that those before it count no longer.
SELECT
    id, kind, model, spec, labels, priority, max_attempts,
    (
        SELECT count(*)
        FROM (
            SELECT error
            FROM attempt
            WHERE job_id = job.id AND outcome = 'failed' AND error ->> 'class' = 'transient'
            ORDER BY epoch DESC
            LIMIT job.attempt
        ) AS charged
        WHERE error -> 'detail' ->> 'verdict' = 'unknown'
    ) AS unexplained
FROM job
WHERE id = ANY ($1::uuid[])
