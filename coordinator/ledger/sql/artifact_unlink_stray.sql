-- Files of these jobs ($1) that are linked for another epoch than the result's. Only where the ledger is sure of the
-- result: none, or of an attempt that completed. The jobs are locked first, in id order, as the writer does.
WITH sure AS (
    SELECT j.id, j.result_epoch
    FROM job AS j
    WHERE
        j.id = ANY ($1::uuid[])
        AND (
            j.result_epoch IS NULL
            OR EXISTS (
                SELECT FROM attempt AS a
                WHERE a.job_id = j.id AND a.epoch = j.result_epoch AND a.outcome = 'completed'
            )
        )
    ORDER BY j.id
    FOR UPDATE OF j
)
UPDATE artifact AS f
SET linked = false
FROM sure
WHERE f.job_id = sure.id AND f.linked AND f.epoch IS DISTINCT FROM sure.result_epoch
RETURNING f.job_id, f.epoch
