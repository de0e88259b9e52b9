-- Invite $1; what was open for that name before is void. Those of others that are long over are forgotten.
WITH over AS (
    DELETE FROM invitation WHERE worker <> $1 AND expires_at < tandem_now() - interval '1 day'
), action AS (
    INSERT INTO operator_action (at, actor, action, subject) VALUES (tandem_now(), $4, 'invite', 'worker ' || $1)
)
INSERT INTO invitation (worker, id, key, made_by, made_at, expires_at)
VALUES ($1, $2, $3, $4, tandem_now(), tandem_now() + make_interval(secs => $5))
ON CONFLICT (worker) DO UPDATE
SET
    id = excluded.id, key = excluded.key, made_by = excluded.made_by, made_at = excluded.made_at,
    expires_at = excluded.expires_at, public_key = NULL, used_at = NULL
RETURNING expires_at
