-- A file whose content is not in the store after all.
DELETE FROM artifact
WHERE job_id = $1 AND epoch = $2 AND name = $3 AND sha256 = $4 AND NOT linked
