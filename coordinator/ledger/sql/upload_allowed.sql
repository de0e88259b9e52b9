-- The epoch is the newest, this worker's, and open; or lapsed with nobody else having claimed since.
SELECT EXISTS (
    SELECT
    FROM job
    JOIN attempt ON attempt.job_id = job.id AND attempt.epoch = job.epoch
    WHERE
        job.id = $1 AND job.epoch = $2 AND attempt.worker = $3
        AND (job.state = 'processing' OR (job.state = 'pending' AND attempt.outcome = 'lease_expired'))
) AS allowed
