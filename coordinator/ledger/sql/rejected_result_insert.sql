INSERT INTO rejected_result (job_id, epoch, worker, verdict, reason, current_epoch, at, report)
SELECT *
FROM unnest(
    $1::uuid[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::integer[], $7::timestamptz[], $8::jsonb[]
)
