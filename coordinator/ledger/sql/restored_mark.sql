-- Note that this ledger was restored from a backup of $1, and that no epoch is granted below a floor: the seconds since
-- 2026, which only grow, so that restoring the same backup twice gives two floors; or more, if the ledger is further.
INSERT INTO restored (epoch_floor, at, made_at)
SELECT
    greatest(
        extract(epoch FROM tandem_now() - '2026-01-01T00:00:00Z'::timestamptz)::integer,
        (SELECT coalesce(max(job.epoch), 0) + 1000 FROM job),
        (SELECT coalesce(max(before.epoch_floor), 0) + 1 FROM restored AS before)
    ),
    tandem_now(), $1
RETURNING epoch_floor
