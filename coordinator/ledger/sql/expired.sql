-- Leases that are over, in id order from after $2 on.
SELECT id
FROM job
WHERE
    state = 'processing'
    AND lease_expires_at <= tandem_now()
    AND id > coalesce($2::uuid, '00000000-0000-0000-0000-000000000000')
ORDER BY id
LIMIT $1
