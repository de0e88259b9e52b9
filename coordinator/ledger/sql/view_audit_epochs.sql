-- The attempts of a job are its epochs 1 to n, each once; after a restore they go on from its floor.
SELECT j.id AS job_id, j.epoch, format(
    'the attempts on record are not epochs 1 to %s: %s of them, from %s to %s',
    j.epoch, on_record.attempts, coalesce(on_record.lowest::text, 'none'), coalesce(on_record.highest::text, 'none')
) AS text
FROM job AS j
CROSS JOIN LATERAL (
    SELECT count(*) AS attempts, min(a.epoch) AS lowest, max(a.epoch) AS highest FROM attempt AS a WHERE a.job_id = j.id
) AS on_record
WHERE
    (on_record.attempts <> j.epoch OR (j.epoch > 0 AND (on_record.lowest <> 1 OR on_record.highest <> j.epoch)))
    AND (
        coalesce(on_record.highest, 0) <> j.epoch
        OR EXISTS (
            SELECT FROM attempt AS a
            WHERE
                a.job_id = j.id AND a.epoch > 1
                AND NOT EXISTS (SELECT FROM attempt AS b WHERE b.job_id = a.job_id AND b.epoch = a.epoch - 1)
                AND NOT EXISTS (SELECT FROM restored AS r WHERE r.epoch_floor = a.epoch)
        )
    )
