-- What was refused is not what was accepted (a duplicate of the accepted report is no refusal).
SELECT j.id AS job_id, j.result_epoch AS epoch, format(
    'a report of %s for the accepted epoch is on record as %s: %s', r.worker, r.verdict, r.reason
) AS text
FROM job AS j
JOIN attempt AS a ON a.job_id = j.id AND a.epoch = j.result_epoch
JOIN rejected_result AS r ON r.job_id = j.id AND r.epoch = j.result_epoch AND r.worker = a.worker
WHERE r.verdict <> 'duplicate'
