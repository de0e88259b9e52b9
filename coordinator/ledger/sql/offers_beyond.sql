-- How many offers of a lane ($1) none of these workers ($2) may take. By the index of the lane's offers: this is asked in
-- every round of a lane that is full.
SELECT count(*) AS offers
FROM job
WHERE state = 'pending' AND offered_at IS NOT NULL AND lane = $1 AND excluded @> $2
