-- Offers that nobody has claimed for $1 seconds, the oldest first.
SELECT
    id AS job_id, lane, offered_at, offered_seq, excluded,
    extract(epoch FROM tandem_now() - offered_at)::float8 AS age_s
FROM job
WHERE
    state = 'pending' AND offered_at IS NOT NULL
    AND offered_at <= tandem_now() - make_interval(secs => $1::float8)
ORDER BY offered_at, id
