WITH action AS (
    INSERT INTO operator_action (at, actor, action, subject) VALUES (tandem_now(), $3, $2, 'worker ' || $1)
)
INSERT INTO worker (name, wanted, resumed_at)
VALUES ($1, $2, CASE WHEN $2 = 'ready' THEN tandem_now() END)
ON CONFLICT (name) DO UPDATE
SET wanted = excluded.wanted, resumed_at = coalesce(excluded.resumed_at, worker.resumed_at)
