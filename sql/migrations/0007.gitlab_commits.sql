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

-- The words of a source are open sets: a new one is stored as it comes.
ALTER TABLE scm.mrs DROP CONSTRAINT mrs_status_check;
COMMENT ON COLUMN scm.mrs.status IS 'open, closed, merged, locked (while it is being merged), or another word of the server as it came.';
ALTER TABLE scm.svn_changed_paths
    DROP CONSTRAINT svn_changed_paths_action_check,
    DROP CONSTRAINT svn_changed_paths_kind_check;
COMMENT ON COLUMN scm.svn_changed_paths.action IS 'A added, D deleted, M modified, R replaced, or another word of the server as it came.';
COMMENT ON COLUMN scm.svn_changed_paths.kind IS 'file, dir, or another word of the server as it came; NULL where the server does not say.';
