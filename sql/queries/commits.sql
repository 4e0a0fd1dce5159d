-- Statements of sync_pipeline/facts/commits.py: commits of GitLab: how a page of a walk gets into the
-- tables, and which walks are complete.

-- name: begin
-- Makes a walk, or finds the one that was interrupted. One that is asked for again after its end begins anew.
INSERT INTO scm.ref_walks AS w (repo_id, tip, covered, generation)
VALUES (%(repo_id)s, %(tip)s, %(covered)s, %(generation)s)
ON CONFLICT (repo_id, tip, covered, generation) DO UPDATE
   SET next_page = CASE WHEN w.completed_at IS NULL THEN w.next_page ELSE 1 END,
       tip_read = w.completed_at IS NULL AND w.tip_read,
       completed_at = NULL
RETURNING walk_id, tip, covered, next_page, tip_read

-- name: record_page
UPDATE scm.ref_walks SET next_page = %(next_page)s, tip_read = %(tip_read)s WHERE walk_id = %(walk_id)s

-- name: complete
UPDATE scm.ref_walks SET tip_read = TRUE, completed_at = now() WHERE walk_id = %(walk_id)s

-- name: covered
-- Tips that need no walk: a complete one of this generation went through them.
SELECT c.commit_sha
  FROM scm.git_commits AS c
  JOIN scm.ref_walks AS w USING (walk_id)
 WHERE c.repo_id = %(repo_id)s AND c.commit_sha = ANY (%(tips)s) AND c.deleted_at IS NULL
   AND w.completed_at IS NOT NULL AND w.generation = %(generation)s

-- name: count_regressed
-- Copies that would have lost the numbers of lines or the parents: stored, not written, and without them.
SELECT count(*) AS regressed
  FROM scm.git_commits
 WHERE repo_id = %(repo_id)s
   AND ((commit_sha = ANY (%(without_stats)s) AND (additions IS NOT NULL OR deletions IS NOT NULL))
        OR (commit_sha = ANY (%(without_parents)s) AND parents IS NOT NULL))

-- name: flag_unreached
-- Commits that came without a walk prove nothing about refs: those that no branch and no tag reaches are
-- flagged.
UPDATE scm.git_commits SET unreachable_since = now()
 WHERE repo_id = %(repo_id)s AND commit_sha = ANY (%(unreached)s)

-- name: stored
-- Which of some commits have a row, be it a tombstone.
SELECT commit_sha FROM scm.git_commits WHERE repo_id = %(repo_id)s AND commit_sha = ANY (%(shas)s)

-- name: take_over
-- A walk takes over what only walks have stored that prove nothing (any more): by date, interrupted, of an
-- older generation. This is bookkeeping and no new version.
UPDATE scm.git_commits AS c SET walk_id = w.walk_id
  FROM scm.ref_walks AS w
 WHERE w.walk_id = %(walk_id)s AND c.repo_id = %(repo_id)s AND c.commit_sha = ANY (%(shas)s)
   AND c.walk_id IS DISTINCT FROM w.walk_id
   AND NOT EXISTS (SELECT FROM scm.ref_walks AS o
                    WHERE o.walk_id = c.walk_id AND o.completed_at IS NOT NULL
                      AND o.generation >= w.generation)

-- name: resolve
-- A row that could be stored after all leaves quarantine; numbers of lines and parents that are stored are no
-- longer owed.
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
-- Before copies are stored that win over what is there: nothing that is kept about these is relied on.
UPDATE scm.git_commits SET content_hash = '', batch_id = 0
 WHERE repo_id = %(repo_id)s AND commit_sha = ANY (%(shas)s)

-- name: of_merge_requests
-- Commits that merge requests list and that have no row: squashed, or of a branch that was deleted before the
-- first visit. Commits in quarantine were tried already.
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
-- Commits whose parents are to be read: not asked for yet, or a while ago. Commits with a deferred fetch are
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
-- The server does not have these commits: their parents are no deferred fetch, and are requested later.
WITH settled AS (
    UPDATE scm.deferred_fetches SET resolved_at = now()
     WHERE repo_id = %(repo_id)s AND job_type = 'commits' AND resolved_at IS NULL
       AND natural_key = ANY (%(shas)s) AND detail = 'parents'
)
UPDATE scm.git_commits SET parents_asked_at = now()
 WHERE repo_id = %(repo_id)s AND commit_sha = ANY (%(shas)s) AND parents IS NULL

-- name: count_commits
-- What is compared with the source's own number.
SELECT count(*) AS commits FROM scm.git_commits
 WHERE repo_id = %(repo_id)s AND deleted_at IS NULL AND unreachable_since IS NULL
