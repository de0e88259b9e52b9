-- Jobs that a text ($1) finds, up to $2 each way, in no order: by the start of the id (from $3 to $4; NULL if it is none), by
-- the start of the key, by the value of a label ($5, as a jsonpath), and by words of the error.
(SELECT id FROM job WHERE id BETWEEN $3::uuid AND $4::uuid LIMIT $2)
UNION ALL
(
    SELECT id
    FROM job
    WHERE key IS NOT NULL AND key ~>=~ $1::text AND key ~<~ ($1::text || chr(1114111))
    LIMIT $2
)
UNION ALL
(SELECT id FROM job WHERE labels <> '{}' AND labels @@ $5::text::jsonpath LIMIT $2)
UNION ALL
(
    SELECT id
    FROM job
    WHERE
        error IS NOT NULL
        AND to_tsvector('simple', (error ->> 'code') || ' ' || (error ->> 'message'))
        @@ plainto_tsquery('simple', $1::text)
    LIMIT $2
)
