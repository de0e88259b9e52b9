-- Heartbeats that came with something else: only the history.
INSERT INTO heartbeat (job_id, epoch, worker, at, stage, elapsed_s, progress, detail)
SELECT job_id, epoch, worker, $8, stage, elapsed_s, progress, detail
FROM unnest($1::uuid[], $2::integer[], $3::text[], $4::text[], $5::float8[], $6::float8[], $7::text[])
    AS new (job_id, epoch, worker, stage, elapsed_s, progress, detail)
