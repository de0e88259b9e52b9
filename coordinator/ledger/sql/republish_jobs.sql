-- These settled jobs ($1) go out again, under another message id (results.py). Locked in id order, as the writer does.
UPDATE job
SET unpublished = true, published_epoch = job.epoch
FROM (
    SELECT id
    FROM job
    WHERE id = ANY ($1::uuid[]) AND finished_at IS NOT NULL AND NOT unpublished
    ORDER BY id
    FOR UPDATE
) AS locked
WHERE job.id = locked.id
RETURNING job.id
