-- No file is part of a result but those of the accepted epoch.
SELECT f.job_id, f.epoch, format(
    '%s is linked for epoch %s, the result is of epoch %s', f.name, f.epoch, coalesce(j.result_epoch::text, 'none')
) AS text
FROM artifact AS f
LEFT JOIN job AS j ON j.id = f.job_id
WHERE f.linked AND f.epoch IS DISTINCT FROM j.result_epoch
