-- The next jobs of a lane ($1) that are due, and that one of the workers $3 may take (NULL: whoever). Per priority, so
-- that jobs whose time has not come are never read.
SELECT due.id
FROM (VALUES (3::smallint), (2::smallint), (1::smallint), (0::smallint)) AS rank (priority)
CROSS JOIN LATERAL (
    SELECT id, run_after
    FROM job
    WHERE
        state = 'pending' AND offered_at IS NULL
        AND lane = $1 AND priority = rank.priority AND run_after <= tandem_now()
        AND ($3::text[] IS NULL OR NOT excluded @> $3)
    ORDER BY run_after, id
    LIMIT $2
) AS due
ORDER BY rank.priority DESC, due.run_after, due.id
LIMIT $2
