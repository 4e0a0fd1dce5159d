-- Statements of sync_pipeline/facts/commits.py. They write a page of commits and record which walks are
-- complete.

-- name: begin
-- Starts a walk, or continues the one that was interrupted. A complete walk that is requested again starts
-- over.
INSERT INTO scm.ref_walks AS w (repo_id, tip, covered, generation)
VALUES (%(repo_id)s, %(tip)s, %(covered)s, %(generation)s)
ON CONFLICT (repo_id, tip, covered, generation) DO UPDATE
   SET next_page = CASE WHEN w.completed_at IS NULL THEN w.next_page ELSE 1 END,
       tip_read = w.completed_at IS NULL AND w.tip_read,
       completed_at = NULL
RETURNING walk_id, tip, covered, next_page, tip_read

-- name: record_page
-- Records the page at which a walk continues.
UPDATE scm.ref_walks SET next_page = %(next_page)s, tip_read = %(tip_read)s WHERE walk_id = %(walk_id)s

-- name: complete
-- Marks a walk as complete.
UPDATE scm.ref_walks SET tip_read = TRUE, completed_at = now() WHERE walk_id = %(walk_id)s

-- name: covered
-- Lists tips that need no walk, because a complete walk of this generation read them.
SELECT c.commit_sha
  FROM scm.git_commits AS c
  JOIN scm.ref_walks AS w USING (walk_id)
 WHERE c.repo_id = %(repo_id)s AND c.commit_sha = ANY (%(tips)s) AND c.deleted_at IS NULL
   AND w.completed_at IS NOT NULL AND w.generation = %(generation)s

-- name: count_regressed
-- Counts copies that were not written because they lack stored line counts or parents.
SELECT count(*) AS regressed
  FROM scm.git_commits
 WHERE repo_id = %(repo_id)s
   AND ((commit_sha = ANY (%(without_stats)s) AND (additions IS NOT NULL OR deletions IS NOT NULL))
        OR (commit_sha = ANY (%(without_parents)s) AND parents IS NOT NULL))

-- name: flag_unreached
-- Flags commits that were read without a walk and that no branch or tag reaches.
UPDATE scm.git_commits SET unreachable_since = now()
 WHERE repo_id = %(repo_id)s AND commit_sha = ANY (%(unreached)s)

-- name: stored
-- Lists those of the given commits that have a row, which may be a tombstone.
SELECT commit_sha FROM scm.git_commits WHERE repo_id = %(repo_id)s AND commit_sha = ANY (%(shas)s)

-- name: take_over
-- Assigns commits to this walk if no complete walk of this generation has stored them. It makes no new
-- version.
UPDATE scm.git_commits AS c SET walk_id = w.walk_id
  FROM scm.ref_walks AS w
 WHERE w.walk_id = %(walk_id)s AND c.repo_id = %(repo_id)s AND c.commit_sha = ANY (%(shas)s)
   AND c.walk_id IS DISTINCT FROM w.walk_id
   AND NOT EXISTS (SELECT FROM scm.ref_walks AS o
                    WHERE o.walk_id = c.walk_id AND o.completed_at IS NOT NULL
                      AND o.generation >= w.generation)

-- name: resolve
-- Ends the quarantine of commits that are stored now, and the deferred fetches of details that were read.
WITH settled AS (
    UPDATE scm.deferred_fetches AS o SET resolved_at = now()
      FROM scm.git_commits AS c
     WHERE c.repo_id = %(repo_id)s AND c.commit_sha = ANY (%(shas)s)
       AND o.repo_id = c.repo_id AND o.job_type = 'commits' AND o.resolved_at IS NULL
       AND o.natural_key = c.commit_sha
       AND ((o.detail = 'stats' AND c.additions IS NOT NULL)
            OR (o.detail = 'parents' AND c.parents IS NOT NULL))
)
UPDATE scm.quarantine SET resolved_at = now()
 WHERE repo_id = %(repo_id)s AND job_type = 'commits' AND resolved_at IS NULL
   AND natural_key = ANY (%(shas)s)

-- name: invalidate
-- Makes the next copy of each given commit overwrite the stored one.
UPDATE scm.git_commits SET content_hash = '', batch_id = 0
 WHERE repo_id = %(repo_id)s AND commit_sha = ANY (%(shas)s)

-- name: of_merge_requests
-- Lists commits of merge requests that have no row. They were squashed, or their branch was deleted before
-- the first visit. Commits in quarantine were tried already.
SELECT DISTINCT ON (m.commit_sha) m.commit_sha, m.flags, m.raw
  FROM scm.mr_commits AS m
 WHERE m.repo_id = %(repo_id)s
   AND NOT EXISTS (SELECT FROM scm.git_commits AS c
                    WHERE c.repo_id = m.repo_id AND c.commit_sha = m.commit_sha)
   AND NOT EXISTS (SELECT FROM scm.quarantine AS q
                    WHERE q.repo_id = m.repo_id AND q.job_type = 'commits' AND q.resolved_at IS NULL
                      AND q.natural_key = m.commit_sha)
 ORDER BY m.commit_sha, m.mr_iid DESC
 LIMIT %(limit)s

-- name: without_parents
-- Lists commits whose parents were never requested, or not for a while. Commits with a deferred fetch are
-- retried through it.
SELECT c.commit_sha FROM scm.git_commits AS c
 WHERE c.repo_id = %(repo_id)s AND c.parents IS NULL AND c.deleted_at IS NULL
   AND (c.parents_asked_at IS NULL OR c.parents_asked_at < now() - %(again)s)
   AND NOT EXISTS (SELECT FROM scm.deferred_fetches AS o
                    WHERE o.repo_id = c.repo_id AND o.job_type = 'commits' AND o.resolved_at IS NULL
                      AND o.natural_key = c.commit_sha AND o.detail = 'parents')
 ORDER BY c.parents_asked_at NULLS FIRST, c.commit_sha
 LIMIT %(limit)s

-- name: parents_asked
-- Records that the server does not have these commits. Their parents are requested again later, without a
-- deferred fetch.
WITH settled AS (
    UPDATE scm.deferred_fetches SET resolved_at = now()
     WHERE repo_id = %(repo_id)s AND job_type = 'commits' AND resolved_at IS NULL
       AND natural_key = ANY (%(shas)s) AND detail = 'parents'
)
UPDATE scm.git_commits SET parents_asked_at = now()
 WHERE repo_id = %(repo_id)s AND commit_sha = ANY (%(shas)s) AND parents IS NULL

-- name: count_commits
-- Counts the stored commits, for the comparison with the source's own number.
SELECT count(*) AS commits FROM scm.git_commits
 WHERE repo_id = %(repo_id)s AND deleted_at IS NULL AND unreachable_since IS NULL
