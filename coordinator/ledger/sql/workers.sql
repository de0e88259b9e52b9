SELECT
    name, nkey, instance, retired, first_seen_at, seen_at, presence, wanted, rules,
    extract(epoch FROM tandem_now() - seen_at)::float8 AS age_s
FROM worker
ORDER BY name
