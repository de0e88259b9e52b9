-- The jobs that wait in these lanes ($1), in the order in which they are taken, at most $2 a lane: what is in WORK, what is
-- on its way there, then what is due (as backlog.sql has it).
SELECT asked.lane, waiting.id
FROM unnest($1::text[]) AS asked (lane)
CROSS JOIN LATERAL (
    SELECT
        id,
        CASE WHEN offered_seq > spent_seq THEN 0 ELSE 1 END AS turn,
        CASE WHEN offered_seq > spent_seq THEN offered_seq ELSE 0 END AS place,
        priority,
        run_after
    FROM job
    WHERE state = 'pending' AND offered_at IS NOT NULL AND lane = asked.lane
    UNION ALL
    SELECT due.id, 2 AS turn, 0 AS place, rank.priority, due.run_after
    FROM (VALUES (3::smallint), (2::smallint), (1::smallint), (0::smallint)) AS rank (priority)
    CROSS JOIN LATERAL (
        SELECT id, run_after
        FROM job
        WHERE
            state = 'pending' AND offered_at IS NULL
            AND lane = asked.lane AND priority = rank.priority AND run_after <= tandem_now()
        ORDER BY run_after, id
        LIMIT $2
    ) AS due
    ORDER BY turn, place, priority DESC, run_after, id
    LIMIT $2
) AS waiting
ORDER BY asked.lane, waiting.turn, waiting.place, waiting.priority DESC, waiting.run_after, waiting.id
