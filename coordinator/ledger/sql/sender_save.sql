INSERT INTO worker (name, nkey) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET nkey = excluded.nkey
