-- The files of accepted reports become part of their jobs' results.
UPDATE artifact
SET linked = true
FROM unnest($1::uuid[], $2::integer[], $3::text[]) AS new (job_id, epoch, name)
WHERE artifact.job_id = new.job_id AND artifact.epoch = new.epoch AND artifact.name = new.name
