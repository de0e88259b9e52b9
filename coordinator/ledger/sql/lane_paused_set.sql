WITH action AS (
    INSERT INTO operator_action (at, actor, action, subject)
    VALUES (tandem_now(), $3, CASE WHEN $2 THEN 'pause' ELSE 'resume' END, 'lane ' || $1)
)
INSERT INTO lane (name, paused) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET paused = excluded.paused
