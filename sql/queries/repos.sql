-- Statements of sync_pipeline/ledger/repos.py. They read and write the catalog (``scm.repos``) and the
-- start of its history.

-- name: lock_names
-- Lets one registration at a time choose names, until its transaction ends.
SELECT pg_advisory_xact_lock(hashtext('scm repository names'))

-- name: alias
-- Reads the alias of a server from the repository that was registered last there. A repository relocated
-- from another server keeps that server's alias, which then does not count.
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
-- Reads which server has an alias.
SELECT kind, instance FROM scm.repos WHERE instance_slug = %(alias)s ORDER BY repo_id LIMIT 1

-- name: taken
-- Returns whether an asset key is in use, also by a retired repository.
SELECT 1 FROM scm.repos WHERE instance_slug = %(alias)s AND slug = %(slug)s

-- name: next_id
-- Reserves the id of a new repository.
SELECT nextval(pg_get_serial_sequence('scm.repos', 'repo_id')) AS repo_id

-- name: insert_svn
-- Creates the repository unless its address has an active one.
INSERT INTO scm.repos
       (repo_id, kind, instance, instance_slug, tenant, slug, url, svn_uuid, svn_root, svn_prefix)
OVERRIDING SYSTEM VALUE
VALUES (%(repo_id)s, 'svn', %(instance)s, %(alias)s, %(tenant)s, %(slug)s, %(url)s, %(svn_uuid)s,
        %(svn_root)s, %(svn_prefix)s)
ON CONFLICT (kind, md5(url)) WHERE lifecycle = 'active' DO NOTHING
RETURNING *

-- name: insert_gitlab
-- Creates the repository unless its project has an active one.
INSERT INTO scm.repos
       (repo_id, kind, instance, instance_slug, tenant, slug, url, project_id, project_path, default_branch,
        root_id)
OVERRIDING SYSTEM VALUE
VALUES (%(repo_id)s, 'gitlab', %(instance)s, %(alias)s, %(tenant)s, %(slug)s, %(url)s, %(project_id)s,
        %(project_path)s, %(default_branch)s, %(root_id)s)
ON CONFLICT DO NOTHING
RETURNING *

-- name: get
-- Reads one repository by its id.
SELECT * FROM scm.repos WHERE repo_id = %(repo_id)s

-- name: find
-- Lists the repositories that a person's name may mean. The catalog chooses one of them.
SELECT * FROM scm.repos
 WHERE kind = %(kind)s
   AND CASE kind WHEN 'svn' THEN md5(url) = md5(%(address)s) AND url = %(address)s
                 ELSE project_id::text = %(address)s
                   OR lower(%(address)s)
                      IN (lower(project_path), lower(url),
                          lower(left(url, -length('/projects/' || project_id)) || '/' || project_path)) END

-- name: by_project
-- Reads the active repository of a project.
SELECT * FROM scm.repos
 WHERE kind = 'gitlab' AND instance = %(instance)s AND project_id = %(project_id)s AND lifecycle = 'active'

-- name: by_slug
-- Lists repositories by the second part of their asset key, or by the first two. Each server may have one.
SELECT * FROM scm.repos
 WHERE slug = %(slug)s AND (instance_slug = %(alias)s OR %(alias)s = '')
 ORDER BY repo_id

-- name: list
-- Lists the whole catalog.
SELECT * FROM scm.repos WHERE lifecycle = 'active' OR %(retired)s ORDER BY repo_id

-- name: retire
-- Retires an active repository, whose rows stay. A repository that discovery retires keeps its time of
-- absence. Any other one stays retired until a person decides otherwise.
UPDATE scm.repos
   SET lifecycle = 'retired', retired_reason = %(reason)s, updated_at = now(),
       vanished_since = CASE WHEN %(vanished)s THEN vanished_since END
 WHERE repo_id = %(repo_id)s AND lifecycle = 'active'
RETURNING repo_id

-- name: reactivate_svn
-- Reactivates a retired repository that is still the same one, with its rows and assets. One with a
-- rewritten history has the same UUID and is left out.
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
-- Stores the new address of a repository. Its asset key, tenant, rows and coverage stay.
UPDATE scm.repos
   SET url = %(url)s, instance = %(instance)s, svn_root = %(svn_root)s, updated_at = now()
 WHERE repo_id = %(repo_id)s AND kind = 'svn' AND lifecycle = 'active' AND url = %(old_url)s
RETURNING repo_id

-- name: reset_access
-- Removes access problems of the old address. A replaced repository keeps its state, because relocating
-- compares only the newest revisions.
UPDATE scm.sync_watermarks
   SET access = 'ok', access_detail = NULL, access_since = now()
 WHERE repo_id = %(repo_id)s AND access IN ('denied', 'moved', 'gone')

-- name: reset_hint
-- Removes what the sensor saw at the old address.
DELETE FROM scm.change_hints WHERE repo_id = %(repo_id)s

-- name: copies
-- Lists active repositories with the same UUID and prefix, which may be copies of each other.
SELECT * FROM scm.repos
 WHERE kind = 'svn' AND lifecycle = 'active' AND svn_uuid = %(svn_uuid)s AND svn_prefix = %(svn_prefix)s
 ORDER BY repo_id

-- name: reactivate_gitlab
-- Reactivates the retired repository of a project. Discovery reactivates only what it retired itself.
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
-- Reads the stored facts of a project, to compare them with a response. The last event decides whether it
-- is archived.
SELECT r.project_path, r.default_branch, r.tenant, r.marked_for_deletion_on,
       coalesce((SELECT e.event = 'archived' FROM scm.repo_events AS e
                  WHERE e.repo_id = r.repo_id AND e.event IN ('archived', 'unarchived')
                  ORDER BY e.event_id DESC
                  LIMIT 1), FALSE) AS archived
  FROM scm.repos AS r
 WHERE r.repo_id = %(repo_id)s

-- name: lock
-- Locks the row, so that only one of two visits writes a change that both see.
SELECT repo_id FROM scm.repos WHERE repo_id = %(repo_id)s FOR NO KEY UPDATE

-- name: seen
-- Stores the facts that a visit found.
UPDATE scm.repos
   SET project_path = %(path)s, default_branch = %(default_branch)s, tenant = %(tenant)s,
       marked_for_deletion_on = %(marked_on)s, updated_at = now()
 WHERE repo_id = %(repo_id)s

-- name: set_tenant
-- Assigns the repository to another tenant.
UPDATE scm.repos SET tenant = %(tenant)s, updated_at = now()
 WHERE repo_id = %(repo_id)s AND tenant <> %(tenant)s

-- name: add_job_types
-- Adds optional job types to active GitLab repositories that lack some of them.
UPDATE scm.repos AS r
   SET optional_job_types = ARRAY(SELECT unnest(r.optional_job_types) UNION SELECT unnest(%(job_types)s::text[])
                                   ORDER BY 1),
       updated_at = now()
 WHERE repo_id = ANY (%(repo_ids)s) AND kind = 'gitlab' AND lifecycle = 'active'
   AND NOT r.optional_job_types @> %(job_types)s::text[]
RETURNING *

-- name: event
-- Records an event of a repository as a whole.
INSERT INTO scm.repo_events (repo_id, event, old_value, new_value, actor, reason)
VALUES (%(repo_id)s, %(event)s, %(old)s, %(new)s, %(actor)s, %(reason)s)

-- name: events
-- Lists the events of a repository, oldest first.
SELECT event, old_value, new_value, actor, reason, created_at FROM scm.repo_events
 WHERE repo_id = %(repo_id)s
 ORDER BY event_id

-- name: history_start
-- Moves the first day of the daily partitions back to the oldest fact. Dates before the floor belong to one
-- earlier window. Dates in the future do not count.
UPDATE scm.deployment
   SET history_start = least(
           history_start,
           ((SELECT min(ts) FROM scm.git_commits
             WHERE ts >= %(floor)s AND ts <= now()) AT TIME ZONE 'UTC')::date,
           ((SELECT min(created_at) FROM scm.mrs
             WHERE created_at >= %(floor)s AND created_at <= now()) AT TIME ZONE 'UTC')::date)
RETURNING history_start

-- name: begin_history
-- Moves the first day of the daily partitions back before an older project is read.
UPDATE scm.deployment
   SET history_start = least(history_start, greatest(%(day)s::date, %(floor)s::date))

-- name: head
-- Reads the largest known revision of all SVN repositories, which bounds the blocks of the code location.
SELECT greatest(
           (SELECT max(head_rev) FROM scm.sync_watermarks),
           (SELECT max(head_rev) FROM scm.change_hints), 0) AS head_rev

-- name: lock_snapshot
-- Lets one process at a time write the snapshot, so that an older one never replaces a newer one.
SELECT pg_advisory_xact_lock(hashtext('scm catalog snapshot'))

-- name: created
-- Stores when the project was created, at its first visit. It never changes.
UPDATE scm.repos SET source_created_at = coalesce(source_created_at, %(created_at)s)
 WHERE repo_id = %(repo_id)s AND source_created_at IS NULL AND %(created_at)s::timestamptz IS NOT NULL

-- name: known_created
-- Reads when the project was created.
SELECT source_created_at FROM scm.repos WHERE repo_id = %(repo_id)s
