-- Take up to $1 publications that are due, one of a source at most, of the sources $2 that are not paused; nobody else
-- does for $3 seconds. With what they publish, unless the job has been begun anew, or a newer job's result is for the
-- same place.
WITH due AS (
    SELECT job_id, epoch, next_at, row_number() OVER (PARTITION BY source ORDER BY next_at, asked_at, job_id) AS place
    FROM publication
    WHERE
        next_at <= tandem_now() AND source = ANY ($2::text[])
        AND NOT EXISTS (SELECT FROM paused_site AS p WHERE p.source = publication.source)
), taken AS (
    SELECT p.job_id, p.epoch
    FROM publication AS p
    JOIN due USING (job_id, epoch)
    WHERE due.place = 1 AND p.next_at <= tandem_now()
    ORDER BY due.next_at
    LIMIT $1
    FOR UPDATE OF p SKIP LOCKED
), begun AS (
    UPDATE publication AS p
    SET attempts = p.attempts + 1, tried_at = tandem_now(), next_at = tandem_now() + make_interval(secs => $3)
    FROM taken
    WHERE p.job_id = taken.job_id AND p.epoch = taken.epoch
    RETURNING p.*
)
SELECT
    b.job_id, b.epoch, b.source, b.kind, b.post, b.attempts, b.steps,
    extract(epoch FROM tandem_now() - b.since)::float8 AS age_s,
    job.id IS NULL OR EXISTS (
        SELECT
        FROM publication AS newer
        WHERE
            newer.source = b.source AND newer.post = b.post AND newer.kind = b.kind
            AND (newer.asked_at, newer.job_id, newer.epoch) > (b.asked_at, b.job_id, b.epoch)
    ) AS superseded,
    job.result,
    coalesce(
        (
            SELECT
                jsonb_agg(
                    jsonb_build_object('name', name, 'media_type', media_type, 'size', size, 'sha256', sha256)
                    ORDER BY name
                )
            FROM artifact
            WHERE artifact.job_id = b.job_id AND artifact.epoch = b.epoch AND linked
        ),
        '[]'
    ) AS artifacts
FROM begun AS b
LEFT JOIN job ON job.id = b.job_id AND job.state = 'completed' AND job.result_epoch = b.epoch
