-- Statements of sync_pipeline/ledger/discovery.py. They store discovery roots (``scm.discovery_roots``) and
-- compare their listings with the catalog.

-- name: change
-- Gives an existing root, active or retired, new patterns and makes it active.
UPDATE scm.discovery_roots AS r
   SET group_path = %(group_path)s, include = %(include)s, exclude = %(exclude)s, tenant = %(tenant)s,
       lifecycle = 'active'
  FROM (SELECT root_id, lifecycle FROM scm.discovery_roots
         WHERE instance = %(instance)s AND scope = %(scope)s AND group_id IS NOT DISTINCT FROM %(group_id)s
         ORDER BY root_id
         LIMIT 1) AS old
 WHERE r.root_id = old.root_id
RETURNING r.*, old.lifecycle = 'active' AS was_active

-- name: insert
-- Creates a root. The unique index lets only one of several processes succeed.
INSERT INTO scm.discovery_roots (instance, scope, group_id, group_path, include, exclude, tenant)
VALUES (%(instance)s, %(scope)s, %(group_id)s, %(group_path)s, %(include)s, %(exclude)s, %(tenant)s)
ON CONFLICT DO NOTHING
RETURNING *

-- name: get
-- Reads one root by its key.
SELECT * FROM scm.discovery_roots WHERE root_id = %(root_id)s

-- name: list
-- Lists every root, with or without the retired ones.
SELECT * FROM scm.discovery_roots WHERE lifecycle = 'active' OR %(retired)s ORDER BY root_id

-- name: due
-- Lists the active roots that the schedule must visit now.
SELECT * FROM scm.discovery_roots
 WHERE lifecycle = 'active'
   AND (visited_at IS NULL OR visited_at <= clock_timestamp() - make_interval(secs => %(interval)s))
 ORDER BY visited_at NULLS FIRST, root_id

-- name: retire
-- Retires a root. It is no longer visited, and its repositories stay.
UPDATE scm.discovery_roots SET lifecycle = 'retired' WHERE root_id = %(root_id)s AND lifecycle = 'active'
RETURNING root_id

-- name: visited
-- Records the result of a visit. A failure keeps the earlier facts.
UPDATE scm.discovery_roots
   SET visited_at = statement_timestamp(),
       completed_at = CASE WHEN %(error_code)s::text IS NULL THEN statement_timestamp() ELSE completed_at END,
       group_path = coalesce(%(group_path)s, group_path),
       error_code = %(error_code)s,
       error = left(%(error)s, 2000)
 WHERE root_id = %(root_id)s

-- name: projects
-- Lists the catalog's projects on one server, to compare them with a listing. A project has its active
-- repository, else the one retired last.
SELECT DISTINCT ON (r.project_id)
       r.repo_id, r.project_id, r.project_path, r.default_branch, r.lifecycle, r.root_id,
       r.marked_for_deletion_on AS marked_on,
       r.vanished_since IS NOT NULL AS is_vanished,
       coalesce(root.lifecycle = 'active', FALSE) AS has_active_root,
       coalesce((SELECT e.event = 'archived' FROM scm.repo_events AS e
                  WHERE e.repo_id = r.repo_id AND e.event IN ('archived', 'unarchived')
                  ORDER BY e.event_id DESC
                  LIMIT 1), FALSE) AS is_archived
  FROM scm.repos AS r
  LEFT JOIN scm.discovery_roots AS root USING (root_id)
 WHERE r.kind = 'gitlab' AND r.instance = %(instance)s
 ORDER BY r.project_id, r.lifecycle = 'active' DESC, r.repo_id DESC

-- name: adopt
-- Assigns listed repositories to a root, if no other active root lists them.
UPDATE scm.repos SET root_id = %(root_id)s, updated_at = now()
 WHERE repo_id = ANY (%(repo_ids)s) AND lifecycle = 'active'

-- name: seen
-- Clears the count of missing listings for repositories that a listing shows again.
UPDATE scm.repos SET vanished_since = NULL, missing_confirmations = 0, updated_at = now()
 WHERE repo_id = ANY (%(repo_ids)s) AND lifecycle = 'active' AND vanished_since IS NOT NULL
RETURNING repo_id

-- name: missed
-- Counts one more complete listing that does not show these repositories. One is ripe after enough listings
-- and enough time.
UPDATE scm.repos
   SET vanished_since = coalesce(vanished_since, now()), missing_confirmations = missing_confirmations + 1,
       updated_at = now()
 WHERE repo_id = ANY (%(repo_ids)s) AND lifecycle = 'active'
RETURNING repo_id, missing_confirmations = 1 AS is_news,
          missing_confirmations >= %(confirmations)s
          AND vanished_since <= now() - make_interval(secs => %(after)s) AS is_ripe

-- name: leave
-- Removes a repository from its root, which no longer lists the project although it still exists.
UPDATE scm.repos SET root_id = NULL, vanished_since = NULL, missing_confirmations = 0, updated_at = now()
 WHERE repo_id = %(repo_id)s AND lifecycle = 'active'

-- name: counts
-- Counts the repositories of each root, for a report.
SELECT root_id, count(*) FILTER (WHERE lifecycle = 'active') AS active,
       count(*) FILTER (WHERE lifecycle = 'active' AND vanished_since IS NOT NULL) AS vanished
  FROM scm.repos
 WHERE root_id IS NOT NULL
 GROUP BY root_id

-- name: roots_of_repositories
-- Reads the root of each repository, for a report.
SELECT repo_id, root_id FROM scm.repos WHERE root_id IS NOT NULL
