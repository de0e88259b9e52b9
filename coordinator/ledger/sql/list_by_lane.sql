-- As list_newest.sql, of the lanes $4 and the states $5: the newest of each, merged.
SELECT one.created_at, one.id
FROM unnest($4::text[]) AS wanted_lane (lane)
CROSS JOIN unnest($5::text[]) AS wanted_state (state)
CROSS JOIN LATERAL (
    SELECT job.created_at, job.id
    FROM job
    WHERE
        job.lane = wanted_lane.lane AND job.state = wanted_state.state
        AND job.created_at <= $1 AND (job.created_at < $1 OR job.id > $2)
    ORDER BY job.created_at DESC, job.id
    LIMIT $3
) AS one
ORDER BY one.created_at DESC, one.id
LIMIT $3
