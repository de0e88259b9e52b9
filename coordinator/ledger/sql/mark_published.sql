-- RESULTS has these; unless the job has moved on since it was read. Locked in id order, as the writer does.
UPDATE job
SET unpublished = false, published_epoch = job.epoch
FROM (
    SELECT job.id
    FROM unnest($1::uuid[], $2::integer[], $3::text[]) AS sent (id, epoch, state)
    JOIN job ON job.id = sent.id AND job.epoch = sent.epoch AND job.state = sent.state
    WHERE job.unpublished
    ORDER BY job.id
    FOR UPDATE OF job
) AS locked
WHERE job.id = locked.id
