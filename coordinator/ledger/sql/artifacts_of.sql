SELECT name, worker, media_type, size, sha256, stored_at, linked
FROM artifact
WHERE job_id = $1 AND epoch = $2
ORDER BY name
