SELECT EXISTS (
    SELECT FROM artifact WHERE job_id = $1 AND epoch = $2 AND name = $3 AND linked AND trimmed_at IS NULL
) AS linked
