-- What was charged is on record: failures that count, and lapses. A retry starts both anew; a reject may have.
-- `at_most` counts since the last retry, `at_least` since the last retry or reject.
SELECT j.id AS job_id, j.epoch, format(
    'attempt is %s, on record %s to %s; lease_losses is %s, on record %s to %s; silences is %s, on record %s to %s',
    j.attempt, n.failed_least, n.failed_most, j.lease_losses, n.lapsed_least, n.lapsed_most,
    j.silences, n.silent_least, n.silent_most
) AS text
FROM job AS j
CROSS JOIN LATERAL (
    SELECT
        coalesce(max(o.at) FILTER (WHERE o.action = 'retry'), '-infinity') AS retried_at,
        coalesce(max(o.at), '-infinity') AS asked_at
    FROM operator_action AS o WHERE o.job_id = j.id AND o.action IN ('retry', 'reject')
) AS again
CROSS JOIN LATERAL (
    SELECT
        count(*) FILTER (WHERE charged.failure AND a.claimed_at > again.asked_at) AS failed_least,
        count(*) FILTER (WHERE charged.failure AND a.claimed_at >= again.retried_at) AS failed_most,
        count(*) FILTER (WHERE charged.loss AND a.claimed_at > again.asked_at) AS lapsed_least,
        count(*) FILTER (WHERE charged.loss AND a.claimed_at >= again.retried_at) AS lapsed_most,
        count(*) FILTER (WHERE charged.silence AND a.claimed_at > again.asked_at) AS silent_least,
        count(*) FILTER (WHERE charged.silence AND a.claimed_at >= again.retried_at) AS silent_most
    FROM attempt AS a
    CROSS JOIN LATERAL (
        SELECT
            a.outcome = 'failed' AND a.error ->> 'class' IS DISTINCT FROM 'elsewhere' AS failure,
            a.outcome = 'lease_expired' AND a.error ->> 'code' IS DISTINCT FROM 'worker_silent' AS loss,
            a.outcome = 'lease_expired' AND a.error ->> 'code' = 'worker_silent' AS silence
    ) AS charged
    WHERE a.job_id = j.id
) AS n
WHERE
    j.attempt NOT BETWEEN n.failed_least AND n.failed_most
    OR j.lease_losses NOT BETWEEN n.lapsed_least AND n.lapsed_most
    OR j.silences NOT BETWEEN n.silent_least AND n.silent_most
