-- Forget up to $2 jobs that were settled more than $1 seconds ago, the oldest first, with all that belongs to them; not
-- what still has to go out. Rows that others hold are passed over, so that nobody waits for this, nor this for anybody.
WITH turn AS MATERIALIZED (
    SELECT pg_try_advisory_xact_lock(8097886210632868) AS mine  -- one coordinator trims at a time
), old AS MATERIALIZED (
    SELECT j.id
    FROM job AS j
    WHERE
        (SELECT mine FROM turn)
        AND j.finished_at IS NOT NULL AND j.state <> 'awaiting_review' AND NOT j.unpublished
        AND j.finished_at < tandem_now() - make_interval(secs => $1)
        AND NOT EXISTS (SELECT FROM callback AS c WHERE c.job_id = j.id AND c.next_at IS NOT NULL)
        AND NOT EXISTS (SELECT FROM publication AS p WHERE p.job_id = j.id AND p.next_at IS NOT NULL)
    ORDER BY j.finished_at, j.id
    LIMIT $2
    FOR UPDATE OF j SKIP LOCKED
), attempts AS (
    DELETE FROM attempt USING old WHERE attempt.job_id = old.id
), beats AS (
    DELETE FROM heartbeat USING old WHERE heartbeat.job_id = old.id
), files AS (
    DELETE FROM artifact USING old WHERE artifact.job_id = old.id
), refused AS (
    DELETE FROM rejected_result USING old WHERE rejected_result.job_id = old.id
), told AS (
    DELETE FROM callback USING old WHERE callback.job_id = old.id
), published AS (
    DELETE FROM publication USING old WHERE publication.job_id = old.id
)
DELETE FROM job USING old WHERE job.id = old.id
RETURNING job.id
