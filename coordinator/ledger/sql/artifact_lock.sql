-- The files that are stored for reported epochs, held so that what is checked is what gets linked.
SELECT artifact.job_id, artifact.epoch, name, size, sha256
FROM unnest($1::uuid[], $2::integer[]) AS wanted (job_id, epoch)
JOIN artifact ON artifact.job_id = wanted.job_id AND artifact.epoch = wanted.epoch
ORDER BY artifact.job_id, artifact.epoch, name
FOR UPDATE OF artifact
