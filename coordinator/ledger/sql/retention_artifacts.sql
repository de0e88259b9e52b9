-- Keep the content of files no longer whose job was settled more than $1 seconds ago, up to $2; the sweeper removes it.
-- The file stays on record as part of its result.
WITH turn AS MATERIALIZED (
    SELECT pg_try_advisory_xact_lock(8097886210632868) AS mine  -- one coordinator trims at a time
), old AS MATERIALIZED (
    SELECT f.job_id, f.epoch, f.name
    FROM artifact AS f
    JOIN job AS j ON j.id = f.job_id
    WHERE
        (SELECT mine FROM turn)
        AND f.linked AND f.trimmed_at IS NULL
        AND f.stored_at < tandem_now() - make_interval(secs => $1)
        AND j.finished_at < tandem_now() - make_interval(secs => $1)
        AND j.state <> 'awaiting_review' AND NOT j.unpublished
        AND NOT EXISTS (SELECT FROM publication AS p WHERE p.job_id = j.id AND p.next_at IS NOT NULL)
    ORDER BY f.stored_at
    LIMIT $2
    FOR UPDATE OF f SKIP LOCKED
)
UPDATE artifact AS f
SET trimmed_at = tandem_now()
FROM old
WHERE f.job_id = old.job_id AND f.epoch = old.epoch AND f.name = old.name
RETURNING f.name
