-- Statements of sync_pipeline/facts/comparison.py. They compare rows of the source with the stored rows,
-- value by value.

-- name: approvals
-- Reads the approvals in force of some merge requests.
SELECT mr_iid, person, user_id, username, name, approved_at FROM scm.mr_approvals
 WHERE repo_id = %(repo_id)s AND mr_iid = ANY (%(keys)s) AND closed_at IS NULL

-- name: reviewers
-- Reads the current reviewers of some merge requests.
SELECT mr_iid, person, user_id, username, name, state, requested_at FROM scm.mr_reviewers
 WHERE repo_id = %(repo_id)s AND mr_iid = ANY (%(keys)s) AND closed_at IS NULL

-- name: merge_requests_in
-- Lists stored merge requests that were last updated in a window.
SELECT iid, least(updated_at, '9999-01-01') AS updated_at FROM scm.mrs
 WHERE repo_id = %(repo_id)s AND deleted_at IS NULL
   AND (updated_at >= %(since)s OR %(from_beginning)s) AND (updated_at < %(until)s OR %(to_end)s)

-- name: others
-- Lists stored merge requests outside the given ones, to check whether the source shows any at all.
SELECT iid FROM scm.mrs
 WHERE repo_id = %(repo_id)s AND deleted_at IS NULL AND iid <> ALL (%(iids)s)
 ORDER BY iid DESC
 LIMIT %(limit)s

-- name: reviews_in
-- Lists merge requests with a stored review, by their time of update when it was read. A review that was
-- never read completely counts by the time of its events.
SELECT r.mr_iid AS iid, r.mr_updated_at AS updated_at
  FROM scm.mr_reviews AS r
 WHERE r.repo_id = %(repo_id)s AND r.replaced_id = 0
   AND r.mr_updated_at >= %(since)s AND r.mr_updated_at < %(until)s
   AND EXISTS (SELECT FROM scm.review_events AS e
                WHERE e.repo_id = r.repo_id AND e.mr_iid = r.mr_iid AND e.deleted_at IS NULL)
UNION
SELECT e.mr_iid, min(e.ts)
  FROM scm.review_events AS e
 WHERE e.repo_id = %(repo_id)s AND e.deleted_at IS NULL AND e.ts >= %(since)s AND e.ts < %(until)s
   AND NOT EXISTS (SELECT FROM scm.mr_reviews AS r
                    WHERE r.repo_id = e.repo_id AND r.mr_iid = e.mr_iid AND r.replaced_id = 0
                      AND r.mr_updated_at > '-infinity')
 GROUP BY e.mr_iid

-- name: planned
-- Lists the details of merge requests that are planned to be read.
SELECT natural_key, detail FROM scm.deferred_fetches
 WHERE repo_id = %(repo_id)s AND job_type = %(job_type)s AND is_planned AND resolved_at IS NULL
   AND natural_key = ANY (%(keys)s)

-- name: reviews_differ
-- Lists merge requests whose stored review differs from the list. It was never read, is of another update,
-- has another number of comments, or has missing events.
SELECT s.iid
  FROM json_to_recordset(%(rows)s)
    AS s (iid bigint, gitlab_id bigint, updated_at timestamptz, user_notes_count bigint)
  LEFT JOIN scm.mr_reviews AS r ON r.repo_id = %(repo_id)s AND r.mr_iid = s.iid AND r.replaced_id = 0
 WHERE r.mr_updated_at IS DISTINCT FROM s.updated_at OR r.gitlab_id <> s.gitlab_id
    OR EXISTS (SELECT FROM scm.review_events AS e
                WHERE e.repo_id = %(repo_id)s AND e.mr_iid = s.iid AND e.deleted_at IS NULL
                  AND e.missing_since IS NOT NULL)
    OR (s.user_notes_count IS NOT NULL
        AND s.user_notes_count <> (SELECT count(*) FROM scm.review_events AS e
                                    WHERE e.repo_id = %(repo_id)s AND e.mr_iid = s.iid
                                      AND e.origin = 'note' AND NOT e.is_system AND e.deleted_at IS NULL))

-- name: hidden_notes
-- Reads how many notes of some reviews the token could not see.
SELECT mr_iid, hidden_notes FROM scm.mr_reviews
 WHERE repo_id = %(repo_id)s AND mr_iid = ANY (%(iids)s) AND replaced_id = 0 AND hidden_notes > 0

-- name: commits_in
-- Lists stored commits of a window. Its first and last part also hold commits without a date and those
-- outside everything that can be covered.
SELECT commit_sha AS sha, ts, unreachable_since IS NOT NULL AS unreachable FROM scm.git_commits
 WHERE repo_id = %(repo_id)s AND deleted_at IS NULL
   AND ((ts >= %(since)s AND ts < %(until)s)
        OR (%(from_beginning)s AND (ts IS NULL OR ts < %(since)s))
        OR (%(to_end)s AND ts >= %(until)s))
 ORDER BY commit_sha

-- name: unstored
-- Lists commits that have no live row although a stored commit or a covered ref names them. A commit is
-- lost if a complete walk has stored it once.
SELECT n.sha, bool_or(n.walked)
              AND NOT EXISTS (SELECT FROM scm.git_commits AS o
                               WHERE o.repo_id = %(repo_id)s AND o.commit_sha = n.sha) AS lost
  FROM (SELECT covered_tip AS sha, FALSE AS walked FROM scm.refs
         WHERE repo_id = %(repo_id)s AND deleted_at IS NULL AND covered_tip IS NOT NULL
        UNION ALL
        SELECT p.sha, w.completed_at IS NOT NULL AND c.deleted_at IS NULL
          FROM scm.git_commits AS c
          LEFT JOIN scm.ref_walks AS w USING (walk_id)
         CROSS JOIN LATERAL unnest(c.parents) AS p (sha)
         WHERE c.repo_id = %(repo_id)s) AS n
 WHERE NOT EXISTS (SELECT FROM scm.git_commits AS o
                    WHERE o.repo_id = %(repo_id)s AND o.commit_sha = n.sha AND o.deleted_at IS NULL)
 GROUP BY n.sha

-- name: covered
-- Lists those of the given commits that covered refs reach. An interrupted walk stores more than that.
WITH RECURSIVE reached (sha) AS (
    SELECT covered_tip FROM scm.refs
     WHERE repo_id = %(repo_id)s AND deleted_at IS NULL AND covered_tip IS NOT NULL
    UNION
    SELECT p.sha
      FROM reached AS r
     CROSS JOIN LATERAL (SELECT c.parents FROM scm.git_commits AS c
                          WHERE c.repo_id = %(repo_id)s AND c.commit_sha = r.sha LIMIT 1) AS c
     CROSS JOIN LATERAL unnest(c.parents) AS p (sha)
)
SELECT sha FROM reached WHERE sha = ANY (%(shas)s) ORDER BY sha

-- name: revisions_in
-- Reads the stored revisions of a window. Their paths are compared by a hash.
SELECT rev_num, author_raw, ts, message, visibility, path_count, flags, meta_json, detail_level, paths_hash
  FROM scm.svn_revisions
 WHERE repo_id = %(repo_id)s AND rev_num >= %(first)s AND rev_num < %(end)s AND deleted_at IS NULL

-- name: paths_in
-- Reads the stored changed paths of the revisions of a window.
SELECT rev_num, path, action, kind, copyfrom_path, copyfrom_rev, text_mods, prop_mods
  FROM scm.svn_changed_paths
 WHERE repo_id = %(repo_id)s AND rev_num >= %(first)s AND rev_num < %(end)s
 ORDER BY rev_num, path_no
