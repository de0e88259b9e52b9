-- What people did to a job.
SELECT at, actor, action, note
FROM operator_action
WHERE job_id = $1
ORDER BY id
