-- The next jobs of a lane that are due. Per priority, so that jobs whose time has not come are never read.
SELECT due.id
FROM (VALUES (3::smallint), (2::smallint), (1::smallint), (0::smallint)) AS rank (priority)
CROSS JOIN LATERAL (
    SELECT id, run_after
    FROM job
    WHERE
        state = 'pending' AND offered_at IS NULL
        AND lane = $1 AND priority = rank.priority AND run_after <= tandem_now()
    ORDER BY run_after, id
    LIMIT $2
) AS due
ORDER BY rank.priority DESC, due.run_after, due.id
LIMIT $2
