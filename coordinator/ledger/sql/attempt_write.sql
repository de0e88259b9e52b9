-- Attempts that began or ended. What a report said stays when a later transition has nothing to add.
INSERT INTO attempt (
    job_id, epoch, number, worker, instance, delivery, claimed_at, deadline_at, outcome, ended_at, error,
    result_sha256, stage, progress, heartbeats, heartbeat_at, elapsed_s, model, settings, stages, bytes
)
SELECT
    job_id, epoch, number, worker, instance, delivery, claimed_at, deadline_at, outcome, ended_at, error,
    result_sha256, stage, progress, heartbeats, heartbeat_at, elapsed_s, model, settings, stages::jsonb, bytes
FROM unnest(
    $1::uuid[], $2::integer[], $3::integer[], $4::text[], $5::text[], $6::text[], $7::timestamptz[],
    $8::timestamptz[], $9::text[], $10::timestamptz[], $11::jsonb[], $12::bytea[], $13::text[], $14::float8[],
    $15::integer[], $16::timestamptz[], $17::float8[], $18::text[], $19::jsonb[], $20::text[], $21::bigint[]
) AS new (
    job_id, epoch, number, worker, instance, delivery, claimed_at, deadline_at, outcome, ended_at, error,
    result_sha256, stage, progress, heartbeats, heartbeat_at, elapsed_s, model, settings, stages, bytes
)
ON CONFLICT (job_id, epoch) DO UPDATE
SET
    instance = excluded.instance,
    outcome = excluded.outcome,
    ended_at = excluded.ended_at,
    error = excluded.error,
    result_sha256 = excluded.result_sha256,
    stage = excluded.stage,
    progress = excluded.progress,
    heartbeats = excluded.heartbeats,
    heartbeat_at = excluded.heartbeat_at,
    elapsed_s = coalesce(excluded.elapsed_s, attempt.elapsed_s),
    model = coalesce(excluded.model, attempt.model),
    settings = coalesce(excluded.settings, attempt.settings),
    stages = coalesce(excluded.stages, attempt.stages),
    bytes = coalesce(excluded.bytes, attempt.bytes)
