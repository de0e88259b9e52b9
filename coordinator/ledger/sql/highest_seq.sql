-- Reads the whole table: only for a stream that is made anew.
SELECT coalesce(max(offered_seq), 0) AS seq FROM job
