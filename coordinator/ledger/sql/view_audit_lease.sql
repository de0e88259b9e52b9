-- No lease is over by more than $1 seconds. Reads what is processing, by its index.
SELECT j.id AS job_id, j.epoch, format('its lease is over since %s', j.lease_expires_at) AS text
FROM job AS j
JOIN attempt AS a ON a.job_id = j.id AND a.epoch = j.epoch
WHERE
    j.state = 'processing' AND j.lease_expires_at < tandem_now() - make_interval(secs => $1)
    AND a.outcome IS NULL AND a.worker = j.worker
