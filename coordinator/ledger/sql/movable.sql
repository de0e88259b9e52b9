-- Jobs that wait and may run on another of their models, from beyond $1 on: in one of these lanes ($2), or refused by a
-- worker. An offer whose place in WORK is not known yet is left alone. Each by an index of its own, however many wait.
SELECT id, kind, lane, model, models, excluded, offered_at
FROM (
    SELECT id
    FROM unnest($2::text[]) AS poor (lane)
    CROSS JOIN LATERAL (
        SELECT job.id
        FROM job
        WHERE job.state = 'pending' AND job.models IS NOT NULL AND job.lane = poor.lane
            AND job.id > coalesce($1::uuid, '00000000-0000-0000-0000-000000000000')
        ORDER BY job.id
        LIMIT $3
    ) AS there
    UNION
    (
        SELECT id
        FROM job
        WHERE state = 'pending' AND models IS NOT NULL AND excluded <> '{}'
            AND id > coalesce($1::uuid, '00000000-0000-0000-0000-000000000000')
        ORDER BY id
        LIMIT $3
    )
) AS found
JOIN job USING (id)
WHERE offered_at IS NULL OR offered_seq > spent_seq
ORDER BY id
LIMIT $3
