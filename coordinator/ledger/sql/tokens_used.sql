-- Keep when tokens were last used, to the minute.
UPDATE access_token SET last_used_at = tandem_now()
WHERE id = ANY ($1::text[]) AND (last_used_at IS NULL OR last_used_at < tandem_now() - interval '1 minute')
