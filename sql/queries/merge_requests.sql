-- Statements of sync_pipeline/facts/merge_requests.py: merge requests of GitLab: how a page of them gets
-- into the tables, with versions and commits.

-- name: replace
-- A number names a merge request only together with its gitlab_id: a server that was restored from a backup
-- gives numbers a second time. The earlier merge request is gone and keeps its rows.
UPDATE scm.mrs AS m
   SET replaced_id = m.gitlab_id, deleted_at = coalesce(m.deleted_at, now()), batch_id = %(batch_id)s,
       version = m.version + 1, stored_at = now()
  FROM json_to_recordset(%(rows)s) AS s (iid bigint, gitlab_id bigint)
 WHERE m.repo_id = %(repo_id)s AND m.iid = s.iid AND m.replaced_id = 0 AND m.gitlab_id <> s.gitlab_id
RETURNING m.iid

-- name: restore
-- One that was replaced is there again: the copy that came wins over what is kept of it.
UPDATE scm.mrs AS m
   SET replaced_id = 0, deleted_at = NULL, content_hash = '', updated_at = '-infinity', batch_id = 0,
       children_head = NULL, children_target = NULL
  FROM json_to_recordset(%(rows)s) AS s (iid bigint, gitlab_id bigint)
 WHERE m.repo_id = %(repo_id)s AND m.iid = s.iid AND m.replaced_id = s.gitlab_id

-- name: changed_sets
-- Which sets of children are others than those that are stored; asked before the upsert overwrites the hashes.
SELECT s.iid,
       s.versions_hash IS NOT NULL AND s.versions_hash IS DISTINCT FROM m.versions_hash AS versions,
       s.commits_hash IS NOT NULL AND s.commits_hash IS DISTINCT FROM m.commits_hash AS commits
  FROM json_to_recordset(%(rows)s) AS s (iid bigint, versions_hash bytea, commits_hash bytea)
  LEFT JOIN scm.mrs AS m ON m.repo_id = %(repo_id)s AND m.iid = s.iid AND m.replaced_id = 0

-- name: read
-- Bookkeeping of every copy that is not older than what is stored: no new version. The head of the children is
-- known where both sets of it came with this copy.
UPDATE scm.mrs AS m
   SET read_at = now(),
       children_head = CASE WHEN s.has_children THEN s.head_sha ELSE m.children_head END,
       children_target = CASE WHEN s.has_children THEN s.target_branch ELSE m.children_target END
  FROM json_to_recordset(%(rows)s)
    AS s (iid bigint, updated_at timestamptz, head_sha text, target_branch text, has_children boolean)
 WHERE m.repo_id = %(repo_id)s AND m.iid = s.iid AND m.replaced_id = 0 AND m.updated_at = s.updated_at
   AND m.batch_id <= %(batch_id)s
RETURNING m.iid

-- name: drop_versions
-- Children are replaced as a set.
DELETE FROM scm.mr_versions WHERE repo_id = %(repo_id)s AND mr_iid = ANY (%(iids)s) AND replaced_id = 0

-- name: drop_commits
DELETE FROM scm.mr_commits WHERE repo_id = %(repo_id)s AND mr_iid = ANY (%(iids)s) AND replaced_id = 0

-- name: delete_unlisted
-- The rows of the list between two times came after all, for one of the two job types.
WITH settled AS (
    UPDATE scm.deferred_fetches SET resolved_at = now()
     WHERE repo_id = %(repo_id)s AND job_type = %(job_type)s AND resolved_at IS NULL
       AND natural_key = %(key)s
)
UPDATE scm.quarantine SET resolved_at = now()
 WHERE repo_id = %(repo_id)s AND job_type = %(job_type)s AND resolved_at IS NULL AND natural_key = %(key)s

-- name: known_heads
-- Spares asking for versions and commits again; not where one of them is deferred, or was when the merge
-- request got its tombstone.
SELECT m.iid, m.children_head, m.children_target
  FROM scm.mrs AS m
 WHERE m.repo_id = %(repo_id)s AND m.iid = ANY (%(iids)s) AND m.replaced_id = 0
   AND m.children_head IS NOT NULL AND m.deleted_at IS NULL
   AND (%(ids)s::bigint[] IS NULL OR m.gitlab_id = ANY (%(ids)s))
   AND NOT EXISTS (SELECT FROM scm.deferred_fetches AS o
                    WHERE o.repo_id = m.repo_id AND o.job_type = 'merge_requests'
                      AND o.natural_key = m.iid::text AND o.resolved_at IS NULL)

-- name: unread_heads
-- Open merge requests whose branch leads elsewhere, in this repository or in a fork that is registered too.
-- The margin is for a branch that moved between the answer of the server and read_at.
SELECT DISTINCT m.iid
  FROM scm.mrs AS m
  JOIN scm.repos AS s
    ON (s.repo_id = m.repo_id AND m.source_project_id = %(project_id)s)
    OR (s.kind = 'gitlab' AND s.instance = %(instance)s AND s.project_id = m.source_project_id
        AND m.source_project_id <> %(project_id)s AND s.lifecycle = 'active')
  JOIN scm.refs AS f
    ON f.repo_id = s.repo_id AND f.kind = 'branch' AND f.name = m.source_branch AND f.deleted_at IS NULL
 WHERE m.repo_id = %(repo_id)s AND m.status = 'open' AND m.deleted_at IS NULL
   AND f.tip IS DISTINCT FROM m.head_sha AND f.moved_at > m.read_at - interval '10 minutes'
 ORDER BY m.iid

-- name: oldest_read_open
-- The rolling scan of open merge requests.
SELECT iid FROM scm.mrs
 WHERE repo_id = %(repo_id)s AND status = 'open' AND deleted_at IS NULL AND read_at < now() - %(older_than)s
 ORDER BY read_at, iid
 LIMIT %(limit)s

-- name: old_addresses
-- Merge requests that were last read under an earlier path of the project, which their addresses have. Each
-- is read once after a move, so a server whose addresses never hold the path is not read for ever.
SELECT m.iid
  FROM scm.mrs AS m
  JOIN scm.repos AS r ON r.repo_id = m.repo_id
 WHERE m.repo_id = %(repo_id)s AND m.replaced_id = 0 AND m.deleted_at IS NULL
   AND m.read_at < (SELECT max(created_at) FROM scm.repo_events
                     WHERE repo_id = %(repo_id)s AND event = 'moved')
   AND strpos(lower(m.url), '/' || lower(r.project_path) || '/') = 0
 ORDER BY m.iid
 LIMIT %(limit)s

-- name: asked
-- Merge requests that a scan requested and did not get wait for its next round.
UPDATE scm.mrs SET read_at = now() WHERE repo_id = %(repo_id)s AND iid = ANY (%(iids)s) AND replaced_id = 0

-- name: invalidate
-- Before a copy is stored that wins over whatever is there: nothing that is kept about the row is relied on.
UPDATE scm.mrs
   SET content_hash = '', updated_at = '-infinity', batch_id = 0, versions_hash = NULL, commits_hash = NULL,
       children_head = NULL, children_target = NULL
 WHERE repo_id = %(repo_id)s AND iid = ANY (%(iids)s) AND replaced_id = 0

-- name: count_merge_requests
-- What is compared with the source's own number.
SELECT count(*) AS merge_requests FROM scm.mrs WHERE repo_id = %(repo_id)s AND deleted_at IS NULL
