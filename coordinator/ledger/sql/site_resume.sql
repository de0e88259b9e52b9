-- A check found a source's ($1) site mended: what waits for it has its whole time before it.
WITH resumed AS (
    DELETE FROM paused_site WHERE source = $1 RETURNING source
), waiting AS (
    UPDATE publication AS p SET since = tandem_now() FROM resumed WHERE p.source = resumed.source AND p.next_at IS NOT NULL
)
SELECT source FROM resumed
