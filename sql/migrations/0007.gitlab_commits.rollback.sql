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
