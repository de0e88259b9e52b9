-- Note how a try ($3) of this publication ended: published, or tried again in $5 seconds, or failed. Not if a later began.
UPDATE publication
SET
    error = $4,
    published_at = CASE WHEN $4::text IS NULL THEN tandem_now() END,
    next_at = CASE WHEN $4::text IS NOT NULL THEN tandem_now() + make_interval(secs => $5::float8) END,
    failed_at = CASE WHEN $4::text IS NOT NULL AND $5::float8 IS NULL THEN tandem_now() END
WHERE job_id = $1 AND epoch = $2 AND attempts = $3 AND next_at IS NOT NULL
