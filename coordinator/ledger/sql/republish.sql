-- RESULTS was lost: what it would still hold goes out again, $3 jobs at a time from beyond $2 on.
WITH lost AS (
    SELECT id
    FROM job
    WHERE
        state IN ('completed', 'failed', 'canceled', 'awaiting_review')
        AND finished_at > tandem_now() - make_interval(secs => $1)
        AND id > coalesce($2::uuid, '00000000-0000-0000-0000-000000000000')
    ORDER BY id
    LIMIT $3
    FOR UPDATE
)
UPDATE job SET unpublished = true FROM lost WHERE job.id = lost.id
RETURNING job.id
