-- Statements of sync_pipeline/facts/comparison.py: rows as a source has them now, compared with the stored
-- rows, value by value.

-- name: approvals
-- Approvals in force and reviewers that are asked now.
SELECT mr_iid, person, user_id, username, name, approved_at FROM scm.mr_approvals
 WHERE repo_id = %(repo_id)s AND mr_iid = ANY (%(keys)s) AND closed_at IS NULL

-- name: reviewers
SELECT mr_iid, person, user_id, username, name, state, requested_at FROM scm.mr_reviewers
 WHERE repo_id = %(repo_id)s AND mr_iid = ANY (%(keys)s) AND closed_at IS NULL

-- name: merge_requests_in
-- Which stored merge requests were last updated in a window.
SELECT iid, least(updated_at, '9999-01-01') AS updated_at FROM scm.mrs
 WHERE repo_id = %(repo_id)s AND deleted_at IS NULL
   AND (updated_at >= %(since)s OR %(from_beginning)s) AND (updated_at < %(until)s OR %(to_end)s)

-- name: others
-- Merge requests that the source should have, to check whether it shows any at all.
SELECT iid FROM scm.mrs
 WHERE repo_id = %(repo_id)s AND deleted_at IS NULL AND iid <> ALL (%(iids)s)
 ORDER BY iid DESC
 LIMIT %(limit)s

-- name: reviews_in
-- Merge requests with a stored review, by their update when it was read; a review without a reading by the
-- time of its events.
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

-- name: reviews_differ
-- Merge requests whose stored review differs as the list alone shows: never read, read as of another update,
-- another number of comments, or events that are missing and may come back.
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
SELECT mr_iid, hidden_notes FROM scm.mr_reviews
 WHERE repo_id = %(repo_id)s AND mr_iid = ANY (%(iids)s) AND replaced_id = 0 AND hidden_notes > 0

-- name: commits_in
-- Which stored commits were committed in a window; its first and last part hold also what has no date and what
-- lies before and after all that can be covered.
SELECT commit_sha AS sha, ts, unreachable_since IS NOT NULL AS unreachable FROM scm.git_commits
 WHERE repo_id = %(repo_id)s AND deleted_at IS NULL
   AND ((ts >= %(since)s AND ts < %(until)s)
        OR (%(from_beginning)s AND (ts IS NULL OR ts < %(since)s))
        OR (%(to_end)s AND ts >= %(until)s))
 ORDER BY commit_sha

-- name: unstored
-- Commits that are not stored, or only as tombstones, and that a stored one or a covered ref names. Lost are
-- those that a complete walk has stored once: they are missing whatever refs reach.
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
-- The others that covered refs reach: an interrupted walk leaves more.
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
-- The stored columns of some revisions; their paths are compared by a hash over the rows themselves.
SELECT rev_num, author_raw, ts, message, visibility, path_count, flags, meta_json, detail_level, paths_hash
  FROM scm.svn_revisions
 WHERE repo_id = %(repo_id)s AND rev_num >= %(first)s AND rev_num < %(end)s AND deleted_at IS NULL

-- name: paths_in
SELECT rev_num, path, action, kind, copyfrom_path, copyfrom_rev, text_mods, prop_mods
  FROM scm.svn_changed_paths
 WHERE repo_id = %(repo_id)s AND rev_num >= %(first)s AND rev_num < %(end)s
 ORDER BY rev_num, path_no
