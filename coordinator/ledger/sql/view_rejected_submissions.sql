-- The last submissions that were refused, with the beginning of each. $1: the one source, NULL = all.
SELECT id, source, at, code, reason, faults, size, substring(body FOR 2000) AS body
FROM rejected_submission
WHERE $1::text IS NULL OR source = $1
ORDER BY at DESC, id
LIMIT $2
