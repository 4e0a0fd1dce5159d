-- Allows the statements again.
DROP TRIGGER sync_jobs_keep_unfinished ON scm.sync_jobs;
DROP TRIGGER sync_jobs_no_truncate ON scm.sync_jobs;
DROP FUNCTION scm.refuse_delete_of_job();
DROP TRIGGER sync_locks_no_delete ON scm.sync_locks;
DROP TRIGGER sync_locks_no_truncate ON scm.sync_locks;
DROP FUNCTION scm.refuse_delete_of_lease();

-- Forgets why repositories were changed; the events stay.
ALTER TABLE scm.repo_events DROP COLUMN reason;

-- Forgets which servers do not answer; the next looks find out again.
DROP TABLE scm.server_failures;
ALTER TABLE scm.sync_hints DROP COLUMN failures;

DROP TABLE scm.project_looks;
DROP INDEX scm.sync_jobs_put_down;
DROP INDEX scm.sync_jobs_of_requests;
DROP TABLE scm.dagster_requests;
DELETE FROM scm.job_events WHERE action = 'join';
ALTER TABLE scm.job_events DROP CONSTRAINT job_events_action_check;
ALTER TABLE scm.job_events ADD CONSTRAINT job_events_action_check CHECK (action IN ('reset', 'drop', 'release'));
COMMENT ON COLUMN scm.job_events.action IS 'reset: tried again at once; drop: given up; release: taken from whoever worked on it.';
COMMENT ON COLUMN scm.sync_jobs.generation IS 'Generation of the watermark when the job was made.';
ALTER TABLE scm.sync_jobs DROP COLUMN reread_requested;

-- Forgets merge requests whose numbers other ones took, with their reviews.
ALTER TABLE scm.mr_reviews DROP COLUMN hidden_notes;
ALTER TABLE scm.reconciliations DROP COLUMN hidden;
ALTER TABLE scm.repos DROP COLUMN marked_for_deletion_on;
UPDATE scm.sync_watermarks SET access = 'ok' WHERE access = 'pending_deletion';
ALTER TABLE scm.sync_watermarks
    DROP CONSTRAINT sync_watermarks_access_check,
    ADD CONSTRAINT sync_watermarks_access_check
        CHECK (access IN ('ok', 'empty', 'denied', 'disabled', 'archived', 'moved', 'gone', 'replaced'));
DELETE FROM scm.repo_events WHERE event IN ('tenant', 'pending_deletion', 'restored');
ALTER TABLE scm.repo_events
    DROP CONSTRAINT repo_events_event_check,
    ADD CONSTRAINT repo_events_event_check
        CHECK (event IN ('registered', 'moved', 'default_branch', 'archived', 'unarchived', 'vanished', 'returned',
                         'retired', 'reactivated'));
DROP TABLE scm.unreadable_details;
ALTER TABLE scm.mr_versions DROP CONSTRAINT mr_versions_repo_id_mr_iid_replaced_id_fkey;
ALTER TABLE scm.mr_commits DROP CONSTRAINT mr_commits_repo_id_mr_iid_replaced_id_fkey;
DELETE FROM scm.mr_versions WHERE replaced_id <> 0;
DELETE FROM scm.mr_commits WHERE replaced_id <> 0;
DELETE FROM scm.mrs WHERE replaced_id <> 0;
DELETE FROM scm.mr_reviews WHERE replaced_id <> 0;
DELETE FROM scm.review_events WHERE replaced_id <> 0;
DELETE FROM scm.mr_approvals WHERE replaced_id <> 0;
DELETE FROM scm.mr_reviewers WHERE replaced_id <> 0;
ALTER TABLE scm.mrs DROP COLUMN mr_id, DROP COLUMN replaced_id, ADD PRIMARY KEY (repo_id, iid);
ALTER TABLE scm.mrs
    ADD COLUMN mr_id text NOT NULL GENERATED ALWAYS AS (repo_id || ':' || iid) STORED,
    ADD UNIQUE (mr_id);
ALTER TABLE scm.mr_versions
    DROP COLUMN replaced_id,
    ADD PRIMARY KEY (repo_id, mr_iid, version_id),
    ADD FOREIGN KEY (repo_id, mr_iid) REFERENCES scm.mrs ON DELETE CASCADE;
ALTER TABLE scm.mr_commits
    DROP COLUMN replaced_id,
    ADD PRIMARY KEY (repo_id, mr_iid, position),
    ADD FOREIGN KEY (repo_id, mr_iid) REFERENCES scm.mrs ON DELETE CASCADE;
ALTER TABLE scm.mr_reviews DROP COLUMN replaced_id, DROP COLUMN gitlab_id, ADD PRIMARY KEY (repo_id, mr_iid);
ALTER TABLE scm.review_events
    DROP COLUMN mr_id,
    DROP COLUMN replaced_id,
    ADD UNIQUE (repo_id, mr_iid, source_event_id);
ALTER TABLE scm.review_events
    ADD COLUMN mr_id text NOT NULL GENERATED ALWAYS AS (repo_id || ':' || mr_iid) STORED;
ALTER TABLE scm.mr_approvals DROP COLUMN replaced_id;
ALTER TABLE scm.mr_reviewers DROP COLUMN replaced_id;
COMMENT ON TABLE scm.mrs IS 'One row per merge request, as of its latest version seen.';
COMMENT ON COLUMN scm.mrs.iid IS 'Number within the project; with repo_id the natural key.';
COMMENT ON COLUMN scm.mrs.gitlab_id IS 'Number within the instance.';
COMMENT ON COLUMN scm.mrs.mr_id IS '<repo_id>:<iid>.';
COMMENT ON COLUMN scm.mrs.source_id IS 'mr:<repo_id>:<iid>.';
COMMENT ON COLUMN scm.review_events.mr_id IS '<repo_id>:<iid>, as in scm.mrs.';

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

-- Forgets the changed paths of earlier versions; the versions and what is stored now stay.
DROP TABLE scm.svn_path_versions;
COMMENT ON COLUMN scm.svn_revisions.flags IS 'What had to be mended to store it: invalid_utf8, control_characters, nul, bad_date.';
