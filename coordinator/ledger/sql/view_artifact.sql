-- One file of the accepted result. $3: the one source that the asker may see, NULL = all.
SELECT f.name, f.media_type, f.size, f.sha256, f.trimmed_at
FROM artifact AS f
JOIN job AS j ON j.id = f.job_id AND j.result_epoch = f.epoch
WHERE f.job_id = $1 AND f.name = $2 AND f.linked AND ($3::text IS NULL OR j.source = $3)
