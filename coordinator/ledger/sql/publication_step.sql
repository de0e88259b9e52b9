-- Keep what a try ($3) of this publication has done: $4, {step: {"id", ...}}. Nothing if a later try began.
UPDATE publication
SET steps = steps || $4::jsonb
WHERE job_id = $1 AND epoch = $2 AND attempts = $3 AND next_at IS NOT NULL
RETURNING job_id
