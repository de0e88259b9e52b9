SELECT worker, key FROM invitation WHERE id = $1 AND expires_at > tandem_now()
