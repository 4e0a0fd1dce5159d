-- The stored graph proves the history of commits. Only open walks are unique, and a walk may read the list of all refs.
-- An index finds the commits of open walks. Writers of commits wait while it is made, about two seconds for a million
-- commits. No table is rewritten.
-- depends: 0016.completion

ALTER TABLE scm.ref_walks DROP CONSTRAINT ref_walks_repo_id_tip_covered_generation_key;
CREATE UNIQUE INDEX ref_walks_open ON scm.ref_walks (repo_id, tip, covered, generation) NULLS NOT DISTINCT
 WHERE completed_at IS NULL;
CREATE INDEX git_commits_by_walk ON scm.git_commits (walk_id);
COMMENT ON TABLE scm.ref_walks IS
    'Readings of commits. An open one is continued at its next page. It is complete once all ancestors of its commits are stored.';
COMMENT ON COLUMN scm.ref_walks.tip IS
    'The commit it begins at; empty: the list of the commits of all refs.';
COMMENT ON COLUMN scm.ref_walks.next_page IS
    'Page at which it continues; 0: it was read to its end.';
COMMENT ON COLUMN scm.ref_walks.completed_at IS
    'Time of the proof: from then on all ancestors of its commits are stored, or in quarantine.';
COMMENT ON COLUMN scm.git_commits.walk_id IS
    'The walk that read it. Once that is complete, all ancestors are stored. NULL: read by date or by name only.';
