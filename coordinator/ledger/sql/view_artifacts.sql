-- The files of the accepted result, and of no other epoch.
SELECT f.name, f.media_type, f.size, f.sha256, f.epoch, f.stored_at, f.trimmed_at
FROM artifact AS f
JOIN job AS j ON j.id = f.job_id AND j.result_epoch = f.epoch
WHERE f.job_id = $1 AND f.linked
ORDER BY f.name
