-- Tell the floor below which no epoch is granted since the last restore.
SELECT max(restored.epoch_floor) AS epoch_floor FROM restored
