-- Statements of sync_pipeline/database/diagnosis.py. They read the state of a PostgreSQL server and our
-- rights on it.

-- name: inspect
-- Reads the version of the server, its state and the rights of the account. Only a superuser may see where
-- the files are.
SELECT current_setting('server_version_num')::int AS version_number,
       current_setting('server_version') AS version,
       pg_encoding_to_char(d.encoding) AS encoding,
       pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean AS read_only,
       has_database_privilege(d.oid, 'CREATE') AS may_create,
       has_database_privilege(d.oid, 'TEMPORARY') AS may_stage,
       current_schema() IS NOT NULL AS has_schema,
       coalesce(has_schema_privilege(current_schema(), 'CREATE'), FALSE) AS may_create_tables,
       to_regclass('runs') IS NOT NULL AS has_runs,
       to_regnamespace('scm') IS NOT NULL AS has_scm,
       CASE WHEN (SELECT rolsuper FROM pg_roles WHERE rolname = current_user)
            THEN current_setting('data_directory') END AS data_directory
  FROM pg_database AS d
 WHERE d.datname = current_database()

-- name: missing_rights
-- Lists the rights on our tables that the account lacks. The marker row needs only the right to read.
SELECT n.nspname || '.' || c.relname AS name, string_agg(wanted, ', ' ORDER BY wanted) AS rights
  FROM pg_class AS c
  JOIN pg_namespace AS n ON n.oid = c.relnamespace
 CROSS JOIN unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS wanted
 WHERE n.nspname = 'scm' AND c.relkind IN ('r', 'p')
   AND (c.relname <> 'deployment' OR wanted = 'SELECT')
   AND NOT (has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, wanted))
 GROUP BY 1
 ORDER BY 1
