-- The files of an accepted result are those of its report: some if it said any bytes, and no more than it said. (Fewer
-- may be right: a report may name a file twice.)
SELECT j.id AS job_id, j.result_epoch AS epoch, format(
    'its files have %s bytes together, its report said %s', coalesce(files.bytes, 0), a.bytes
) AS text
FROM job AS j
JOIN attempt AS a ON a.job_id = j.id AND a.epoch = j.result_epoch
LEFT JOIN (
    SELECT f.job_id, f.epoch, sum(f.size) AS bytes FROM artifact AS f WHERE f.linked GROUP BY f.job_id, f.epoch
) AS files ON files.job_id = j.id AND files.epoch = j.result_epoch
WHERE a.outcome = 'completed' AND (coalesce(files.bytes, 0) > a.bytes OR (files.bytes IS NULL AND a.bytes > 0))
