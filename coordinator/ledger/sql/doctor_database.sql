SELECT now() AS now,
       current_setting('server_version') AS version,
       current_user::text AS who,
       has_schema_privilege('public', 'CREATE') AS may_create
