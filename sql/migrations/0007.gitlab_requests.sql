-- Merge requests whose number another one took, children that the server refuses, projects that wait to be
-- deleted.
-- depends: 0006.operators

-- A server that was restored from a backup gives a number a second time. The earlier merge request keeps its
-- rows, told apart by replaced_id, which is 0 in the rows of the merge request that has the number now.
ALTER TABLE scm.mr_versions DROP CONSTRAINT mr_versions_repo_id_mr_iid_fkey;
ALTER TABLE scm.mr_commits DROP CONSTRAINT mr_commits_repo_id_mr_iid_fkey;
ALTER TABLE scm.mrs ADD COLUMN replaced_id bigint NOT NULL DEFAULT 0;
ALTER TABLE scm.mr_versions ADD COLUMN replaced_id bigint NOT NULL DEFAULT 0;
ALTER TABLE scm.mr_commits ADD COLUMN replaced_id bigint NOT NULL DEFAULT 0;
ALTER TABLE scm.mr_reviews ADD COLUMN replaced_id bigint NOT NULL DEFAULT 0, ADD COLUMN gitlab_id bigint;
ALTER TABLE scm.review_events ADD COLUMN replaced_id bigint NOT NULL DEFAULT 0;
ALTER TABLE scm.mr_approvals ADD COLUMN replaced_id bigint NOT NULL DEFAULT 0;
ALTER TABLE scm.mr_reviewers ADD COLUMN replaced_id bigint NOT NULL DEFAULT 0;
UPDATE scm.mr_reviews AS r SET gitlab_id = m.gitlab_id
  FROM scm.mrs AS m
 WHERE m.repo_id = r.repo_id AND m.iid = r.mr_iid;

ALTER TABLE scm.mrs
    DROP COLUMN mr_id,
    DROP CONSTRAINT mrs_pkey,
    ADD PRIMARY KEY (repo_id, iid, replaced_id),
    ADD CHECK (replaced_id = 0 OR (replaced_id = gitlab_id AND deleted_at IS NOT NULL));
ALTER TABLE scm.mrs
    ADD COLUMN mr_id text NOT NULL GENERATED ALWAYS AS
        (repo_id || ':' || iid || CASE replaced_id WHEN 0 THEN '' ELSE ':' || replaced_id END) STORED,
    ADD UNIQUE (mr_id);
ALTER TABLE scm.mr_versions
    DROP CONSTRAINT mr_versions_pkey,
    ADD PRIMARY KEY (repo_id, mr_iid, replaced_id, version_id),
    ADD FOREIGN KEY (repo_id, mr_iid, replaced_id) REFERENCES scm.mrs ON DELETE CASCADE ON UPDATE CASCADE;
ALTER TABLE scm.mr_commits
    DROP CONSTRAINT mr_commits_pkey,
    ADD PRIMARY KEY (repo_id, mr_iid, replaced_id, position),
    ADD FOREIGN KEY (repo_id, mr_iid, replaced_id) REFERENCES scm.mrs ON DELETE CASCADE ON UPDATE CASCADE;
ALTER TABLE scm.mr_reviews
    DROP CONSTRAINT mr_reviews_pkey,
    ADD PRIMARY KEY (repo_id, mr_iid, replaced_id);
ALTER TABLE scm.review_events
    DROP COLUMN mr_id,
    DROP CONSTRAINT review_events_repo_id_mr_iid_source_event_id_key,
    ADD UNIQUE (repo_id, mr_iid, replaced_id, source_event_id);
ALTER TABLE scm.review_events
    ADD COLUMN mr_id text NOT NULL GENERATED ALWAYS AS
        (repo_id || ':' || mr_iid || CASE replaced_id WHEN 0 THEN '' ELSE ':' || replaced_id END) STORED;

COMMENT ON TABLE scm.mrs IS 'One row per merge request, as of its latest version seen; also of one whose number another one has now.';
COMMENT ON COLUMN scm.mrs.iid IS 'Number within the project; with repo_id and replaced_id the natural key.';
COMMENT ON COLUMN scm.mrs.gitlab_id IS 'Number within the instance; another one under the same iid is another merge request.';
COMMENT ON COLUMN scm.mrs.mr_id IS '<repo_id>:<iid>; :<replaced_id> follows where another merge request has the number now.';
COMMENT ON COLUMN scm.mrs.source_id IS 'mr:<repo_id>:<iid>; unique among those that another one did not replace.';
COMMENT ON COLUMN scm.mrs.replaced_id IS '0; of a merge request whose number another one has now, its gitlab_id. Such a one is gone from its source.';
COMMENT ON COLUMN scm.mr_versions.replaced_id IS 'As in scm.mrs.';
COMMENT ON COLUMN scm.mr_commits.replaced_id IS 'As in scm.mrs.';
COMMENT ON COLUMN scm.mr_reviews.replaced_id IS 'As in scm.mrs.';
COMMENT ON COLUMN scm.mr_reviews.gitlab_id IS 'gitlab_id of the merge request at that reading; NULL: not known.';
COMMENT ON COLUMN scm.review_events.mr_id IS 'As in scm.mrs.';
COMMENT ON COLUMN scm.review_events.replaced_id IS 'As in scm.mrs.';
COMMENT ON COLUMN scm.mr_approvals.replaced_id IS 'As in scm.mrs.';
COMMENT ON COLUMN scm.mr_reviewers.replaced_id IS 'As in scm.mrs.';

-- What the server refuses for every merge request is one state, not one obligation for each.
CREATE TABLE scm.unreadable_details (
    repo_id     bigint      NOT NULL REFERENCES scm.repos,
    job_type    text        NOT NULL,
    detail      text        NOT NULL,
    error_code  text        NOT NULL,
    error       text        NOT NULL CHECK (length(error) <= 2000),
    fingerprint text,
    since       timestamptz NOT NULL DEFAULT now(),
    probe_at    timestamptz NOT NULL,
    readable_at timestamptz,
    PRIMARY KEY (repo_id, job_type, detail)
);
COMMENT ON TABLE scm.unreadable_details IS 'Details that a server refuses for every merge request of a repository; the row ends once all of them are stored.';
COMMENT ON COLUMN scm.unreadable_details.repo_id IS 'The repository.';
COMMENT ON COLUMN scm.unreadable_details.job_type IS 'What is read.';
COMMENT ON COLUMN scm.unreadable_details.detail IS 'Which detail, by the names that scm.obligations uses: approvals, versions and more.';
COMMENT ON COLUMN scm.unreadable_details.error_code IS 'How the server refuses it: denied, no_object, or no_route where it does not know such a thing.';
COMMENT ON COLUMN scm.unreadable_details.error IS 'One redacted line: what the server said.';
COMMENT ON COLUMN scm.unreadable_details.fingerprint IS 'The token that was refused, as in scm.credential_stops; another one is tried at once.';
COMMENT ON COLUMN scm.unreadable_details.since IS 'When it was first refused.';
COMMENT ON COLUMN scm.unreadable_details.probe_at IS 'When the server is asked again.';
COMMENT ON COLUMN scm.unreadable_details.readable_at IS 'When the server gave it again; merge requests that lack it are being read. NULL: it still refuses.';

-- A project that waits to be deleted, and one whose owner changed.
ALTER TABLE scm.repos ADD COLUMN marked_for_deletion_on date;
COMMENT ON COLUMN scm.repos.marked_for_deletion_on IS 'GitLab: the day it was marked for deletion on; NULL: it was not, or was restored.';
ALTER TABLE scm.sync_watermarks
    DROP CONSTRAINT sync_watermarks_access_check,
    ADD CONSTRAINT sync_watermarks_access_check
        CHECK (access IN ('ok', 'empty', 'denied', 'disabled', 'archived', 'pending_deletion', 'moved', 'gone', 'replaced'));
ALTER TABLE scm.repo_events
    DROP CONSTRAINT repo_events_event_check,
    ADD CONSTRAINT repo_events_event_check
        CHECK (event IN ('registered', 'moved', 'tenant', 'default_branch', 'archived', 'unarchived', 'pending_deletion',
                         'restored', 'vanished', 'returned', 'retired', 'reactivated'));

-- Notes that the token may not see are no difference.
ALTER TABLE scm.mr_reviews ADD COLUMN hidden_notes bigint;
COMMENT ON COLUMN scm.mr_reviews.hidden_notes IS 'Comments that the server counts and does not show to the token, as of the last reading that showed all others; NULL: not known.';
ALTER TABLE scm.reconciliations ADD COLUMN hidden bigint NOT NULL DEFAULT 0;
COMMENT ON COLUMN scm.reconciliations.hidden IS 'Stored rows that the token may not see now; nothing is known of them.';
