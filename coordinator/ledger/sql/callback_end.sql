-- Note how a try ($4 of this callback) ended: delivered, or tried again in $7 seconds, or given up. Not if a later one began.
UPDATE callback
SET
    status = $5, error = $6,
    delivered_at = CASE WHEN $6::text IS NULL THEN tandem_now() END,
    next_at = CASE WHEN $6::text IS NOT NULL THEN tandem_now() + make_interval(secs => $7::float8) END,
    given_up_at = CASE WHEN $6::text IS NOT NULL AND $7::float8 IS NULL THEN tandem_now() END
WHERE job_id = $1 AND epoch = $2 AND state = $3 AND attempts = $4 AND next_at IS NOT NULL
