WITH action AS (
    INSERT INTO operator_action (at, actor, action, subject)
    VALUES (tandem_now(), $5, 'token', 'token ' || $1 || ' ' || $2 || ':' || $3)
)
INSERT INTO access_token (id, role, name, digest, made_by, made_at) VALUES ($1, $2, $3, $4, $5, tandem_now())
