-- Statements of sync_pipeline/database/migrations.py: migrations: bringing a database to the schema this
-- program was written for, and refusing any other.

-- name: applied
-- What was applied, in order.
SELECT migration_id FROM migrations._yoyo_migration ORDER BY applied_at_utc, migration_id

-- name: make_contents
-- The contents of the migrations that were applied. yoyo records names alone; two programs may have different
-- migrations of one name, as from two branches.
CREATE TABLE IF NOT EXISTS migrations.contents (migration_id text PRIMARY KEY, digest text NOT NULL)

-- name: marked
-- Which environment the database belongs to.
SELECT environment FROM scm.deployment

-- name: contents
SELECT migration_id, digest FROM migrations.contents

-- name: record
INSERT INTO migrations.contents (migration_id, digest) VALUES (%(id)s, %(digest)s)
ON CONFLICT (migration_id) DO UPDATE SET digest = EXCLUDED.digest

-- name: adopt
-- Earlier versions recorded no contents: theirs count as those of this program.
INSERT INTO migrations.contents (migration_id, digest)
SELECT %(id)s, %(digest)s
 WHERE EXISTS (SELECT FROM migrations._yoyo_migration WHERE migration_id = %(id)s)
ON CONFLICT (migration_id) DO NOTHING

-- name: delete_contents
DELETE FROM migrations.contents WHERE migration_id = %(id)s

-- name: blockers
-- Who keeps the session from going on, the oldest transaction first.
SELECT pid, coalesce(application_name, ''), coalesce(state, ''),
       coalesce(extract(epoch FROM clock_timestamp() - xact_start), 0)::float8, coalesce(left(query, 120), '')
  FROM pg_stat_activity
 WHERE pid = ANY(pg_blocking_pids(%(pid)s))
 ORDER BY xact_start
 LIMIT 3
