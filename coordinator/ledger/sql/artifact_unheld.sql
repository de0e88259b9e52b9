-- Those of the contents $1 that are no file of any job, or only of such whose content is not kept any more.
SELECT sha256
FROM unnest($1::text[]) AS doomed (sha256)
WHERE
    NOT EXISTS (
        SELECT FROM artifact AS held
        WHERE
            held.sha256 = doomed.sha256 AND held.trimmed_at IS NULL
            AND held.job_id <> '00000000-0000-0000-0000-000000000000'
    )
ORDER BY sha256
