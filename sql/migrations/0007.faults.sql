-- Faults that independent tests found: replaced histories and merge requests, rereads that meet a running job,
-- requests made in the Dagster UI, servers that do not answer, rows that are not deleted by hand. Every row is kept.
-- depends: 0006.operators

-- All locks first, in the order in which a writing job takes them. A migration that has begun to rewrite tables
-- then waits for nobody, and meets no job that waits for it.
LOCK TABLE scm.sync_jobs, scm.sync_locks, scm.sync_watermarks, scm.repos, scm.repo_events, scm.job_events,
           scm.svn_revisions, scm.svn_changed_paths, scm.git_commits, scm.mrs, scm.mr_versions, scm.mr_commits,
           scm.review_events, scm.mr_reviews, scm.mr_approvals, scm.mr_reviewers, scm.reconciliations,
           scm.sync_hints
    IN ACCESS EXCLUSIVE MODE;

-- The changed paths of earlier versions of revisions, and what the flags of a revision mean now. Additive.

CREATE TABLE scm.svn_path_versions (
    repo_id       bigint  NOT NULL,
    rev_num       bigint  NOT NULL,
    version       integer NOT NULL,
    path_no       integer NOT NULL,
    path          text    NOT NULL,
    action        text    NOT NULL,
    kind          text,
    copyfrom_path text,
    copyfrom_rev  bigint,
    text_mods     boolean,
    prop_mods     boolean,
    PRIMARY KEY (repo_id, rev_num, version, path_no)
);
COMMENT ON TABLE scm.svn_path_versions IS 'The changed paths of the rows of scm.svn_revision_versions. Versions that 0.5.0 and earlier kept have none.';
COMMENT ON COLUMN scm.svn_path_versions.repo_id IS 'The repository.';
COMMENT ON COLUMN scm.svn_path_versions.rev_num IS 'The revision.';
COMMENT ON COLUMN scm.svn_path_versions.version IS 'Number of the version, from 1.';
COMMENT ON COLUMN scm.svn_path_versions.path_no IS 'Position in the revision, from 1, in the order the server gave.';
COMMENT ON COLUMN scm.svn_path_versions.path IS 'Absolute path from the repository root.';
COMMENT ON COLUMN scm.svn_path_versions.action IS 'A added, D deleted, M modified, R replaced.';
COMMENT ON COLUMN scm.svn_path_versions.kind IS 'file or dir; NULL where the server did not say.';
COMMENT ON COLUMN scm.svn_path_versions.copyfrom_path IS 'Where it was copied from, or NULL.';
COMMENT ON COLUMN scm.svn_path_versions.copyfrom_rev IS 'Revision it was copied from, or NULL.';
COMMENT ON COLUMN scm.svn_path_versions.text_mods IS 'True if the content changed; NULL where unknown.';
COMMENT ON COLUMN scm.svn_path_versions.prop_mods IS 'True if properties changed; NULL where unknown.';

COMMENT ON COLUMN scm.svn_revisions.flags IS 'What had to be mended to store it: invalid_utf8, control_characters, nul, bad_date; what was not read: changed_paths_unread, message_unread; where http may have changed a CR or TAB: line_ends_unsure, paths_unsure.';


-- Commits that only merge requests list are facts too. Their list has no parents: unknown is not none.
-- Additive: every row stays as it is.

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


-- Merge requests whose number another one took, children that the server refuses, projects that wait to be
-- deleted.

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


-- A reread that is asked for while an attempt runs is kept with the job. Additive.

ALTER TABLE scm.sync_jobs ADD COLUMN reread_requested boolean NOT NULL DEFAULT FALSE;
COMMENT ON COLUMN scm.sync_jobs.reread_requested IS 'A reread was requested while an attempt was running without it: the job runs once more, with reread.';
COMMENT ON COLUMN scm.sync_jobs.generation IS 'Generation of the watermark when the job was made or last claimed.';

ALTER TABLE scm.job_events DROP CONSTRAINT job_events_action_check;
ALTER TABLE scm.job_events ADD CONSTRAINT job_events_action_check
    CHECK (action IN ('reset', 'drop', 'release', 'join'));
COMMENT ON COLUMN scm.job_events.action IS 'reset: tried again at once; drop: given up; release: taken from whoever worked on it; join: a person asked for the same work.';

CREATE TABLE scm.dagster_requests (
    request_id  text        NOT NULL,
    pool        text        NOT NULL,
    kind        text        NOT NULL CHECK (kind IN ('backfill', 'run')),
    requested_at timestamptz NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    actor       text        NOT NULL,
    job_count   integer     NOT NULL,
    skipped_count integer   NOT NULL,
    assets_done integer     NOT NULL,
    complete    boolean     NOT NULL,
    status      text        NOT NULL,
    ended_at    timestamptz,
    PRIMARY KEY (request_id, pool)
);
COMMENT ON TABLE scm.dagster_requests IS 'What people asked for in the Dagster UI and the ledger took over: backfills, and runs that failed before they began.';
COMMENT ON COLUMN scm.dagster_requests.request_id IS 'Id of the backfill or run in Dagster.';
COMMENT ON COLUMN scm.dagster_requests.pool IS 'Worker pool whose repositories the jobs are of; each pool takes over its own.';
COMMENT ON COLUMN scm.dagster_requests.kind IS 'backfill or run.';
COMMENT ON COLUMN scm.dagster_requests.requested_at IS 'When it was launched, by Dagster''s clock.';
COMMENT ON COLUMN scm.dagster_requests.recorded_at IS 'When the ledger took it over.';
COMMENT ON COLUMN scm.dagster_requests.actor IS 'Who launched it, as far as Dagster knows.';
COMMENT ON COLUMN scm.dagster_requests.job_count IS 'Jobs that were made or found for it.';
COMMENT ON COLUMN scm.dagster_requests.skipped_count IS 'Partitions without a job: of retired repositories, or of partitions that there are none of.';
COMMENT ON COLUMN scm.dagster_requests.assets_done IS 'Assets whose jobs are made; a long request takes several ticks.';
COMMENT ON COLUMN scm.dagster_requests.complete IS 'True once all its jobs are made.';
COMMENT ON COLUMN scm.dagster_requests.status IS 'What Dagster called it at the last look.';
COMMENT ON COLUMN scm.dagster_requests.ended_at IS 'When the scheduler saw that Dagster is done with it; what is left is the ledger''s alone from then on.';

-- Jobs of one request. A hash, because a reason may be longer than an ordered index takes.
CREATE INDEX sync_jobs_of_requests ON scm.sync_jobs USING hash (reason) WHERE trigger = 'ui';
CREATE INDEX sync_jobs_put_down ON scm.sync_jobs (finished_at)
    WHERE status = 'dead' AND last_error_code = 'cancelled' AND trigger = 'ui';

CREATE TABLE scm.project_looks (
    repo_id     bigint      PRIMARY KEY REFERENCES scm.repos,
    fingerprint text        NOT NULL,
    job_types   text[]      NOT NULL,
    raw         jsonb       NOT NULL,
    escaped     boolean     NOT NULL,
    server_date timestamptz,
    looked_at   timestamptz NOT NULL
);
COMMENT ON TABLE scm.project_looks IS 'The latest look at each GitLab project. Visits of its other job types use it for a minute, so that a round asks once.';
COMMENT ON COLUMN scm.project_looks.repo_id IS 'The repository.';
COMMENT ON COLUMN scm.project_looks.fingerprint IS 'The token of the look, as in scm.credential_stops; with another one the answer may differ.';
COMMENT ON COLUMN scm.project_looks.job_types IS 'Job types that have used the look; each uses it once.';
COMMENT ON COLUMN scm.project_looks.raw IS 'The project as the server gave it, without its secrets.';
COMMENT ON COLUMN scm.project_looks.escaped IS 'True where raw is escaped, as in scm.mrs.';
COMMENT ON COLUMN scm.project_looks.server_date IS 'The server''s clock at the look; NULL where it did not say.';
COMMENT ON COLUMN scm.project_looks.looked_at IS 'When, by the database''s clock.';


-- Servers that do not answer, and for how many looks in a row. Additive.

CREATE TABLE scm.server_failures (
    instance    text        NOT NULL,
    kind        text        NOT NULL CHECK (kind IN ('gitlab', 'svn')),
    error_code  text        NOT NULL,
    error       text        NOT NULL CHECK (length(error) <= 2000),
    failures    integer     NOT NULL DEFAULT 1 CHECK (failures > 0),
    failed_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    observed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (instance, kind)
);
COMMENT ON TABLE scm.server_failures IS 'Servers of which the latest look of a changes sensor got no usable answer; the row goes when they answer again.';
COMMENT ON COLUMN scm.server_failures.instance IS 'The server, as in scm.repos.';
COMMENT ON COLUMN scm.server_failures.kind IS 'gitlab or svn: one host may be both.';
COMMENT ON COLUMN scm.server_failures.error_code IS 'How the latest look failed.';
COMMENT ON COLUMN scm.server_failures.error IS 'One redacted line about it.';
COMMENT ON COLUMN scm.server_failures.failures IS 'Looks in a row that failed.';
COMMENT ON COLUMN scm.server_failures.failed_at IS 'When the first of them failed.';
COMMENT ON COLUMN scm.server_failures.observed_at IS 'When the latest of them failed.';

ALTER TABLE scm.sync_hints ADD COLUMN failures integer NOT NULL DEFAULT 0;
COMMENT ON COLUMN scm.sync_hints.failures IS 'Looks in a row that failed; 0 where the latest one did not.';


-- Why a person changed a repository as a whole, such as its address.
ALTER TABLE scm.repo_events ADD COLUMN reason text;
COMMENT ON COLUMN scm.repo_events.reason IS 'Why, in the words of the person who did it; NULL where nobody was asked.';


-- Statements that lose queued work or leases are refused, with the command to use. Additive.

CREATE FUNCTION scm.refuse_delete_of_job() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'TRUNCATE' THEN
        RAISE EXCEPTION 'scm.sync_jobs is not truncated: queued history would be lost for good'
            USING HINT = 'Give waiting jobs up with: scm-sync admin jobs drop --all --reason "..."';
    END IF;
    RAISE EXCEPTION 'job % is %, not finished, and is not deleted: what it has to read would be lost for good', OLD.job_id, OLD.status
        USING HINT = format('Give it up with: scm-sync admin jobs drop %s --reason "...", many of them with --mode backfill --older-than 7d instead of the id. '
                            'Finished jobs are deleted with: scm-sync admin retention --execute', OLD.job_id);
END
$$;
COMMENT ON FUNCTION scm.refuse_delete_of_job IS 'Trigger: refuses to delete jobs that are not finished, and names the command to use.';
CREATE TRIGGER sync_jobs_keep_unfinished BEFORE DELETE ON scm.sync_jobs
    FOR EACH ROW WHEN (OLD.status NOT IN ('completed', 'dead')) EXECUTE FUNCTION scm.refuse_delete_of_job();
CREATE TRIGGER sync_jobs_no_truncate BEFORE TRUNCATE ON scm.sync_jobs
    FOR EACH STATEMENT EXECUTE FUNCTION scm.refuse_delete_of_job();

CREATE FUNCTION scm.refuse_delete_of_lease() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'rows of scm.sync_locks are not deleted: a writer that lost its lease could no longer be refused'
        USING HINT = 'Release leases of lost workers with: scm-sync reaper; take a job from a worker that hangs with: scm-sync admin jobs release <job id> --reason "..."';
END
$$;
COMMENT ON FUNCTION scm.refuse_delete_of_lease IS 'Trigger: refuses to delete leases, and names the commands to use.';
CREATE TRIGGER sync_locks_no_delete BEFORE DELETE ON scm.sync_locks
    FOR EACH ROW EXECUTE FUNCTION scm.refuse_delete_of_lease();
CREATE TRIGGER sync_locks_no_truncate BEFORE TRUNCATE ON scm.sync_locks
    FOR EACH STATEMENT EXECUTE FUNCTION scm.refuse_delete_of_lease();
