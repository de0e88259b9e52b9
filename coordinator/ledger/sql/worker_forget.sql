-- Forget a worker, and keep that $2 said so; what it did stays in `attempt`.
WITH action AS (
    INSERT INTO operator_action (at, actor, action, subject) VALUES (tandem_now(), $2, 'revoke', 'worker ' || $1)
)
DELETE FROM worker WHERE name = $1 RETURNING name
