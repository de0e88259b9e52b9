-- No attempt is open but the newest of a job that is processing.
SELECT a.job_id, a.epoch, format('an open attempt, but the job is %s', CASE
    WHEN j.id IS NULL THEN 'unknown'
    WHEN j.state = 'processing' THEN format('processing epoch %s', j.epoch)
    ELSE j.state
END) AS text
FROM attempt AS a
LEFT JOIN job AS j ON j.id = a.job_id
WHERE a.outcome IS NULL AND (j.id IS NULL OR j.state <> 'processing' OR a.epoch <> j.epoch)
