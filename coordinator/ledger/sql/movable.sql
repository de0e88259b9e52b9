-- Jobs that wait and may run on another of their models, from beyond $1 on: in one of these lanes ($2), or refused by a
-- worker. An offer whose place in WORK is not known yet is left alone. By the index of those that have a choice.
SELECT id, kind, lane, model, models, excluded, offered_at
FROM job
WHERE
    state = 'pending' AND models IS NOT NULL
    AND id > coalesce($1::uuid, '00000000-0000-0000-0000-000000000000')
    AND (lane = ANY ($2::text[]) OR excluded <> '{}')
    AND (offered_at IS NULL OR offered_seq > spent_seq)
ORDER BY id
LIMIT $3
