-- A page of the files that are part of results, after the file ($1 job, $2 epoch, $3 name).
SELECT f.job_id, f.epoch, f.name, f.size, f.sha256
FROM artifact AS f
WHERE f.linked AND f.trimmed_at IS NULL AND (f.job_id, f.epoch, f.name) > ($1, $2, $3)
ORDER BY f.job_id, f.epoch, f.name
LIMIT 1000
