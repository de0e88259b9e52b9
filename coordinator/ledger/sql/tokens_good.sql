-- Every token that is good; `ever`: whether any was ever made (one row says so even when none is good).
SELECT t.id, t.role, t.name, t.digest, t.made_by, t.made_at, t.last_used_at, EXISTS (SELECT FROM access_token) AS ever
FROM (VALUES (1)) AS one (n)
LEFT JOIN access_token AS t ON t.revoked_at IS NULL
ORDER BY t.role, t.name, t.made_at
