-- Those of the jobs $1 that are wanted, newest first, after the job ($2 created_at, $3 id), at most $4. $5 source, $6 state,
-- $7 kind, $8 model, $9 worker (now or in any attempt), $10 labels, $11 text (as list_by_text.sql); NULL = any.
-- MATERIALIZED and OFFSET 0 keep the planner to the keys of $1: else it may read the whole list in its order, or all
-- attempts of the worker, to find those few.
WITH wanted AS MATERIALIZED (
    SELECT j.id, j.created_at
    FROM job AS j
    WHERE
        j.id = ANY ($1::uuid[])
        AND j.created_at <= $2
        AND (j.created_at < $2 OR j.id > $3)
        AND ($5::text IS NULL OR j.source = $5)
        AND ($6::text IS NULL OR j.state = $6)
        AND ($7::text IS NULL OR j.kind = $7)
        AND ($8::text IS NULL OR j.model = $8)
        AND ($9::text IS NULL OR j.worker = $9 OR EXISTS (
            SELECT FROM attempt AS was WHERE was.job_id = j.id AND was.worker = $9 OFFSET 0
        ))
        AND ($10::text IS NULL OR j.labels @> $10::text::jsonb)
        AND (
            $11::text IS NULL
            OR (
                replace(lower($11), '-', '') ~ '^[0-9a-f]{1,32}$'
                AND starts_with(replace(j.id::text, '-', ''), replace(lower($11), '-', ''))
            )
            OR starts_with(j.key, $11)
            OR EXISTS (SELECT FROM jsonb_each_text(j.labels) AS label WHERE label.value = $11)
            OR to_tsvector('simple', (j.error ->> 'code') || ' ' || (j.error ->> 'message'))
            @@ plainto_tsquery('simple', $11)
        )
),
page AS MATERIALIZED (
    SELECT id FROM wanted ORDER BY created_at DESC, id LIMIT $4
)
SELECT
    j.id, j.key, j.source, j.kind, j.model, j.lane, j.state, j.labels, j.priority, j.run_after, j.created_at,
    j.offered_at, j.finished_at,
    coalesce(j.worker, a.worker) AS worker,
    a.claimed_at, a.stage, a.progress, a.heartbeat_at,
    extract(epoch FROM coalesce(a.ended_at, tandem_now()) - a.claimed_at)::float8 AS duration_s,
    extract(epoch FROM j.lease_expires_at - tandem_now())::float8 AS lease_left_s,
    j.epoch, j.attempt, j.max_attempts, j.lease_losses, j.silences, j.error
FROM page
JOIN job AS j ON j.id = page.id
LEFT JOIN attempt AS a ON a.job_id = j.id AND a.epoch = coalesce(j.result_epoch, j.epoch)
ORDER BY j.created_at DESC, j.id
