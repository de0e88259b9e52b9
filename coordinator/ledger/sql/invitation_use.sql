-- Use an invitation with a public key: for the first time, or again with the same one (the answer was lost).
WITH used AS (
    UPDATE invitation AS i
    SET public_key = $2, used_at = coalesce(i.used_at, tandem_now())
    FROM invitation AS was
    WHERE
        i.id = $1 AND was.worker = i.worker
        AND i.expires_at > tandem_now() AND (i.public_key IS NULL OR i.public_key = $2)
    RETURNING i.worker, was.used_at IS NULL AS first
), action AS (
    INSERT INTO operator_action (at, actor, action, subject)
    SELECT tandem_now(), worker, 'join', 'worker ' || worker FROM used WHERE first
)
SELECT worker FROM used
