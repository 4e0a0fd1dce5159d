-- Commits that only merge requests list are facts too. Their list has no parents: unknown is not none.
-- Additive: every row stays as it is.
-- depends: 0006.operators

ALTER TABLE scm.git_commits
    ALTER COLUMN parents DROP NOT NULL,
    ALTER COLUMN is_merge DROP NOT NULL,
    ADD COLUMN parents_asked_at timestamptz;
CREATE INDEX git_commits_without_parents ON scm.git_commits (repo_id, parents_asked_at) WHERE parents IS NULL;
COMMENT ON TABLE scm.git_commits IS 'One row per commit that any branch or tag ever reached, or that a merge request lists. Those without unreachable_since are the history of the branches and tags of today.';
COMMENT ON COLUMN scm.git_commits.parents IS 'Names of the parents, in order; empty for a root, NULL where they are not known yet.';
COMMENT ON COLUMN scm.git_commits.is_merge IS 'True with more than one parent; NULL where the parents are not known yet.';
COMMENT ON COLUMN scm.git_commits.parents_asked_at IS 'When the server was last asked for unknown parents and did not have the commit; NULL otherwise.';
