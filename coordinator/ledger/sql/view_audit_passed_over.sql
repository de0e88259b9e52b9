-- Jobs of lane $1 that have been due and pending for $2 seconds, and that one of the free workers ($3) may take, though
-- none of the lane's offers is for that worker. The first $4 of the backlog, by its index.
SELECT due.id AS job_id, due.epoch, due.worker
FROM (
    SELECT
        j.id, j.epoch, j.priority, j.run_after,
        (
            SELECT free.worker FROM unnest($3::text[]) AS free (worker)
            WHERE
                free.worker <> ALL (j.excluded)
                AND NOT EXISTS (
                    SELECT FROM job AS o
                    WHERE
                        o.state = 'pending' AND o.offered_at IS NOT NULL AND o.lane = $1
                        AND free.worker <> ALL (o.excluded)
                )
            LIMIT 1
        ) AS worker
    FROM job AS j
    LEFT JOIN attempt AS a ON a.job_id = j.id AND a.epoch = j.epoch
    WHERE
        j.state = 'pending' AND j.offered_at IS NULL AND j.lane = $1
        AND j.run_after <= tandem_now() - make_interval(secs => $2)
        AND (a.ended_at IS NULL OR a.ended_at <= tandem_now() - make_interval(secs => $2))
    ORDER BY j.priority DESC, j.run_after, j.id
    LIMIT $4
) AS due
WHERE due.worker IS NOT NULL
