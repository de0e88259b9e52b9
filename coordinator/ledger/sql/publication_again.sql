-- Publish a job's last result again, from its first step on, and keep that a person ($2) said so. Not while it is tried.
WITH last AS (
    SELECT job_id, epoch
    FROM publication
    WHERE job_id = $1
    ORDER BY epoch DESC
    LIMIT 1
), armed AS (
    UPDATE publication AS p
    SET
        since = tandem_now(), next_at = tandem_now(), attempts = 0, published_at = NULL, failed_at = NULL,
        error = NULL, steps = '{}'
    FROM last
    WHERE p.job_id = last.job_id AND p.epoch = last.epoch AND p.next_at IS NULL
    RETURNING p.job_id
)
INSERT INTO operator_action (at, actor, action, job_id, subject)
SELECT tandem_now(), $2, 'publish', job_id, 'job' FROM armed
RETURNING job_id
