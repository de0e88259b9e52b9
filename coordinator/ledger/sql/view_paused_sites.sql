-- The sources that nothing is published of for now; only $1 if it is named.
SELECT source, reason, since, check_at
FROM paused_site
WHERE $1::text IS NULL OR source = $1
ORDER BY source
