-- Statements of sync_pipeline/database/migrations.py. They record the applied migrations and compare them
-- with those of this program.

-- name: applied
-- Lists the applied migrations in order.
SELECT migration_id FROM migrations._yoyo_migration ORDER BY applied_at_utc, migration_id

-- name: make_contents
-- Creates the table with the digests of applied migrations. yoyo records only names, and two branches may
-- use one name for different migrations.
CREATE TABLE IF NOT EXISTS migrations.contents (migration_id text PRIMARY KEY, digest text NOT NULL)

-- name: marked
-- Reads the environment that the database belongs to.
SELECT environment FROM scm.deployment

-- name: contents
-- Reads the digests of the applied migrations.
SELECT migration_id, digest FROM migrations.contents

-- name: record
-- Records the digest of an applied migration.
INSERT INTO migrations.contents (migration_id, digest) VALUES (%(id)s, %(digest)s)
ON CONFLICT (migration_id) DO UPDATE SET digest = EXCLUDED.digest

-- name: adopt
-- Records the digest of a migration that an earlier version applied without one.
INSERT INTO migrations.contents (migration_id, digest)
SELECT %(id)s, %(digest)s
 WHERE EXISTS (SELECT FROM migrations._yoyo_migration WHERE migration_id = %(id)s)
ON CONFLICT (migration_id) DO NOTHING

-- name: delete_contents
-- Deletes the digest of a migration that was rolled back.
DELETE FROM migrations.contents WHERE migration_id = %(id)s

-- name: blockers
-- Lists the sessions that block ours, the oldest transaction first.
SELECT pid, coalesce(application_name, ''), coalesce(state, ''),
       coalesce(extract(epoch FROM clock_timestamp() - xact_start), 0)::float8, coalesce(left(query, 120), '')
  FROM pg_stat_activity
 WHERE pid = ANY(pg_blocking_pids(%(pid)s))
 ORDER BY xact_start
 LIMIT 3
