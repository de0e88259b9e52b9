INSERT INTO operator_action (at, actor, action, job_id, subject, note)
SELECT * FROM unnest($1::timestamptz[], $2::text[], $3::text[], $4::uuid[], $5::text[], $6::text[])
