-- What was announced more than $1 s ago to be removed: who said so is gone.
DELETE FROM artifact
WHERE job_id = '00000000-0000-0000-0000-000000000000' AND stored_at < tandem_now() - make_interval(secs => $1)
