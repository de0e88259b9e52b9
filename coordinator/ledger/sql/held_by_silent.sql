-- The jobs that a process holds ($1 worker, $2 instance), unless it has announced itself since $3.
SELECT j.id
FROM job AS j
JOIN attempt AS a ON a.job_id = j.id AND a.epoch = j.epoch
WHERE
    j.state = 'processing'
    AND j.worker = $1
    AND a.instance = $2
    AND NOT EXISTS (
        SELECT FROM worker AS w
        WHERE w.name = $1 AND w.instance = $2 AND w.seen_at > $3
    )
ORDER BY j.id
