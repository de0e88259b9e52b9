-- Make a token good no more, and keep that $2 said so.
WITH revoked AS (
    UPDATE access_token SET revoked_at = tandem_now() WHERE id = $1 AND revoked_at IS NULL RETURNING id, role, name
), action AS (
    INSERT INTO operator_action (at, actor, action, subject)
    SELECT tandem_now(), $2, 'revoke', 'token ' || id || ' ' || role || ':' || name FROM revoked
)
SELECT id, role, name FROM revoked
