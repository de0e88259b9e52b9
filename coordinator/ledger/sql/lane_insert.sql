INSERT INTO lane (name) SELECT unnest($1::text[]) ON CONFLICT DO NOTHING
