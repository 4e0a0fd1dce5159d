-- Forgets the commits whose parents are not known; merge requests still list them.
DELETE FROM scm.git_commits WHERE parents IS NULL;
DROP INDEX scm.git_commits_without_parents;
ALTER TABLE scm.git_commits
    DROP COLUMN parents_asked_at,
    ALTER COLUMN is_merge SET NOT NULL,
    ALTER COLUMN parents SET NOT NULL;
COMMENT ON TABLE scm.git_commits IS 'One row per commit that any branch or tag ever reached.';
COMMENT ON COLUMN scm.git_commits.parents IS 'Names of the parents, in order; none for a root.';
COMMENT ON COLUMN scm.git_commits.is_merge IS 'True with more than one parent.';

-- Rows with other words stay; new ones are refused again.
ALTER TABLE scm.mrs
    ADD CONSTRAINT mrs_status_check CHECK (status IN ('open', 'closed', 'merged', 'locked')) NOT VALID;
COMMENT ON COLUMN scm.mrs.status IS 'open, closed, merged or locked (while it is being merged).';
ALTER TABLE scm.svn_changed_paths
    ADD CONSTRAINT svn_changed_paths_action_check CHECK (action IN ('A', 'D', 'M', 'R')) NOT VALID,
    ADD CONSTRAINT svn_changed_paths_kind_check CHECK (kind IN ('file', 'dir')) NOT VALID;
COMMENT ON COLUMN scm.svn_changed_paths.action IS 'A added, D deleted, M modified, R replaced.';
COMMENT ON COLUMN scm.svn_changed_paths.kind IS 'file or dir; NULL where the server did not say.';
