-- A job with a result: its epoch is an attempt that completed, no newer one did, and each older one was followed by
-- somebody asking for another.
SELECT j.id AS job_id, j.result_epoch AS epoch, format(
    'a %s job needs its result to be of one completed attempt: result_epoch %s, completed epochs %s, asked again %s times',
    j.state, coalesce(j.result_epoch::text, 'none'), coalesce(done.epochs, '{}'), asked.times
) AS text
FROM job AS j
CROSS JOIN LATERAL (
    SELECT array_agg(a.epoch ORDER BY a.epoch) AS epochs
    FROM attempt AS a WHERE a.job_id = j.id AND a.outcome = 'completed'
) AS done
CROSS JOIN LATERAL (
    SELECT count(*) AS times FROM operator_action AS o WHERE o.job_id = j.id AND o.action IN ('retry', 'reject')
) AS asked
WHERE
    (
        (j.state IN ('completed', 'awaiting_review') OR j.result_epoch IS NOT NULL)
        AND (
            j.result_epoch IS NULL OR done.epochs IS NULL
            OR j.result_epoch <> done.epochs[cardinality(done.epochs)]
        )
    )
    OR cardinality(done.epochs) > 1 + asked.times
