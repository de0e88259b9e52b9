-- Make the table of restores as migration 0009 does, in the ledger of an older backup, which has none yet.
CREATE TABLE IF NOT EXISTS restored (
    epoch_floor integer PRIMARY KEY,
    at timestamptz NOT NULL,
    made_at timestamptz NOT NULL
)
