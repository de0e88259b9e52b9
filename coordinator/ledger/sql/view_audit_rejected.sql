-- What was refused is not what was accepted (a duplicate of the accepted report is no refusal), and the reason on record
-- was true: a stale report has an epoch that is over, and no refusal names a newer epoch than the ledger ever had.
-- (That each refusal is on record can't be read off the ledger: it is written in the verdict's own transaction.)
SELECT r.job_id, r.epoch, CASE
    WHEN r.current_epoch > j.epoch
        THEN format('refused while epoch %s was current, but the newest is %s', r.current_epoch, j.epoch)
    WHEN r.verdict = 'stale' AND r.epoch > r.current_epoch
        THEN format('refused as stale, though epoch %s was current', r.current_epoch)
    ELSE format('a report of %s for the accepted epoch is on record as %s: %s', r.worker, r.verdict, r.reason)
END AS text
FROM rejected_result AS r
JOIN job AS j ON j.id = r.job_id
LEFT JOIN attempt AS a ON a.job_id = j.id AND a.epoch = j.result_epoch
WHERE
    r.current_epoch > j.epoch
    OR (r.verdict = 'stale' AND r.epoch > r.current_epoch)
    OR (r.verdict <> 'duplicate' AND r.epoch = j.result_epoch AND r.worker = a.worker)
