-- Statements of sync_pipeline/facts/merge_requests.py. They write merge requests with their versions and
-- commits.

-- name: replace
-- Marks merge requests whose number a newer one has now. A number is unique only together with gitlab_id,
-- because a restored server assigns numbers again. The earlier merge request is gone and keeps its rows.
UPDATE scm.mrs AS m
   SET replaced_id = m.gitlab_id, deleted_at = coalesce(m.deleted_at, now()), batch_id = %(batch_id)s,
       version = m.version + 1, stored_at = now()
  FROM json_to_recordset(%(rows)s) AS s (iid bigint, gitlab_id bigint)
 WHERE m.repo_id = %(repo_id)s AND m.iid = s.iid AND m.replaced_id = 0 AND m.gitlab_id <> s.gitlab_id
RETURNING m.iid

-- name: restore
-- Restores a replaced merge request that the server shows again. The new copy overwrites what is stored.
UPDATE scm.mrs AS m
   SET replaced_id = 0, deleted_at = NULL, content_hash = '', updated_at = '-infinity', batch_id = 0,
       children_head = NULL, children_target = NULL
  FROM json_to_recordset(%(rows)s) AS s (iid bigint, gitlab_id bigint)
 WHERE m.repo_id = %(repo_id)s AND m.iid = s.iid AND m.replaced_id = s.gitlab_id

-- name: changed_sets
-- Returns which versions and commits differ from the stored ones, before the upsert overwrites their
-- hashes.
SELECT s.iid,
       s.versions_hash IS NOT NULL AND s.versions_hash IS DISTINCT FROM m.versions_hash AS versions,
       s.commits_hash IS NOT NULL AND s.commits_hash IS DISTINCT FROM m.commits_hash AS commits
  FROM json_to_recordset(%(rows)s) AS s (iid bigint, versions_hash bytea, commits_hash bytea)
  LEFT JOIN scm.mrs AS m ON m.repo_id = %(repo_id)s AND m.iid = s.iid AND m.replaced_id = 0

-- name: read
-- Records the reading of every copy that is not older than the stored one. It makes no new version. The
-- head of the children is known if both sets came with this copy.
UPDATE scm.mrs AS m
   SET read_at = now(),
       children_head = CASE WHEN s.has_children THEN s.head_sha ELSE m.children_head END,
       children_target = CASE WHEN s.has_children THEN s.target_branch ELSE m.children_target END,
       versions_read_at = CASE WHEN s.has_children THEN now() ELSE m.versions_read_at END
  FROM json_to_recordset(%(rows)s)
    AS s (iid bigint, updated_at timestamptz, head_sha text, target_branch text, has_children boolean)
 WHERE m.repo_id = %(repo_id)s AND m.iid = s.iid AND m.replaced_id = 0 AND m.updated_at = s.updated_at
   AND m.batch_id <= %(batch_id)s
RETURNING m.iid

-- name: drop_versions
-- Deletes the versions of merge requests before they are replaced as a set.
DELETE FROM scm.mr_versions WHERE repo_id = %(repo_id)s AND mr_iid = ANY (%(iids)s) AND replaced_id = 0

-- name: drop_commits
-- Deletes the commits of merge requests before they are replaced as a set.
DELETE FROM scm.mr_commits WHERE repo_id = %(repo_id)s AND mr_iid = ANY (%(iids)s) AND replaced_id = 0

-- name: delete_unlisted
-- Ends the records of a part of the list that could not be read before, for one of two job types.
WITH settled AS (
    UPDATE scm.deferred_fetches SET resolved_at = now()
     WHERE repo_id = %(repo_id)s AND job_type = %(job_type)s AND resolved_at IS NULL
       AND natural_key = %(key)s
)
UPDATE scm.quarantine SET resolved_at = now()
 WHERE repo_id = %(repo_id)s AND job_type = %(job_type)s AND resolved_at IS NULL AND natural_key = %(key)s

-- name: stored_heads
-- Reads for which head, target branch and comparison the versions and commits of merge requests are stored,
-- or planned to be read. GitLab makes a new comparison when the target branch of an open one moves past it,
-- with the same head. So it is unsure after such a move, and where the branches are unknown.
SELECT m.iid, m.updated_at, m.children_head, m.children_target, m.head_sha, m.target_branch, m.base_sha, m.start_sha,
       m.status = 'open'
       AND NOT EXISTS (SELECT FROM scm.refs AS f
                        WHERE f.repo_id = m.repo_id AND f.kind = 'branch' AND f.name = m.target_branch
                          AND f.deleted_at IS NULL
                          AND f.moved_at < m.versions_read_at - interval '10 minutes') AS is_unsure,
       coalesce(o.failed, FALSE) AS has_failed, coalesce(o.planned, FALSE) AS is_planned
  FROM scm.mrs AS m
  CROSS JOIN LATERAL (SELECT bool_or(NOT d.is_planned) AS failed, bool_or(d.is_planned) AS planned
                        FROM scm.deferred_fetches AS d
                       WHERE d.repo_id = m.repo_id AND d.job_type = 'merge_requests'
                         AND d.natural_key = m.iid::text AND d.resolved_at IS NULL) AS o
 WHERE m.repo_id = %(repo_id)s AND m.iid = ANY (%(iids)s) AND m.replaced_id = 0 AND m.deleted_at IS NULL
   AND m.gitlab_id = ANY (%(ids)s)

-- name: stored_commits
-- Reads commits of the repository, as the list of a merge request has them.
SELECT commit_sha AS sha, title, message, author_name, author_email, authored_at, committer_name,
       committer_email, committed_at, flags, raw
  FROM scm.git_commits
 WHERE repo_id = %(repo_id)s AND commit_sha = ANY (%(shas)s)

-- name: commit_chains
-- Follows first parents from the head of each merge request to its merge base. A chain without a merge has
-- exactly its commits, because no commit above the merge base is in the target branch.
WITH RECURSIVE chain AS (
    SELECT s.iid, s.base, s.head AS sha, 0 AS position
      FROM json_to_recordset(%(rows)s) AS s (iid bigint, head text, base text)
    UNION ALL
    SELECT c.iid, c.base, g.parents[1], c.position + 1
      FROM chain AS c
      JOIN scm.git_commits AS g ON g.repo_id = %(repo_id)s AND g.commit_sha = c.sha
     WHERE c.sha <> c.base AND cardinality(g.parents) = 1 AND c.position < %(limit)s
)
SELECT iid, array_agg(sha ORDER BY position) AS shas FROM chain
 GROUP BY iid, base
HAVING (array_agg(sha ORDER BY position DESC))[1] = base

-- name: unread_heads
-- Lists open merge requests whose branch moved, in this repository or in a registered fork. The margin
-- covers a branch that moved between the server's response and read_at.
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
-- Lists open merge requests for the rolling scan, the longest unread first.
SELECT iid FROM scm.mrs
 WHERE repo_id = %(repo_id)s AND status = 'open' AND deleted_at IS NULL AND read_at < now() - %(older_than)s
 ORDER BY read_at, iid
 LIMIT %(limit)s

-- name: old_addresses
-- Lists merge requests that were last read under an earlier path of the project. Each is read once after a
-- move, even if the server's addresses never hold the path.
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
-- Makes merge requests that a scan requested without success wait for its next round.
UPDATE scm.mrs SET read_at = now() WHERE repo_id = %(repo_id)s AND iid = ANY (%(iids)s) AND replaced_id = 0

-- name: invalidate
-- Makes the next copy of each given merge request overwrite the stored one.
UPDATE scm.mrs
   SET content_hash = '', updated_at = '-infinity', batch_id = 0, versions_hash = NULL, commits_hash = NULL,
       children_head = NULL, children_target = NULL
 WHERE repo_id = %(repo_id)s AND iid = ANY (%(iids)s) AND replaced_id = 0

-- name: count_merge_requests
-- Counts the stored merge requests, for the comparison with the source's own number.
SELECT count(*) AS merge_requests FROM scm.mrs WHERE repo_id = %(repo_id)s AND deleted_at IS NULL
