-- RESULTS has these; unless the job has moved on since it was read. Locked in id order, as the writer does.
-- In the same step their callbacks begin, once for each epoch and state, also when a result goes out again; and, for the
-- sources $6, what was completed begins to be published.
WITH locked AS (
    SELECT
        job.id, job.epoch, job.state, job.source, job.callback_url, sent.host, sent.body,
        job.kind, job.labels, job.created_at, job.review, job.published_epoch
    FROM unnest($1::uuid[], $2::integer[], $3::text[], $4::text[], $5::bytea[]) AS sent (id, epoch, state, host, body)
    JOIN job ON job.id = sent.id AND job.epoch = sent.epoch AND job.state = sent.state
    WHERE job.unpublished
    ORDER BY job.id
    FOR UPDATE OF job
), marked AS (
    UPDATE job SET unpublished = false, published_epoch = job.epoch FROM locked WHERE job.id = locked.id
), publishing AS (
    INSERT INTO publication (job_id, epoch, source, kind, post, asked_at, since, next_at)
    SELECT id, epoch, source, kind, labels ->> 'wordpress_post', created_at, tandem_now(), tandem_now()
    FROM locked
    WHERE
        state = 'completed' AND source = ANY ($6::text[])
        AND (review OR published_epoch IS DISTINCT FROM epoch)  -- not what was out before its source published
    ON CONFLICT DO NOTHING
)
INSERT INTO callback (job_id, epoch, state, webhook_id, source, url, host, body, since, next_at)
SELECT
    id, epoch, state,
    id || ':' || epoch || CASE
        WHEN EXISTS (SELECT FROM callback AS c WHERE c.job_id = locked.id AND c.epoch = locked.epoch) THEN ':' || state
        ELSE ''
    END,
    source, callback_url, host, body, tandem_now(), tandem_now()
FROM locked
WHERE callback_url IS NOT NULL
ON CONFLICT DO NOTHING
