-- What is not published: by source, how many results wait or are tried, how many were given up, and whether its site is
-- paused.
SELECT
    coalesce(undone.source, p.source) AS source,
    coalesce(undone.waiting, 0) AS waiting,
    coalesce(undone.failed, 0) AS failed,
    p.source IS NOT NULL AS paused
FROM (
    SELECT source, count(next_at) AS waiting, count(failed_at) AS failed
    FROM publication
    WHERE published_at IS NULL
    GROUP BY source
) AS undone
FULL JOIN paused_site AS p ON p.source = undone.source
ORDER BY source
