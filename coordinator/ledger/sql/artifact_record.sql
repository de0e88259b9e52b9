-- Note a stored file, if its worker may still add files to this epoch (as in upload_allowed.sql). What is linked stays.
INSERT INTO artifact (job_id, epoch, name, worker, media_type, size, sha256, stored_at)
SELECT job.id, job.epoch, $3, $4, $5, $6, $7, tandem_now()
FROM job
JOIN attempt ON attempt.job_id = job.id AND attempt.epoch = job.epoch
WHERE
    job.id = $1 AND job.epoch = $2 AND attempt.worker = $4
    AND (job.state = 'processing' OR (job.state = 'pending' AND attempt.outcome = 'lease_expired'))
ON CONFLICT (job_id, epoch, name) DO UPDATE
SET
    worker = excluded.worker,
    media_type = excluded.media_type,
    size = excluded.size,
    sha256 = excluded.sha256,
    stored_at = excluded.stored_at
WHERE NOT artifact.linked
RETURNING true AS recorded
