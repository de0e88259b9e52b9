-- The jobs that WORK's messages ($1) name, to be held against them. `long_settled`: for more than $2 seconds.
SELECT
    named.id AS job_id, coalesce(j.epoch, 0) AS epoch, j.state, j.lane,
    coalesce(j.finished_at < tandem_now() - make_interval(secs => $2), false) AS long_settled
FROM unnest($1::uuid[]) AS named (id)
LEFT JOIN job AS j ON j.id = named.id
