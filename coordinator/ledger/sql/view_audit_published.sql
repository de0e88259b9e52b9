-- A page of the jobs whose result must lie on RESULTS, in id order from beyond $1 on: acknowledged by the outbox,
-- settled before $2, and not as long ago as the stream keeps ($3 seconds). The whole table once, by its primary key.
SELECT id, source, kind, epoch, state
FROM job
WHERE
    id > $1 AND NOT unpublished AND finished_at < $2::timestamptz
    AND finished_at > tandem_now() - make_interval(secs => $3)
ORDER BY id
LIMIT 20000
