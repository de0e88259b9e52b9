DELETE FROM invitation WHERE worker = $1 RETURNING expires_at > tandem_now() AS was_open
