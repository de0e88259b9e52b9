-- What awaits review, the longest waiting first, at most $1. $2: the one source that the asker may see, NULL = all.
-- By lane, as list_by_lane.sql: read from the other end, the same index has the oldest of each first.
SELECT one.id
FROM lane
CROSS JOIN LATERAL (
    SELECT job.created_at, job.id
    FROM job
    WHERE job.lane = lane.name AND job.state = 'awaiting_review' AND ($2::text IS NULL OR job.source = $2)
    ORDER BY job.created_at, job.id DESC
    LIMIT $1
) AS one
ORDER BY one.created_at, one.id DESC
LIMIT $1
