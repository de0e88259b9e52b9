-- Everything that a transition may change. `result_is` says whether the result columns change too.
UPDATE job
SET
    state = new.state,
    run_after = new.run_after,
    epoch = new.epoch,
    attempt = new.attempt,
    lease_losses = new.lease_losses,
    silences = new.silences,
    excluded = new.excluded::text[],
    model = new.model,
    models = new.models::text[],
    lane = new.lane,
    priority = new.priority,
    offered_at = new.offered_at,
    offered_seq = new.offered_seq,
    spent_seq = new.spent_seq,
    worker = new.worker,
    lease_expires_at = new.lease_expires_at,
    finished_at = new.finished_at,
    error = new.error,
    result = CASE WHEN new.result_is THEN new.result ELSE job.result END,
    result_epoch = CASE WHEN new.result_is THEN new.result_epoch ELSE job.result_epoch END,
    result_model = CASE WHEN new.result_is THEN new.result_model ELSE job.result_model END,
    -- What was settled may have gone out under its epoch's message id, noted or not: a later state needs another.
    published_epoch = CASE
        WHEN job.finished_at IS NOT NULL AND new.state <> job.state THEN job.epoch
        ELSE job.published_epoch
    END,
    unpublished = (new.announced OR job.unpublished) AND new.finished_at IS NOT NULL
FROM unnest(
    $1::uuid[], $2::text[], $3::timestamptz[], $4::integer[], $5::integer[], $6::integer[], $7::integer[], $8::text[],
    $9::timestamptz[], $10::bigint[], $11::bigint[], $12::text[], $13::timestamptz[], $14::timestamptz[], $15::jsonb[],
    $16::boolean[], $17::jsonb[], $18::integer[], $19::text[], $20::boolean[], $21::text[], $22::text[],
    $23::text[], $24::smallint[]
) AS new (
    id, state, run_after, epoch, attempt, lease_losses, silences, excluded,
    offered_at, offered_seq, spent_seq, worker, lease_expires_at, finished_at, error,
    result_is, result, result_epoch, result_model, announced, model, lane, models, priority
)
WHERE job.id = new.id
