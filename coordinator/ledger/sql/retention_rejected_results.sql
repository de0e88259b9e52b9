-- Forget what was refused more than $1 seconds ago, up to $2, the oldest first.
WITH turn AS MATERIALIZED (
    SELECT pg_try_advisory_xact_lock(8097886210632868) AS mine  -- one coordinator trims at a time
)
DELETE FROM rejected_result
WHERE id IN (
    SELECT id
    FROM rejected_result
    WHERE (SELECT mine FROM turn) AND at < tandem_now() - make_interval(secs => $1)
    ORDER BY at, id DESC
    LIMIT $2
)
RETURNING id
