-- Statements of sync_pipeline/facts/schema.py. They read the meaning of the tables and columns from the
-- comments in the database.

-- name: describe
-- Lists our tables and views with their columns, in the order of the migrations.
SELECT n.nspname || '.' || c.relname AS name,
       CASE c.relkind WHEN 'v' THEN 'view' WHEN 'm' THEN 'materialized view' ELSE 'table' END AS kind,
       obj_description(c.oid, 'pg_class') AS meaning,
       a.attname AS column_name,
       format_type(a.atttypid, a.atttypmod) AS type,
       a.attnotnull AS required,
       col_description(c.oid, a.attnum) AS column_meaning
  FROM pg_class AS c
  JOIN pg_namespace AS n ON n.oid = c.relnamespace
  JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
 WHERE n.nspname IN ('scm', 'identity') AND c.relkind IN ('r', 'p', 'v', 'm')
 ORDER BY n.nspname DESC, c.relkind = 'v' DESC, c.relname, a.attnum
