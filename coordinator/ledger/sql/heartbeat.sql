-- Heartbeats that change nothing but themselves: the lease's end moves (no index names it, so that no index is touched),
-- the attempt says where it stands, and the history gets a row.
WITH beat AS (
    SELECT *
    FROM unnest(
        $1::uuid[], $2::integer[], $3::text[], $4::text[], $5::float8[], $6::float8[], $7::text[], $8::timestamptz[]
    ) AS new (job_id, epoch, worker, stage, elapsed_s, progress, detail, lease_expires_at)
),
extended AS (
    UPDATE job SET lease_expires_at = beat.lease_expires_at FROM beat WHERE job.id = beat.job_id
),
stood AS (
    UPDATE attempt
    SET stage = beat.stage, progress = beat.progress, heartbeats = attempt.heartbeats + 1, heartbeat_at = $9
    FROM beat
    WHERE attempt.job_id = beat.job_id AND attempt.epoch = beat.epoch
)
INSERT INTO heartbeat (job_id, epoch, worker, at, stage, elapsed_s, progress, detail)
SELECT job_id, epoch, worker, $9, stage, elapsed_s, progress, detail FROM beat
