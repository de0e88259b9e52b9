-- Forget files that can't become part of a result any more, stored more than $1 s ago, up to $2; return their contents.
-- Those are the files that no accepted report named, of epochs that may bring none (as in upload_allowed.sql): once
-- such an epoch is over it stays so. Rows that a report's writer holds are left for the next round, so that neither
-- waits for the other.
WITH dead AS (
    SELECT f.job_id, f.epoch, f.name
    FROM artifact AS f
    LEFT JOIN job AS j ON j.id = f.job_id AND j.epoch = f.epoch
    LEFT JOIN attempt AS a ON a.job_id = j.id AND a.epoch = j.epoch
    WHERE
        NOT f.linked
        AND f.stored_at < tandem_now() - make_interval(secs => $1)
        AND f.job_id <> '00000000-0000-0000-0000-000000000000' -- these are no files (artifact_doom.sql)
        AND NOT coalesce(j.state = 'processing' OR (j.state = 'pending' AND a.outcome = 'lease_expired'), false)
    ORDER BY f.stored_at
    LIMIT $2
    FOR UPDATE OF f SKIP LOCKED
)
DELETE FROM artifact AS f
USING dead
WHERE f.job_id = dead.job_id AND f.epoch = dead.epoch AND f.name = dead.name
RETURNING f.sha256
