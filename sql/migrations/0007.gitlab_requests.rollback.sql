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
