-- Jobs that were due when they were admitted and are not now, since the clock was set back; at most $1.
SELECT id
FROM job
WHERE state = 'pending' AND created_at > tandem_now() AND run_after > tandem_now() AND run_after <= created_at
ORDER BY created_at DESC
LIMIT $1
