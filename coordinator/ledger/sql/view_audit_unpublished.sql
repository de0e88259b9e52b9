-- What is settled goes out: nothing waits in the outbox for more than $1 seconds.
SELECT id AS job_id, epoch, format('settled (%s) at %s, not on RESULTS yet', state, finished_at) AS text
FROM job
WHERE unpublished AND finished_at < tandem_now() - make_interval(secs => $1)
