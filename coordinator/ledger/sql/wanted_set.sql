WITH action AS (
    INSERT INTO operator_action (at, actor, action, subject) VALUES (tandem_now(), $3, $2, 'worker ' || $1)
)
INSERT INTO worker (name, wanted) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET wanted = excluded.wanted
