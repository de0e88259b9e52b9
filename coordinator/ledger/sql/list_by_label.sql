-- Up to $2 jobs with all of these labels ($1), in no order.
SELECT id FROM job WHERE labels <> '{}' AND labels @> $1::text::jsonb LIMIT $2
