-- Announce that contents ($1) are being removed from the store, by $2: a row of no job for each that no row holds.
-- Returns those that are $2's to remove now. An upload that recorded its file looks for such a row afterwards, and the
-- sweeper looks for files after this: whoever comes second sees the other (artifact_is_doomed.sql, artifact_unheld.sql).
INSERT INTO artifact (job_id, epoch, name, worker, media_type, size, sha256, stored_at)
SELECT '00000000-0000-0000-0000-000000000000', 0, sha256, $2, '', 0, sha256, tandem_now()
FROM unnest($1::text[]) AS unwanted (sha256)
WHERE NOT EXISTS (SELECT FROM artifact AS held WHERE held.sha256 = unwanted.sha256 AND held.trimmed_at IS NULL)
ORDER BY sha256
ON CONFLICT DO NOTHING
RETURNING sha256
