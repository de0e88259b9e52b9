-- Whether the content $1 is being removed from the store.
SELECT EXISTS (
    SELECT FROM artifact
    WHERE job_id = '00000000-0000-0000-0000-000000000000' AND epoch = 0 AND name = $1
) AS doomed
