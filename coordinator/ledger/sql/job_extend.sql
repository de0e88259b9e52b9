-- Leases that only last longer (a lease question, grace).
UPDATE job
SET lease_expires_at = new.lease_expires_at
FROM unnest($1::uuid[], $2::timestamptz[]) AS new (id, lease_expires_at)
WHERE job.id = new.id
