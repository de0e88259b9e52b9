-- Offers that nobody has claimed for $1 seconds, or that seem to be from the future (the clock was set back); oldest
-- first.
SELECT
    id AS job_id, lane, offered_at, offered_seq, excluded,
    extract(epoch FROM tandem_now() - offered_at)::float8 AS age_s
FROM job
WHERE
    state = 'pending' AND offered_at IS NOT NULL
    AND (
        offered_at <= tandem_now() - make_interval(secs => $1::float8)
        OR offered_at > tandem_now() + interval '5 seconds'
    )
ORDER BY offered_at, id
