-- Interrupted walks start over. Of complete walks with the same ends the first takes the commits of the others.
UPDATE scm.git_commits AS c SET walk_id = NULL
  FROM scm.ref_walks AS w
 WHERE c.walk_id = w.walk_id AND w.completed_at IS NULL;
DELETE FROM scm.ref_walks WHERE completed_at IS NULL;
CREATE TEMP TABLE doubled ON COMMIT DROP AS
SELECT walk_id, min(walk_id) OVER (PARTITION BY repo_id, tip, covered, generation) AS kept
  FROM scm.ref_walks;
DELETE FROM doubled WHERE walk_id = kept;
UPDATE scm.git_commits AS c SET walk_id = d.kept FROM doubled AS d WHERE c.walk_id = d.walk_id;
DELETE FROM scm.ref_walks AS w USING doubled AS d WHERE w.walk_id = d.walk_id;
DROP INDEX scm.git_commits_by_walk;
DROP INDEX scm.ref_walks_open;
ALTER TABLE scm.ref_walks ADD UNIQUE NULLS NOT DISTINCT (repo_id, tip, covered, generation);
COMMENT ON TABLE scm.ref_walks IS
    'Readings of everything that is reachable from a commit. One that was interrupted goes on at its next page.';
COMMENT ON COLUMN scm.ref_walks.tip IS
    'The commit it begins at.';
COMMENT ON COLUMN scm.ref_walks.next_page IS
    'Page at which it goes on.';
COMMENT ON COLUMN scm.ref_walks.completed_at IS
    'When its last page was stored: from then on everything reachable from its commits is stored.';
COMMENT ON COLUMN scm.git_commits.walk_id IS
    'The walk that stored it; once that is complete, so is its history. NULL: read by date only.';
