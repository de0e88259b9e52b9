-- Contents $1 are not being removed any more; as far as $2 announced it.
DELETE FROM artifact
WHERE
    job_id = '00000000-0000-0000-0000-000000000000' AND epoch = 0 AND name = ANY ($1::text[])
    AND worker = $2
