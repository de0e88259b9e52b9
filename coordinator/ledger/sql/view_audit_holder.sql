-- A processing job has an open attempt of its epoch and holder, and its lease ends no later than that attempt's deadline.
-- Reads what is processing, by its index.
SELECT j.id AS job_id, j.epoch, CASE
    WHEN a.job_id IS NULL THEN 'processing without an attempt of its epoch'
    WHEN a.outcome IS NOT NULL THEN format('processing, but its attempt has ended: %s', a.outcome)
    WHEN a.worker <> j.worker THEN format('held by %s, but its attempt is of %s', j.worker, a.worker)
    ELSE format('its lease is good until %s, its deadline is %s', j.lease_expires_at, a.deadline_at)
END AS text
FROM job AS j
LEFT JOIN attempt AS a ON a.job_id = j.id AND a.epoch = j.epoch
WHERE
    j.state = 'processing'
    AND (a.job_id IS NULL OR a.outcome IS NOT NULL OR a.worker <> j.worker OR j.lease_expires_at > a.deadline_at)
