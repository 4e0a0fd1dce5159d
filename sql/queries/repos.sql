-- Statements of sync_pipeline/ledger/repos.py: the catalog's rows: ``scm.repos``, what happened to them,
-- and where the history of all of them begins.

-- name: lock_names
-- One registration at a time chooses names, so that two never choose the same. Until the transaction ends.
SELECT pg_advisory_xact_lock(hashtext('scm repository names'))

-- name: alias
-- The alias of a server: that of the repository registered last there. A repository that was relocated from
-- another server brought an alias along, which stays the other one's while that has a repository.
SELECT r.instance_slug FROM scm.repos AS r
 WHERE r.kind = %(kind)s AND r.instance = %(instance)s
   AND NOT (EXISTS (SELECT FROM scm.repo_events AS e
                     WHERE e.repo_id = r.repo_id AND r.kind = 'svn' AND e.event = 'moved'
                       AND r.instance <> coalesce(
                           nullif(substring(e.old_value, '^[^:]+://(?:[^/@]*@)?([^/]*)'), ''), 'local'))
            AND EXISTS (SELECT FROM scm.repos AS o
                         WHERE o.instance_slug = r.instance_slug AND o.instance <> r.instance))
 ORDER BY r.repo_id DESC
 LIMIT 1

-- name: owner
-- Which server has an alias, where one has it.
SELECT kind, instance FROM scm.repos WHERE instance_slug = %(alias)s ORDER BY repo_id LIMIT 1

-- name: taken
-- Whether a key of an asset is taken, also by a retired repository.
SELECT 1 FROM scm.repos WHERE instance_slug = %(alias)s AND slug = %(slug)s

-- name: next_id
SELECT nextval(pg_get_serial_sequence('scm.repos', 'repo_id')) AS repo_id

-- name: insert_svn
-- Makes the row unless the place is registered and active.
INSERT INTO scm.repos
       (repo_id, kind, instance, instance_slug, tenant, slug, url, svn_uuid, svn_root, svn_prefix)
OVERRIDING SYSTEM VALUE
VALUES (%(repo_id)s, 'svn', %(instance)s, %(alias)s, %(tenant)s, %(slug)s, %(url)s, %(svn_uuid)s,
        %(svn_root)s, %(svn_prefix)s)
ON CONFLICT (kind, md5(url)) WHERE lifecycle = 'active' DO NOTHING
RETURNING *

-- name: insert_gitlab
-- Makes the row unless the project is registered and active.
INSERT INTO scm.repos
       (repo_id, kind, instance, instance_slug, tenant, slug, url, project_id, project_path, default_branch,
        root_id)
OVERRIDING SYSTEM VALUE
VALUES (%(repo_id)s, 'gitlab', %(instance)s, %(alias)s, %(tenant)s, %(slug)s, %(url)s, %(project_id)s,
        %(project_path)s, %(default_branch)s, %(root_id)s)
ON CONFLICT DO NOTHING
RETURNING *

-- name: get
-- One repository by its key.
SELECT * FROM scm.repos WHERE repo_id = %(repo_id)s

-- name: find
-- The repositories that a person's name for one may mean; which of them it is, is the catalog's rule.
SELECT * FROM scm.repos
 WHERE kind = %(kind)s
   AND CASE kind WHEN 'svn' THEN md5(url) = md5(%(address)s) AND url = %(address)s
                 ELSE project_id::text = %(address)s
                   OR lower(%(address)s)
                      IN (lower(project_path), lower(url),
                          lower(left(url, -length('/projects/' || project_id)) || '/' || project_path)) END

-- name: by_project
-- The active repository of a project.
SELECT * FROM scm.repos
 WHERE kind = 'gitlab' AND instance = %(instance)s AND project_id = %(project_id)s AND lifecycle = 'active'

-- name: by_slug
-- Repositories by the second part of their asset key, which one of each server may have; or by the first two.
SELECT * FROM scm.repos
 WHERE slug = %(slug)s AND (instance_slug = %(alias)s OR %(alias)s = '')
 ORDER BY repo_id

-- name: list
-- The whole catalog.
SELECT * FROM scm.repos WHERE lifecycle = 'active' OR %(retired)s ORDER BY repo_id

-- name: retire
-- Ends the syncing of a repository; its rows stay. No row if it was retired before. Only one that discovery
-- retires keeps the mark of having vanished: another one stays retired until a person says otherwise.
UPDATE scm.repos
   SET lifecycle = 'retired', retired_reason = %(reason)s, updated_at = now(),
       vanished_since = CASE WHEN %(vanished)s THEN vanished_since END
 WHERE repo_id = %(repo_id)s AND lifecycle = 'active'
RETURNING repo_id

-- name: reactivate_svn
-- A retired repository that is still the same one is taken up again with its rows and its assets. One whose
-- history was rewritten has the same UUID and is not.
UPDATE scm.repos
   SET lifecycle = 'active', retired_reason = NULL, updated_at = now()
 WHERE repo_id = (SELECT repo_id FROM scm.repos
                   WHERE kind = 'svn' AND md5(url) = md5(%(url)s) AND url = %(url)s AND lifecycle = 'retired'
                     AND svn_uuid = %(svn_uuid)s AND svn_root = %(svn_root)s
                     AND NOT EXISTS (SELECT FROM scm.sync_watermarks AS w
                                      WHERE w.repo_id = repos.repo_id AND w.access = 'replaced')
                   ORDER BY repo_id DESC
                   LIMIT 1)
   AND lifecycle = 'retired'
RETURNING *

-- name: relocate
-- The new address of a repository; its asset key, tenant, rows and coverage stay.
UPDATE scm.repos
   SET url = %(url)s, instance = %(instance)s, svn_root = %(svn_root)s, updated_at = now()
 WHERE repo_id = %(repo_id)s AND kind = 'svn' AND lifecycle = 'active' AND url = %(old_url)s
RETURNING repo_id

-- name: reset_access
-- What was wrong at the old address says nothing about the new one. But a repository that was replaced needs
-- the proof of its whole history, and relocating compares only the newest revisions.
UPDATE scm.sync_watermarks
   SET access = 'ok', access_detail = NULL, access_since = now()
 WHERE repo_id = %(repo_id)s AND access IN ('denied', 'moved', 'gone')

-- name: reset_hint
-- Neither does what the sensor saw there.
DELETE FROM scm.change_hints WHERE repo_id = %(repo_id)s

-- name: copies
-- Active repositories that are the same one, or copies of each other.
SELECT * FROM scm.repos
 WHERE kind = 'svn' AND lifecycle = 'active' AND svn_uuid = %(svn_uuid)s AND svn_prefix = %(svn_prefix)s
 ORDER BY repo_id

-- name: reactivate_gitlab
-- The same for a project, which its number tells. Discovery takes up only what it retired itself.
UPDATE scm.repos
   SET lifecycle = 'active', retired_reason = NULL, vanished_since = NULL, missing_confirmations = 0,
       root_id = coalesce(%(root_id)s, root_id), updated_at = now()
 WHERE repo_id = (SELECT repo_id FROM scm.repos
                   WHERE kind = 'gitlab' AND instance = %(instance)s AND project_id = %(project_id)s
                   ORDER BY lifecycle = 'active' DESC, repo_id DESC
                   LIMIT 1)
   AND lifecycle = 'retired'
   AND (vanished_since IS NOT NULL OR NOT %(only_vanished)s)
RETURNING *

-- name: known
-- What a look at a project is compared with. The state archived is that of the last such event.
SELECT r.project_path, r.default_branch, r.tenant, r.marked_for_deletion_on,
       coalesce((SELECT e.event = 'archived' FROM scm.repo_events AS e
                  WHERE e.repo_id = r.repo_id AND e.event IN ('archived', 'unarchived')
                  ORDER BY e.event_id DESC
                  LIMIT 1), FALSE) AS archived
  FROM scm.repos AS r
 WHERE r.repo_id = %(repo_id)s

-- name: lock
-- Holds the row, so that of two visits that see the same change one writes it.
SELECT repo_id FROM scm.repos WHERE repo_id = %(repo_id)s FOR NO KEY UPDATE

-- name: seen
-- What a look showed, where it showed anything.
UPDATE scm.repos
   SET project_path = %(path)s, default_branch = %(default_branch)s, tenant = %(tenant)s,
       marked_for_deletion_on = %(marked_on)s, updated_at = now()
 WHERE repo_id = %(repo_id)s

-- name: set_tenant
-- A person gives it to another owner, or it moved to one.
UPDATE scm.repos SET tenant = %(tenant)s, updated_at = now()
 WHERE repo_id = %(repo_id)s AND tenant <> %(tenant)s

-- name: event
-- Something happened to a repository as a whole.
INSERT INTO scm.repo_events (repo_id, event, old_value, new_value, actor, reason)
VALUES (%(repo_id)s, %(event)s, %(old)s, %(new)s, %(actor)s, %(reason)s)

-- name: events
-- What happened to a repository, oldest first, for a person.
SELECT event, old_value, new_value, actor, reason, created_at FROM scm.repo_events
 WHERE repo_id = %(repo_id)s
 ORDER BY event_id

-- name: history_start
-- The first day of the daily partitions: it only ever moves to an earlier one. Dates before the floor belong
-- to the window in front of it, dates in the future to nobody.
UPDATE scm.deployment
   SET history_start = least(
           history_start,
           ((SELECT min(ts) FROM scm.git_commits
             WHERE ts >= %(floor)s AND ts <= now()) AT TIME ZONE 'UTC')::date,
           ((SELECT min(created_at) FROM scm.mrs
             WHERE created_at >= %(floor)s AND created_at <= now()) AT TIME ZONE 'UTC')::date)
RETURNING history_start

-- name: begin_history
-- A project that is older than every one before makes the daily partitions begin earlier, before it is read.
UPDATE scm.deployment
   SET history_start = least(history_start, greatest(%(day)s::date, %(floor)s::date))

-- name: head
-- The largest revision known of any SVN repository: how far the blocks of the code location reach.
SELECT greatest(
           (SELECT max(head_rev) FROM scm.sync_watermarks),
           (SELECT max(head_rev) FROM scm.change_hints), 0) AS head_rev

-- name: lock_snapshot
-- One writer of the snapshot at a time, so that an older look at the catalog never replaces a newer one.
SELECT pg_advisory_xact_lock(hashtext('scm catalog snapshot'))

-- name: created
-- The first look tells when a project was created; it never changes.
UPDATE scm.repos SET source_created_at = coalesce(source_created_at, %(created_at)s)
 WHERE repo_id = %(repo_id)s AND source_created_at IS NULL AND %(created_at)s::timestamptz IS NOT NULL

-- name: known_created
SELECT source_created_at FROM scm.repos WHERE repo_id = %(repo_id)s
