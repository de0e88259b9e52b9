-- Jobs whose message must be in WORK: pending, due, and offered for more than $1 seconds.
SELECT id AS job_id, epoch, lane FROM job
WHERE
    state = 'pending' AND offered_at < tandem_now() - make_interval(secs => $1) AND run_after <= tandem_now()
