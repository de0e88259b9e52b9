-- A person wants a paused site looked at now.
UPDATE paused_site SET check_at = tandem_now() WHERE source = $1 RETURNING source
