SELECT
    current_setting('server_version') AS postgres,
    (SELECT version_num FROM alembic_version) AS "schema",
    tandem_now() AS now
