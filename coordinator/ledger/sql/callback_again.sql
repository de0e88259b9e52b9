-- Send a job's last callback again, from the first pause on, and keep that a person ($2) said so. Not one whose body is
-- not kept any more (retention_callbacks.sql).
WITH last AS (
    SELECT job_id, epoch, state
    FROM callback
    WHERE job_id = $1
    ORDER BY since DESC, epoch DESC
    LIMIT 1
), armed AS (
    UPDATE callback AS c
    SET
        since = tandem_now(), next_at = tandem_now(), attempts = 0, delivered_at = NULL, given_up_at = NULL,
        status = NULL, error = NULL
    FROM last
    WHERE c.job_id = last.job_id AND c.epoch = last.epoch AND c.state = last.state AND octet_length(c.body) > 0
    RETURNING c.job_id
)
INSERT INTO operator_action (at, actor, action, job_id, subject)
SELECT tandem_now(), $2, 'callback', job_id, 'job' FROM armed
RETURNING job_id
