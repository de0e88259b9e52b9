-- New jobs, in id order; the ids that another coordinator has admitted meanwhile don't come back.
INSERT INTO job (
    id, source, key, kind, model, lane, priority, state, content_sha256, spec, labels, callback_url, max_attempts,
    timeout_s, review, run_after, created_at, offered_at, models
)
SELECT
    id, source, key, kind, model, lane, priority, state, content_sha256, spec, labels, callback_url, max_attempts,
    timeout_s, review, run_after, created_at, offered_at, models::text[]
FROM unnest(
    $1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::smallint[], $8::text[], $9::bytea[],
    $10::jsonb[], $11::jsonb[], $12::text[], $13::integer[], $14::float8[], $15::boolean[], $16::timestamptz[],
    $17::timestamptz[], $18::timestamptz[], $19::text[]
) AS new (
    id, source, key, kind, model, lane, priority, state, content_sha256, spec, labels, callback_url, max_attempts,
    timeout_s, review, run_after, created_at, offered_at, models
)
ORDER BY 1
ON CONFLICT DO NOTHING
RETURNING id
