-- Statements of sync_pipeline/facts/commits.py. They write a page of commits and record which walks are
-- complete.

-- name: begin
-- Starts a walk, or continues an open one. One that was read to its end starts over.
INSERT INTO scm.ref_walks AS w (repo_id, tip, covered, generation)
VALUES (%(repo_id)s, %(tip)s, %(covered)s, %(generation)s)
ON CONFLICT (repo_id, tip, covered, generation) WHERE completed_at IS NULL DO UPDATE
   SET next_page = greatest(w.next_page, 1), tip_read = w.tip_read AND w.next_page > 0
RETURNING walk_id, tip, covered, next_page, tip_read

-- name: record_page
-- Records the page at which a walk continues; 0: it was read to its end.
UPDATE scm.ref_walks SET next_page = %(next_page)s, tip_read = %(tip_read)s WHERE walk_id = %(walk_id)s

-- name: list_begun
-- Returns whether the list of all refs was interrupted in this generation.
SELECT 1 FROM scm.ref_walks
 WHERE repo_id = %(repo_id)s AND generation = %(generation)s AND tip = '' AND completed_at IS NULL
   AND next_page > 1

-- name: seen
-- Lists those of the given commits that a walk of this generation read with their parents.
SELECT c.commit_sha
  FROM scm.git_commits AS c
 CROSS JOIN LATERAL (SELECT w.completed_at FROM scm.ref_walks AS w
                      WHERE w.walk_id = c.walk_id AND w.generation = %(generation)s
                      LIMIT 1) AS w
 WHERE c.repo_id = %(repo_id)s AND c.commit_sha = ANY (%(shas)s) AND c.deleted_at IS NULL
   AND (c.parents IS NOT NULL OR w.completed_at IS NOT NULL)

-- name: holes
-- Lists commits that the tips or commits of open walks name and that no walk of this generation read. A commit
-- in quarantine is no hole if a walk passed it and read all of its ancestors. Each inner LIMIT forces a look-up
-- by key, because the planner knows nothing of rows that were just written.
WITH fresh AS MATERIALIZED (
    SELECT c.commit_sha, c.parents,
           c.walk_id = ANY (ARRAY(SELECT walk_id FROM scm.ref_walks
                                   WHERE repo_id = %(repo_id)s AND generation = %(generation)s
                                     AND completed_at IS NULL AND next_page = 0)) AS passed
      FROM scm.git_commits AS c
     WHERE c.walk_id = ANY (ARRAY(SELECT walk_id FROM scm.ref_walks
                                   WHERE repo_id = %(repo_id)s AND generation = %(generation)s
                                     AND completed_at IS NULL))
       AND c.deleted_at IS NULL
), named AS (
    SELECT p.sha, f.passed FROM fresh AS f CROSS JOIN LATERAL unnest(f.parents) AS p (sha)
    UNION ALL
    SELECT commit_sha, passed FROM fresh WHERE parents IS NULL
    UNION ALL
    SELECT sha, FALSE FROM unnest(%(tips)s::text[]) AS t (sha)
)
SELECT n.sha
  FROM named AS n
  LEFT JOIN LATERAL (SELECT c.walk_id, c.parents FROM scm.git_commits AS c
                      WHERE c.repo_id = %(repo_id)s AND c.commit_sha = n.sha AND c.deleted_at IS NULL
                      LIMIT 1) AS c ON TRUE
  LEFT JOIN LATERAL (SELECT c.parents IS NOT NULL OR w.next_page = 0 OR w.completed_at IS NOT NULL AS is_read
                       FROM scm.ref_walks AS w
                      WHERE w.walk_id = c.walk_id AND w.generation = %(generation)s
                      LIMIT 1) AS w ON TRUE
 WHERE w.is_read IS NOT TRUE
 GROUP BY n.sha
HAVING NOT (EXISTS (SELECT FROM scm.quarantine AS q
                     WHERE q.repo_id = %(repo_id)s AND q.job_type = 'commits' AND q.resolved_at IS NULL
                       AND q.natural_key = n.sha)
            AND (bool_or(n.passed)
                 OR EXISTS (SELECT FROM scm.ref_walks AS w
                             WHERE w.repo_id = %(repo_id)s AND w.generation = %(generation)s
                               AND w.completed_at IS NULL AND w.tip = n.sha AND w.next_page = 0)))

-- name: holes_behind
-- Lists the holes that the given tips reach. It follows parents from the tips through commits of open walks.
WITH RECURSIVE named (sha, passed) AS (
    SELECT sha, FALSE FROM unnest(%(tips)s::text[]) AS t (sha)
    UNION
    SELECT p.sha, w.passed
      FROM named AS n
     CROSS JOIN LATERAL (SELECT c.walk_id, c.parents FROM scm.git_commits AS c
                          WHERE c.repo_id = %(repo_id)s AND c.commit_sha = n.sha AND c.deleted_at IS NULL
                          LIMIT 1) AS c
     CROSS JOIN LATERAL (SELECT w.next_page = 0 AS passed FROM scm.ref_walks AS w
                          WHERE w.walk_id = c.walk_id AND w.generation = %(generation)s
                            AND w.completed_at IS NULL
                          LIMIT 1) AS w
     CROSS JOIN LATERAL unnest(c.parents) AS p (sha)
)
SELECT n.sha
  FROM named AS n
  LEFT JOIN LATERAL (SELECT c.walk_id, c.parents FROM scm.git_commits AS c
                      WHERE c.repo_id = %(repo_id)s AND c.commit_sha = n.sha AND c.deleted_at IS NULL
                      LIMIT 1) AS c ON TRUE
  LEFT JOIN LATERAL (SELECT c.parents IS NOT NULL OR w.next_page = 0 OR w.completed_at IS NOT NULL AS is_read
                       FROM scm.ref_walks AS w
                      WHERE w.walk_id = c.walk_id AND w.generation = %(generation)s
                      LIMIT 1) AS w ON TRUE
 WHERE w.is_read IS NOT TRUE
 GROUP BY n.sha
HAVING NOT (EXISTS (SELECT FROM scm.quarantine AS q
                     WHERE q.repo_id = %(repo_id)s AND q.job_type = 'commits' AND q.resolved_at IS NULL
                       AND q.natural_key = n.sha)
            AND (bool_or(n.passed)
                 OR EXISTS (SELECT FROM scm.ref_walks AS w
                             WHERE w.repo_id = %(repo_id)s AND w.generation = %(generation)s
                               AND w.completed_at IS NULL AND w.tip = n.sha AND w.next_page = 0)))

-- name: complete
-- Marks the open walks of this generation as complete. All ancestors of their commits are stored.
UPDATE scm.ref_walks AS w SET completed_at = now()
 WHERE w.repo_id = %(repo_id)s AND w.generation = %(generation)s AND w.completed_at IS NULL
   AND EXISTS (SELECT FROM scm.git_commits AS c WHERE c.walk_id = w.walk_id)

-- name: complete_reached
-- Moves the commits of open walks that the given tips reach to a complete walk of their own.
WITH RECURSIVE reached (sha) AS (
    SELECT sha FROM unnest(%(tips)s::text[]) AS t (sha)
    UNION
    SELECT p.sha
      FROM reached AS r
     CROSS JOIN LATERAL (SELECT c.walk_id, c.parents FROM scm.git_commits AS c
                          WHERE c.repo_id = %(repo_id)s AND c.commit_sha = r.sha AND c.deleted_at IS NULL
                          LIMIT 1) AS c
     CROSS JOIN LATERAL (SELECT w.next_page = 0 AS passed FROM scm.ref_walks AS w
                          WHERE w.walk_id = c.walk_id AND w.generation = %(generation)s
                            AND w.completed_at IS NULL
                          LIMIT 1) AS w
     CROSS JOIN LATERAL unnest(c.parents) AS p (sha)
), proof AS (
    INSERT INTO scm.ref_walks (repo_id, tip, generation, next_page, tip_read, completed_at)
    VALUES (%(repo_id)s, (%(tips)s::text[])[1], %(generation)s, 0, TRUE, now())
    RETURNING walk_id
)
UPDATE scm.git_commits AS c SET walk_id = proof.walk_id
  FROM reached, proof
 WHERE c.repo_id = %(repo_id)s AND c.commit_sha = reached.sha
   AND (SELECT w.completed_at IS NULL AND w.generation = %(generation)s
          FROM scm.ref_walks AS w WHERE w.walk_id = c.walk_id)

-- name: covered
-- Lists tips that need no reading, because a complete walk of this generation has them.
SELECT c.commit_sha
  FROM scm.git_commits AS c
 WHERE c.repo_id = %(repo_id)s AND c.commit_sha = ANY (%(tips)s) AND c.deleted_at IS NULL
   AND (SELECT w.completed_at IS NOT NULL AND w.generation = %(generation)s
          FROM scm.ref_walks AS w WHERE w.walk_id = c.walk_id)

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
