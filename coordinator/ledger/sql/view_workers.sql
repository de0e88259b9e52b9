-- Every worker: as it last announced itself, what is wanted of it, what it holds. $1: seconds of silence = away.
SELECT
    w.name, w.wanted, w.instance, w.first_seen_at, w.seen_at,
    extract(epoch FROM tandem_now() - w.seen_at)::float8 AS seen_age_s,
    coalesce(tandem_now() - w.seen_at < make_interval(secs => $1), false) AS present,
    w.presence, w.rules,
    coalesce(held.jobs, '[]') AS holds,
    recent.outcomes AS last_hour
FROM worker AS w
LEFT JOIN LATERAL (
    SELECT jsonb_agg(jsonb_build_object(
        'job_id', j.id, 'epoch', j.epoch, 'lane', j.lane, 'stage', a.stage, 'progress', a.progress
    ) ORDER BY a.claimed_at) AS jobs
    FROM job AS j
    JOIN attempt AS a ON a.job_id = j.id AND a.epoch = j.epoch
    WHERE j.worker = w.name AND j.state = 'processing'
) AS held ON true
LEFT JOIN LATERAL (
    SELECT coalesce(jsonb_object_agg(outcome, attempts), '{}') AS outcomes
    FROM (
        SELECT a.outcome, count(*) AS attempts
        FROM attempt AS a
        WHERE a.worker = w.name AND a.claimed_at > tandem_now() - interval '1 hour' AND a.outcome IS NOT NULL
        GROUP BY a.outcome
    ) AS counted
) AS recent ON true
ORDER BY w.name
