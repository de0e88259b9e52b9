-- Keep the rules that a worker is told ($2; NULL: its own count), and that $3 said so. No row: there is no such worker.
WITH told AS (
    UPDATE worker SET rules = $2 WHERE name = $1 RETURNING name
), action AS (
    INSERT INTO operator_action (at, actor, action, subject, note)
    SELECT tandem_now(), $3, 'rules', 'worker ' || name, $4 FROM told
)
SELECT name FROM told
