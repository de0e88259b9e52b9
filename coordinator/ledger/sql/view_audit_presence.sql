-- What workers say of themselves against what the ledger granted. `ghost`: not listed though held by that very process,
-- by a presence that came $1 seconds or more after the claim (and $2 seconds ago, so that it was held against it).
WITH listed AS (
    SELECT
        w.name, (busy.one ->> 'job_id')::uuid AS job_id, (busy.one ->> 'epoch')::bigint AS epoch
    FROM worker AS w
    CROSS JOIN LATERAL jsonb_array_elements(coalesce(w.presence -> 'busy', '[]')) AS busy (one)
)
SELECT l.job_id, l.epoch, l.name AS worker, NULL AS instance, CASE
    WHEN a.job_id IS NULL THEN format('%s says that it holds it, but that epoch was never granted', l.name)
    ELSE format('%s says that it holds it, but it was granted to %s', l.name, a.worker)
END AS text
FROM listed AS l
LEFT JOIN attempt AS a ON a.job_id = l.job_id AND a.epoch = l.epoch
WHERE a.worker IS DISTINCT FROM l.name
UNION ALL
SELECT j.id, j.epoch, w.name, w.instance, format('a ghost lease: %s, which holds it, does not list it', w.name)
FROM job AS j
JOIN attempt AS a ON a.job_id = j.id AND a.epoch = j.epoch
JOIN worker AS w ON w.name = j.worker AND w.instance = a.instance
WHERE
    j.state = 'processing' AND a.outcome IS NULL
    AND w.seen_at >= a.claimed_at + make_interval(secs => $1)
    AND w.seen_at < tandem_now() - make_interval(secs => $2)
    AND NOT EXISTS (SELECT FROM listed AS l WHERE l.name = w.name AND l.job_id = j.id AND l.epoch = j.epoch)
UNION ALL
SELECT NULL, NULL, w.name, NULL, format(
    'worker %s: its process is %s, its presence says %s', w.name, w.instance, w.presence ->> 'instance'
)
FROM worker AS w
WHERE w.presence IS NOT NULL AND w.instance IS DISTINCT FROM w.presence ->> 'instance'
UNION ALL
SELECT NULL, NULL, min(w.name), NULL, format('workers %s are authenticated as one user', string_agg(w.name, ', ' ORDER BY w.name))
FROM worker AS w
WHERE w.nkey IS NOT NULL
GROUP BY w.nkey
HAVING count(*) > 1
