-- The core: catalog, SVN facts, ledger, coverage, leases, quarantine. Times are UTC; windows are half-open.
-- depends:

CREATE SCHEMA scm;
COMMENT ON SCHEMA scm IS 'Source-control facts and the ledger of how they were read.';
CREATE SCHEMA identity;
COMMENT ON SCHEMA identity IS 'People and the accounts by which sources know them.';

-- Deployment ---------------------------------------------------------------------------------------------

CREATE TABLE scm.deployment (
    singleton   boolean     PRIMARY KEY DEFAULT TRUE CHECK (singleton),
    environment text        NOT NULL CHECK (environment <> ''),
    created_at  timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE scm.deployment IS 'One row: which environment this database belongs to, so that a test never writes into production.';
COMMENT ON COLUMN scm.deployment.singleton IS 'Always true: the table holds one row.';
COMMENT ON COLUMN scm.deployment.environment IS 'Must equal the setting SCM_ENVIRONMENT of every program that connects.';
COMMENT ON COLUMN scm.deployment.created_at IS 'When the database was first migrated.';

-- People -------------------------------------------------------------------------------------------------

CREATE TABLE identity.users (
    user_id      bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    display_name text        NOT NULL,
    is_active    boolean     NOT NULL DEFAULT TRUE,
    created_at   timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE identity.users IS 'One row per person.';
COMMENT ON COLUMN identity.users.user_id IS 'Key of the person.';
COMMENT ON COLUMN identity.users.display_name IS 'Name to show.';
COMMENT ON COLUMN identity.users.is_active IS 'False once the person has left.';
COMMENT ON COLUMN identity.users.created_at IS 'When the row was made.';

CREATE TABLE identity.accounts (
    account_id   bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    user_id      bigint      NOT NULL REFERENCES identity.users ON DELETE CASCADE,
    account_type text        NOT NULL CHECK (account_type IN ('svn', 'gitlab', 'git', 'email')),
    account_name text        NOT NULL,
    verified     boolean     NOT NULL DEFAULT FALSE,
    created_at   timestamptz NOT NULL DEFAULT now(),
    UNIQUE (account_type, account_name)
);
COMMENT ON TABLE identity.accounts IS 'The names by which sources know a person.';
COMMENT ON COLUMN identity.accounts.account_id IS 'Key of the account.';
COMMENT ON COLUMN identity.accounts.user_id IS 'The person behind the account.';
COMMENT ON COLUMN identity.accounts.account_type IS 'Which kind of source uses the name: svn, gitlab, git or email.';
COMMENT ON COLUMN identity.accounts.account_name IS 'The name as the source writes it, bytes kept.';
COMMENT ON COLUMN identity.accounts.verified IS 'True once a person confirmed the link.';
COMMENT ON COLUMN identity.accounts.created_at IS 'When the row was made.';

-- Catalog ------------------------------------------------------------------------------------------------

CREATE TABLE scm.repos (
    repo_id        bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind           text        NOT NULL CHECK (kind IN ('gitlab', 'svn')),
    instance       text        NOT NULL,
    instance_slug  text        NOT NULL CHECK (instance_slug ~ '^[a-z0-9_]+$'),
    tenant         text        NOT NULL,
    slug           text        NOT NULL CHECK (slug ~ '^[a-z0-9_]+$'),
    url            text        NOT NULL,
    project_id     bigint,
    project_path   text,
    svn_uuid       text,
    svn_root       text,
    svn_prefix     text        NOT NULL DEFAULT '',
    default_branch text,
    lifecycle      text        NOT NULL DEFAULT 'active' CHECK (lifecycle IN ('active', 'retired')),
    retired_reason text,
    created_at     timestamptz NOT NULL DEFAULT now(),
    updated_at     timestamptz NOT NULL DEFAULT now(),
    UNIQUE (instance_slug, slug),
    CHECK (kind <> 'svn' OR (svn_uuid IS NOT NULL AND svn_root IS NOT NULL)),
    CHECK (kind <> 'gitlab' OR project_id IS NOT NULL)
);
-- A place is registered once while it is active; a retired one makes room for its successor.
CREATE UNIQUE INDEX repos_one_active_per_url ON scm.repos (kind, md5(url)) WHERE lifecycle = 'active';
COMMENT ON TABLE scm.repos IS 'The catalog: one row per repository, never deleted.';
COMMENT ON COLUMN scm.repos.repo_id IS 'Key of the repository; paths and URLs change, this does not.';
COMMENT ON COLUMN scm.repos.kind IS 'gitlab or svn.';
COMMENT ON COLUMN scm.repos.instance IS 'The server: lower-case host, with the port where it is not the default; local for file URLs.';
COMMENT ON COLUMN scm.repos.instance_slug IS 'First part of the Dagster asset key; fixed at registration.';
COMMENT ON COLUMN scm.repos.tenant IS 'Owner for fairness and reports; default: first segment of the path.';
COMMENT ON COLUMN scm.repos.slug IS 'Second part of the Dagster asset key; fixed at registration.';
COMMENT ON COLUMN scm.repos.url IS 'Where it was registered, without credentials.';
COMMENT ON COLUMN scm.repos.project_id IS 'GitLab: numeric project id.';
COMMENT ON COLUMN scm.repos.project_path IS 'GitLab: path at the last visit.';
COMMENT ON COLUMN scm.repos.svn_uuid IS 'SVN: UUID of the repository; another one at the same place stops the sync.';
COMMENT ON COLUMN scm.repos.svn_root IS 'SVN: URL of the repository root, where everything is read.';
COMMENT ON COLUMN scm.repos.svn_prefix IS 'SVN: the registered path below the root, no slash at either end; empty for all of it.';
COMMENT ON COLUMN scm.repos.default_branch IS 'GitLab: name of the default branch at the last visit.';
COMMENT ON COLUMN scm.repos.lifecycle IS 'active or retired; a retired repository keeps rows and assets and is not read.';
COMMENT ON COLUMN scm.repos.retired_reason IS 'Why it was retired, by whom.';
COMMENT ON COLUMN scm.repos.created_at IS 'When it was registered.';
COMMENT ON COLUMN scm.repos.updated_at IS 'When the row last changed.';

-- Coverage -----------------------------------------------------------------------------------------------

-- The watermark is derived, so it cannot disagree with the coverage: the end of the range with the origin.
CREATE FUNCTION scm.watermark_rev(covered int8multirange, origin bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN (SELECT upper(r) FROM unnest(covered) AS r WHERE r @> origin);
COMMENT ON FUNCTION scm.watermark_rev IS 'End of the covered range of revisions that contains the origin, or NULL.';

CREATE FUNCTION scm.watermark_time(covered tstzmultirange, origin timestamptz) RETURNS timestamptz
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN (SELECT upper(r) FROM unnest(covered) AS r WHERE r @> origin);
COMMENT ON FUNCTION scm.watermark_time IS 'End of the covered range of time that contains the origin, or NULL.';

CREATE TABLE scm.sync_watermarks (
    repo_id        bigint         NOT NULL REFERENCES scm.repos,
    job_type       text           NOT NULL CHECK (job_type IN ('commits', 'merge_requests', 'reviews', 'revisions')),
    origin_rev     bigint,
    origin_time    timestamptz,
    covered_revs   int8multirange NOT NULL DEFAULT '{}',
    covered_time   tstzmultirange NOT NULL DEFAULT '{}',
    watermark_rev  bigint         GENERATED ALWAYS AS (scm.watermark_rev(covered_revs, origin_rev)) STORED,
    watermark_time timestamptz    GENERATED ALWAYS AS (scm.watermark_time(covered_time, origin_time)) STORED,
    generation     bigint         NOT NULL DEFAULT 1,
    verified_at    timestamptz,
    head_rev       bigint,
    sweep_rev      bigint         NOT NULL DEFAULT 1,
    swept_at       timestamptz,
    access         text           NOT NULL DEFAULT 'ok'
                   CHECK (access IN ('ok', 'empty', 'denied', 'disabled', 'archived', 'moved', 'gone', 'replaced')),
    access_detail  text,
    access_since   timestamptz    NOT NULL DEFAULT now(),
    visited_at     timestamptz,
    updated_at     timestamptz    NOT NULL DEFAULT now(),
    PRIMARY KEY (repo_id, job_type),
    CHECK ((origin_rev IS NULL) <> (origin_time IS NULL)),
    CHECK (origin_rev IS NOT NULL OR isempty(covered_revs)),
    CHECK (origin_time IS NOT NULL OR isempty(covered_time))
);
COMMENT ON TABLE scm.sync_watermarks IS 'Per (repository, job type): what is known to be complete. Rebuilt exactly by scm.sync_watermark_events.';
COMMENT ON COLUMN scm.sync_watermarks.repo_id IS 'The repository.';
COMMENT ON COLUMN scm.sync_watermarks.job_type IS 'The job type.';
COMMENT ON COLUMN scm.sync_watermarks.origin_rev IS 'Revisions: where live syncing began; older history is backfill.';
COMMENT ON COLUMN scm.sync_watermarks.origin_time IS 'Time: where live syncing began; older history is backfill.';
COMMENT ON COLUMN scm.sync_watermarks.covered_revs IS 'Revisions known to be complete.';
COMMENT ON COLUMN scm.sync_watermarks.covered_time IS 'Time known to be complete.';
COMMENT ON COLUMN scm.sync_watermarks.watermark_rev IS 'First revision not yet complete in an unbroken line from the origin; NULL before the first.';
COMMENT ON COLUMN scm.sync_watermarks.watermark_time IS 'End of the unbroken time from the origin; NULL before the first window.';
COMMENT ON COLUMN scm.sync_watermarks.generation IS 'Raised by a manual set or reset; a job of an older generation cannot write.';
COMMENT ON COLUMN scm.sync_watermarks.verified_at IS 'When a complete look at the source last showed that nothing is missing up to its end.';
COMMENT ON COLUMN scm.sync_watermarks.head_rev IS 'SVN: youngest revision seen; a smaller HEAD later means a rolled-back repository.';
COMMENT ON COLUMN scm.sync_watermarks.sweep_rev IS 'SVN: next revision that the rolling sweep re-reads for edited revision properties.';
COMMENT ON COLUMN scm.sync_watermarks.swept_at IS 'SVN: when the sweep last re-read a block.';
COMMENT ON COLUMN scm.sync_watermarks.access IS 'What the last visit found at the source.';
COMMENT ON COLUMN scm.sync_watermarks.access_detail IS 'One line for a person: what to do about the access state.';
COMMENT ON COLUMN scm.sync_watermarks.access_since IS 'Since when the access state holds.';
COMMENT ON COLUMN scm.sync_watermarks.visited_at IS 'When a job last looked at the source, whatever it found.';
COMMENT ON COLUMN scm.sync_watermarks.updated_at IS 'When the row last changed.';

-- Ledger -------------------------------------------------------------------------------------------------

CREATE TABLE scm.sync_jobs (
    job_id           uuid        PRIMARY KEY DEFAULT gen_random_uuid(),
    repo_id          bigint      NOT NULL REFERENCES scm.repos,
    job_type         text        NOT NULL CHECK (job_type IN ('commits', 'merge_requests', 'reviews', 'revisions')),
    mode             text        NOT NULL CHECK (mode IN ('incremental', 'backfill', 'repair', 'probe')),
    revs             int8range,
    period           tstzrange,
    reread           boolean     NOT NULL DEFAULT FALSE,
    priority         integer     NOT NULL DEFAULT 100,
    status           text        NOT NULL DEFAULT 'pending'
                     CHECK (status IN ('pending', 'running', 'completed', 'failed', 'dead')),
    attempts         integer     NOT NULL DEFAULT 0,
    max_attempts     integer     NOT NULL DEFAULT 3 CHECK (max_attempts > 0),
    not_before       timestamptz,
    claim_token      uuid,
    claim_expires_at timestamptz,
    claimed_by       text,
    claimed_process  text,
    claimed_at       timestamptz,
    generation       bigint      NOT NULL,
    trigger          text        NOT NULL CHECK (trigger IN ('sensor', 'ui', 'runner', 'ci', 'worker', 'registration')),
    actor            text        NOT NULL,
    reason           text        NOT NULL,
    config_hash      text,
    code_version     text,
    dagster_run_id   text,
    last_error_code  text,
    last_error       text        CHECK (length(last_error) <= 2000),
    created_at       timestamptz NOT NULL DEFAULT now(),
    updated_at       timestamptz NOT NULL DEFAULT now(),
    finished_at      timestamptz,
    UNIQUE (job_id, claim_token),
    CHECK (num_nonnulls(revs, period) <= 1),
    CHECK (mode IN ('incremental', 'probe') OR num_nonnulls(revs, period) = 1),
    CHECK ((status = 'running') = (claim_token IS NOT NULL)),
    CHECK ((claim_token IS NULL) = (claim_expires_at IS NULL)),
    CHECK ((status IN ('completed', 'dead')) = (finished_at IS NOT NULL))
);
-- One active job per (repository, job type, mode); for backfill and repair per window.
CREATE UNIQUE INDEX sync_jobs_one_active ON scm.sync_jobs (repo_id, job_type, mode, revs, period) NULLS NOT DISTINCT
    WHERE status IN ('pending', 'running', 'failed');
-- What the planner and the claim look for.
CREATE INDEX sync_jobs_waiting ON scm.sync_jobs (priority, created_at) WHERE status IN ('pending', 'failed');
CREATE INDEX sync_jobs_by_repo ON scm.sync_jobs (repo_id, job_type, created_at);
COMMENT ON TABLE scm.sync_jobs IS 'One row per window of a (repository, job type) that is to be synced. Decides what and when.';
COMMENT ON COLUMN scm.sync_jobs.job_id IS 'Key of the job.';
COMMENT ON COLUMN scm.sync_jobs.repo_id IS 'The repository.';
COMMENT ON COLUMN scm.sync_jobs.job_type IS 'What is read.';
COMMENT ON COLUMN scm.sync_jobs.mode IS 'Why it is read: incremental, backfill, repair or probe.';
COMMENT ON COLUMN scm.sync_jobs.revs IS 'The window in revisions; NULL for incremental, which reads from the watermark to the end.';
COMMENT ON COLUMN scm.sync_jobs.period IS 'The window in time; NULL for incremental, which reads from the watermark to the end.';
COMMENT ON COLUMN scm.sync_jobs.reread IS 'True if what is already covered is read again.';
COMMENT ON COLUMN scm.sync_jobs.priority IS 'Smaller runs first.';
COMMENT ON COLUMN scm.sync_jobs.status IS 'pending, running, completed, failed (retried at not_before) or dead (needs a person).';
COMMENT ON COLUMN scm.sync_jobs.attempts IS 'Raised at every claim, so a crash costs an attempt.';
COMMENT ON COLUMN scm.sync_jobs.max_attempts IS 'After so many attempts a failure is dead.';
COMMENT ON COLUMN scm.sync_jobs.not_before IS 'Earliest time of the next attempt; NULL: at once.';
COMMENT ON COLUMN scm.sync_jobs.claim_token IS 'Random token of the attempt that owns the job; every write checks it.';
COMMENT ON COLUMN scm.sync_jobs.claim_expires_at IS 'When the claim ends unless it is renewed (database clock).';
COMMENT ON COLUMN scm.sync_jobs.claimed_by IS 'host:pid of the owner.';
COMMENT ON COLUMN scm.sync_jobs.claimed_process IS 'Which process that is, beyond doubt on its own machine, so that a dead owner is noticed at once.';
COMMENT ON COLUMN scm.sync_jobs.claimed_at IS 'When the owner claimed it.';
COMMENT ON COLUMN scm.sync_jobs.generation IS 'Generation of the watermark when the job was made.';
COMMENT ON COLUMN scm.sync_jobs.trigger IS 'What started it: sensor, ui, runner, ci, worker or registration.';
COMMENT ON COLUMN scm.sync_jobs.actor IS 'Who started it.';
COMMENT ON COLUMN scm.sync_jobs.reason IS 'Why it was started.';
COMMENT ON COLUMN scm.sync_jobs.config_hash IS 'Hash of the settings that shaped it.';
COMMENT ON COLUMN scm.sync_jobs.code_version IS 'Version of this program.';
COMMENT ON COLUMN scm.sync_jobs.dagster_run_id IS 'Dagster run of the latest attempt.';
COMMENT ON COLUMN scm.sync_jobs.last_error_code IS 'Low-cardinality word for the latest failure.';
COMMENT ON COLUMN scm.sync_jobs.last_error IS 'One redacted line about the latest failure.';
COMMENT ON COLUMN scm.sync_jobs.created_at IS 'When it was made.';
COMMENT ON COLUMN scm.sync_jobs.updated_at IS 'When the row last changed.';
COMMENT ON COLUMN scm.sync_jobs.finished_at IS 'When it became completed or dead.';

CREATE TABLE scm.sync_runs (
    run_id           uuid        PRIMARY KEY DEFAULT gen_random_uuid(),
    job_id           uuid        NOT NULL REFERENCES scm.sync_jobs,
    attempt          integer     NOT NULL,
    repo_id          bigint      NOT NULL REFERENCES scm.repos,
    job_type         text        NOT NULL,
    mode             text        NOT NULL,
    dagster_run_id   text,
    worker           text        NOT NULL,
    status           text        NOT NULL DEFAULT 'running'
                     CHECK (status IN ('running', 'completed', 'no_data', 'failed', 'interrupted')),
    started_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    finished_at      timestamptz,
    head_rev         bigint,
    watermark_rev_before  bigint,
    watermark_rev_after   bigint,
    watermark_time_before timestamptz,
    watermark_time_after  timestamptz,
    rows_read        bigint      NOT NULL DEFAULT 0,
    inserted         bigint      NOT NULL DEFAULT 0,
    updated          bigint      NOT NULL DEFAULT 0,
    unchanged        bigint      NOT NULL DEFAULT 0,
    poorer           bigint      NOT NULL DEFAULT 0,
    quarantined      bigint      NOT NULL DEFAULT 0,
    batches          integer     NOT NULL DEFAULT 0,
    calls            integer     NOT NULL DEFAULT 0,
    error_code       text,
    error            text        CHECK (length(error) <= 2000),
    code_version     text        NOT NULL,
    UNIQUE (job_id, attempt),
    CHECK ((status = 'running') = (finished_at IS NULL)),
    CHECK (status <> 'failed' OR error_code IS NOT NULL),
    CHECK (status <> 'no_data' OR rows_read = 0)
);
CREATE INDEX sync_runs_by_repo ON scm.sync_runs (repo_id, job_type, started_at);
CREATE INDEX sync_runs_open ON scm.sync_runs (started_at) WHERE status = 'running';
CREATE INDEX sync_runs_by_dagster_run ON scm.sync_runs (dagster_run_id);
COMMENT ON TABLE scm.sync_runs IS 'One row per attempt at a job; nothing overwrites an older attempt.';
COMMENT ON COLUMN scm.sync_runs.run_id IS 'Key of the attempt.';
COMMENT ON COLUMN scm.sync_runs.job_id IS 'The job.';
COMMENT ON COLUMN scm.sync_runs.attempt IS 'Number of the attempt at the job, from 1.';
COMMENT ON COLUMN scm.sync_runs.repo_id IS 'The repository.';
COMMENT ON COLUMN scm.sync_runs.job_type IS 'What was read.';
COMMENT ON COLUMN scm.sync_runs.mode IS 'Why it was read.';
COMMENT ON COLUMN scm.sync_runs.dagster_run_id IS 'The Dagster run in whose process it ran.';
COMMENT ON COLUMN scm.sync_runs.worker IS 'host:pid.';
COMMENT ON COLUMN scm.sync_runs.status IS 'running, completed, no_data (success, nothing to read), failed or interrupted.';
COMMENT ON COLUMN scm.sync_runs.started_at IS 'When it began.';
COMMENT ON COLUMN scm.sync_runs.finished_at IS 'When it ended.';
COMMENT ON COLUMN scm.sync_runs.head_rev IS 'SVN: HEAD as pinned at the start.';
COMMENT ON COLUMN scm.sync_runs.watermark_rev_before IS 'Watermark in revisions at the start.';
COMMENT ON COLUMN scm.sync_runs.watermark_rev_after IS 'Watermark in revisions at the end.';
COMMENT ON COLUMN scm.sync_runs.watermark_time_before IS 'Watermark in time at the start.';
COMMENT ON COLUMN scm.sync_runs.watermark_time_after IS 'Watermark in time at the end.';
COMMENT ON COLUMN scm.sync_runs.rows_read IS 'Rows that arrived from the source.';
COMMENT ON COLUMN scm.sync_runs.inserted IS 'Rows new to the tables.';
COMMENT ON COLUMN scm.sync_runs.updated IS 'Rows whose content changed.';
COMMENT ON COLUMN scm.sync_runs.unchanged IS 'Rows that were stored already.';
COMMENT ON COLUMN scm.sync_runs.poorer IS 'Rows that arrived with less than is stored and changed nothing.';
COMMENT ON COLUMN scm.sync_runs.quarantined IS 'Rows set aside.';
COMMENT ON COLUMN scm.sync_runs.batches IS 'Transactions committed.';
COMMENT ON COLUMN scm.sync_runs.calls IS 'Requests to the source, or svn commands.';
COMMENT ON COLUMN scm.sync_runs.error_code IS 'Low-cardinality word for the failure.';
COMMENT ON COLUMN scm.sync_runs.error IS 'One redacted line about the failure.';
COMMENT ON COLUMN scm.sync_runs.code_version IS 'Version of this program.';

CREATE TABLE scm.sync_batches (
    batch_id     bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    run_id       uuid        NOT NULL REFERENCES scm.sync_runs ON DELETE CASCADE,
    batch_no     integer     NOT NULL,
    repo_id      bigint      NOT NULL,
    job_type     text        NOT NULL,
    fence        bigint      NOT NULL,
    revs         int8range,
    period       tstzrange,
    covers       boolean     NOT NULL,
    rows_read    bigint      NOT NULL DEFAULT 0,
    inserted     bigint      NOT NULL DEFAULT 0,
    updated      bigint      NOT NULL DEFAULT 0,
    unchanged    bigint      NOT NULL DEFAULT 0,
    poorer       bigint      NOT NULL DEFAULT 0,
    quarantined  bigint      NOT NULL DEFAULT 0,
    committed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (run_id, batch_no)
);
COMMENT ON TABLE scm.sync_batches IS 'One row per committed transaction of facts, written in that transaction.';
COMMENT ON COLUMN scm.sync_batches.batch_id IS 'Order of observation: under the lease a later look has a larger id.';
COMMENT ON COLUMN scm.sync_batches.run_id IS 'The attempt that wrote it.';
COMMENT ON COLUMN scm.sync_batches.batch_no IS 'Number within the run, from 1.';
COMMENT ON COLUMN scm.sync_batches.repo_id IS 'The repository.';
COMMENT ON COLUMN scm.sync_batches.job_type IS 'What was read.';
COMMENT ON COLUMN scm.sync_batches.fence IS 'Fence of the lease under which it was written.';
COMMENT ON COLUMN scm.sync_batches.revs IS 'Revisions asked for.';
COMMENT ON COLUMN scm.sync_batches.period IS 'Time asked for.';
COMMENT ON COLUMN scm.sync_batches.covers IS 'True if the batch made its window complete.';
COMMENT ON COLUMN scm.sync_batches.rows_read IS 'Rows that arrived from the source.';
COMMENT ON COLUMN scm.sync_batches.inserted IS 'Rows new to the tables.';
COMMENT ON COLUMN scm.sync_batches.updated IS 'Rows whose content changed.';
COMMENT ON COLUMN scm.sync_batches.unchanged IS 'Rows that were stored already.';
COMMENT ON COLUMN scm.sync_batches.poorer IS 'Rows that arrived with less than is stored and changed nothing.';
COMMENT ON COLUMN scm.sync_batches.quarantined IS 'Rows set aside.';
COMMENT ON COLUMN scm.sync_batches.committed_at IS 'When it was written.';

CREATE TABLE scm.sync_watermark_events (
    event_id     bigint         GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    repo_id      bigint         NOT NULL,
    job_type     text           NOT NULL,
    direction    text           NOT NULL CHECK (direction IN ('register', 'forward', 'backfill', 'origin', 'set', 'reset')),
    added_revs   int8range,
    added_time   tstzrange,
    covered_revs int8multirange,
    covered_time tstzmultirange,
    origin_rev   bigint,
    origin_time  timestamptz,
    watermark_rev  bigint,
    watermark_time timestamptz,
    generation   bigint         NOT NULL,
    actor        text           NOT NULL,
    reason       text           NOT NULL,
    code_version text           NOT NULL,
    run_id       uuid,
    batch_id     bigint,
    created_at   timestamptz    NOT NULL DEFAULT clock_timestamp(),
    FOREIGN KEY (repo_id, job_type) REFERENCES scm.sync_watermarks,
    CHECK ((direction IN ('forward', 'backfill')) = (num_nonnulls(added_revs, added_time) = 1)),
    CHECK ((direction IN ('register', 'set', 'reset')) = (num_nonnulls(covered_revs, covered_time) > 0))
);
CREATE INDEX sync_watermark_events_by_repo ON scm.sync_watermark_events (repo_id, job_type, event_id);
COMMENT ON TABLE scm.sync_watermark_events IS 'Append only: every change of coverage, origin or generation, written in the same transaction as the change.';
COMMENT ON COLUMN scm.sync_watermark_events.event_id IS 'Order of the events.';
COMMENT ON COLUMN scm.sync_watermark_events.repo_id IS 'The repository.';
COMMENT ON COLUMN scm.sync_watermark_events.job_type IS 'The job type.';
COMMENT ON COLUMN scm.sync_watermark_events.direction IS 'register, forward (at or after the origin), backfill (before it), origin (moved back), set or reset (by a person).';
COMMENT ON COLUMN scm.sync_watermark_events.added_revs IS 'Revisions that became complete.';
COMMENT ON COLUMN scm.sync_watermark_events.added_time IS 'Time that became complete.';
COMMENT ON COLUMN scm.sync_watermark_events.covered_revs IS 'register, set, reset: the whole coverage from here on.';
COMMENT ON COLUMN scm.sync_watermark_events.covered_time IS 'register, set, reset: the whole coverage from here on.';
COMMENT ON COLUMN scm.sync_watermark_events.origin_rev IS 'Origin after the event.';
COMMENT ON COLUMN scm.sync_watermark_events.origin_time IS 'Origin after the event.';
COMMENT ON COLUMN scm.sync_watermark_events.watermark_rev IS 'Watermark after the event.';
COMMENT ON COLUMN scm.sync_watermark_events.watermark_time IS 'Watermark after the event.';
COMMENT ON COLUMN scm.sync_watermark_events.generation IS 'Generation after the event.';
COMMENT ON COLUMN scm.sync_watermark_events.actor IS 'Who caused it.';
COMMENT ON COLUMN scm.sync_watermark_events.reason IS 'Why.';
COMMENT ON COLUMN scm.sync_watermark_events.code_version IS 'Version of this program.';
COMMENT ON COLUMN scm.sync_watermark_events.run_id IS 'The attempt that caused it, if one did.';
COMMENT ON COLUMN scm.sync_watermark_events.batch_id IS 'The batch that caused it, if one did.';
COMMENT ON COLUMN scm.sync_watermark_events.created_at IS 'When.';

CREATE FUNCTION scm.refuse_update() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is append only', TG_TABLE_NAME;
END
$$;
COMMENT ON FUNCTION scm.refuse_update IS 'Trigger: refuses to change rows of an append-only table.';
CREATE TRIGGER sync_watermark_events_append_only BEFORE UPDATE ON scm.sync_watermark_events
    FOR EACH ROW EXECUTE FUNCTION scm.refuse_update();

-- Leases -------------------------------------------------------------------------------------------------

CREATE TABLE scm.sync_locks (
    lock_id       bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    repo_id       bigint      NOT NULL REFERENCES scm.repos,
    job_type      text        NOT NULL,
    fence         bigint      NOT NULL DEFAULT 0,
    locked_by     text,
    holder        uuid,
    locked_at     timestamptz,
    expires_at    timestamptz,
    lease_seconds double precision NOT NULL DEFAULT 60,
    created_at    timestamptz NOT NULL DEFAULT now(),
    updated_at    timestamptz NOT NULL DEFAULT now(),
    UNIQUE (repo_id, job_type),
    -- A writer holds FOR KEY SHARE on (lock_id, fence): heartbeats pass, a raised fence waits for it.
    UNIQUE (lock_id, fence),
    CHECK ((locked_by IS NULL) = (expires_at IS NULL))
);
COMMENT ON TABLE scm.sync_locks IS 'The right to write for one (repository, job type). The row stays; a free lease has no holder.';
COMMENT ON COLUMN scm.sync_locks.lock_id IS 'Key of the lease.';
COMMENT ON COLUMN scm.sync_locks.repo_id IS 'The repository.';
COMMENT ON COLUMN scm.sync_locks.job_type IS 'The job type.';
COMMENT ON COLUMN scm.sync_locks.fence IS 'Raised at every claim and forced release; a writer with an older one is refused.';
COMMENT ON COLUMN scm.sync_locks.locked_by IS 'Who holds it, or NULL.';
COMMENT ON COLUMN scm.sync_locks.holder IS 'Claim token of the attempt that holds it.';
COMMENT ON COLUMN scm.sync_locks.locked_at IS 'Since when.';
COMMENT ON COLUMN scm.sync_locks.expires_at IS 'Until when unless renewed (database clock).';
COMMENT ON COLUMN scm.sync_locks.lease_seconds IS 'Length of the lease that the holder asked for.';
COMMENT ON COLUMN scm.sync_locks.created_at IS 'When the row was made.';
COMMENT ON COLUMN scm.sync_locks.updated_at IS 'When the row last changed.';

CREATE TABLE scm.sync_lock_waiters (
    lock_id    bigint      NOT NULL REFERENCES scm.sync_locks ON DELETE CASCADE,
    waiter     uuid        NOT NULL,
    who        text        NOT NULL,
    priority   integer     NOT NULL,
    since      timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (lock_id, waiter)
);
COMMENT ON TABLE scm.sync_lock_waiters IS 'Who waits for a lease; the holder lets a smaller priority in between two chunks.';
COMMENT ON COLUMN scm.sync_lock_waiters.lock_id IS 'The lease.';
COMMENT ON COLUMN scm.sync_lock_waiters.waiter IS 'Random token of the waiting attempt.';
COMMENT ON COLUMN scm.sync_lock_waiters.who IS 'host:pid and job of the waiter.';
COMMENT ON COLUMN scm.sync_lock_waiters.priority IS 'Smaller goes first.';
COMMENT ON COLUMN scm.sync_lock_waiters.since IS 'Since when it waits; older goes first at equal priority.';
COMMENT ON COLUMN scm.sync_lock_waiters.expires_at IS 'When the entry is ignored unless it is refreshed (database clock).';

-- What could not be stored, what is still owed -----------------------------------------------------------

CREATE TABLE scm.quarantine (
    quarantine_id bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    repo_id       bigint      NOT NULL REFERENCES scm.repos,
    job_type      text        NOT NULL,
    natural_key   text        NOT NULL,
    reason        text        NOT NULL,
    detail        text        NOT NULL,
    payload       bytea       NOT NULL,
    batch_id      bigint,
    seen          integer     NOT NULL DEFAULT 1,
    created_at    timestamptz NOT NULL DEFAULT now(),
    last_seen_at  timestamptz NOT NULL DEFAULT now(),
    resolved_at   timestamptz
);
CREATE UNIQUE INDEX quarantine_one_open ON scm.quarantine (repo_id, job_type, natural_key) WHERE resolved_at IS NULL;
COMMENT ON TABLE scm.quarantine IS 'Source rows that cannot be stored. Resolved when the row is stored after all.';
COMMENT ON COLUMN scm.quarantine.quarantine_id IS 'Key of the entry.';
COMMENT ON COLUMN scm.quarantine.repo_id IS 'The repository.';
COMMENT ON COLUMN scm.quarantine.job_type IS 'What was read.';
COMMENT ON COLUMN scm.quarantine.natural_key IS 'Key of the row at its source, such as the revision number.';
COMMENT ON COLUMN scm.quarantine.reason IS 'Low-cardinality word for the cause.';
COMMENT ON COLUMN scm.quarantine.detail IS 'One line for a person.';
COMMENT ON COLUMN scm.quarantine.payload IS 'The row as received, after redaction.';
COMMENT ON COLUMN scm.quarantine.batch_id IS 'The batch that last met it.';
COMMENT ON COLUMN scm.quarantine.seen IS 'How often it was met.';
COMMENT ON COLUMN scm.quarantine.created_at IS 'When it was first met.';
COMMENT ON COLUMN scm.quarantine.last_seen_at IS 'When it was last met.';
COMMENT ON COLUMN scm.quarantine.resolved_at IS 'When the row was stored after all.';

CREATE TABLE scm.obligations (
    obligation_id bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    repo_id       bigint      NOT NULL REFERENCES scm.repos,
    job_type      text        NOT NULL,
    natural_key   text        NOT NULL,
    detail        text        NOT NULL,
    attempts      integer     NOT NULL DEFAULT 0,
    not_before    timestamptz NOT NULL DEFAULT now(),
    last_error    text        NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT now(),
    resolved_at   timestamptz
);
CREATE UNIQUE INDEX obligations_one_open ON scm.obligations (repo_id, job_type, natural_key, detail)
    WHERE resolved_at IS NULL;
COMMENT ON TABLE scm.obligations IS 'Details of stored rows that could not be read and are retried on their own.';
COMMENT ON COLUMN scm.obligations.obligation_id IS 'Key of the obligation.';
COMMENT ON COLUMN scm.obligations.repo_id IS 'The repository.';
COMMENT ON COLUMN scm.obligations.job_type IS 'What was read.';
COMMENT ON COLUMN scm.obligations.natural_key IS 'Key of the row at its source.';
COMMENT ON COLUMN scm.obligations.detail IS 'Which detail is owed: message or changed_paths.';
COMMENT ON COLUMN scm.obligations.attempts IS 'How often it was retried.';
COMMENT ON COLUMN scm.obligations.not_before IS 'Earliest time of the next try.';
COMMENT ON COLUMN scm.obligations.last_error IS 'One redacted line about the latest failure.';
COMMENT ON COLUMN scm.obligations.created_at IS 'When it arose.';
COMMENT ON COLUMN scm.obligations.resolved_at IS 'When the detail was stored.';

-- Hints and heartbeats -----------------------------------------------------------------------------------

CREATE TABLE scm.sync_hints (
    repo_id     bigint      PRIMARY KEY REFERENCES scm.repos,
    head_rev    bigint,
    error_code  text,
    error       text        CHECK (length(error) <= 2000),
    observed_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE scm.sync_hints IS 'What the changes sensor last saw of a repository; a hint for planning, never a proof.';
COMMENT ON COLUMN scm.sync_hints.repo_id IS 'The repository.';
COMMENT ON COLUMN scm.sync_hints.head_rev IS 'SVN: youngest revision seen.';
COMMENT ON COLUMN scm.sync_hints.error_code IS 'Why the look failed, or NULL.';
COMMENT ON COLUMN scm.sync_hints.error IS 'One redacted line about the failure, or NULL.';
COMMENT ON COLUMN scm.sync_hints.observed_at IS 'When the sensor looked.';

CREATE TABLE scm.heartbeats (
    name      text        PRIMARY KEY,
    beat_at   timestamptz NOT NULL,
    seconds   double precision NOT NULL,
    outcome   text        NOT NULL
);
COMMENT ON TABLE scm.heartbeats IS 'When each sensor last finished a tick; a silent sensor shows here.';
COMMENT ON COLUMN scm.heartbeats.name IS 'Name of the sensor.';
COMMENT ON COLUMN scm.heartbeats.beat_at IS 'When its latest tick ended.';
COMMENT ON COLUMN scm.heartbeats.seconds IS 'How long that tick took.';
COMMENT ON COLUMN scm.heartbeats.outcome IS 'One line: what the tick did.';

CREATE TABLE scm.health (
    repo_id      bigint      NOT NULL,
    job_type     text        NOT NULL,
    passed       boolean     NOT NULL,
    reasons      text[]      NOT NULL,
    evaluated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (repo_id, job_type),
    FOREIGN KEY (repo_id, job_type) REFERENCES scm.sync_watermarks
);
COMMENT ON TABLE scm.health IS 'The health verdict last shown in Dagster, so that only changes are reported again.';
COMMENT ON COLUMN scm.health.repo_id IS 'The repository.';
COMMENT ON COLUMN scm.health.job_type IS 'The job type.';
COMMENT ON COLUMN scm.health.passed IS 'True if nothing was wrong.';
COMMENT ON COLUMN scm.health.reasons IS 'What was wrong, as low-cardinality words.';
COMMENT ON COLUMN scm.health.evaluated_at IS 'When the verdict was reported.';

-- SVN facts ----------------------------------------------------------------------------------------------

CREATE TABLE scm.svn_revisions (
    svn_rev_id     bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    repo_id        bigint      NOT NULL REFERENCES scm.repos,
    rev_num        bigint      NOT NULL CHECK (rev_num > 0),
    author_raw     text,
    ts             timestamptz,
    message        text,
    visibility     text        NOT NULL CHECK (visibility IN ('hidden', 'partial', 'full')),
    richness       smallint    NOT NULL,
    path_count     integer     NOT NULL,
    is_bulk        boolean     NOT NULL GENERATED ALWAYS AS (path_count > 100) STORED,
    bulk_reason    text        GENERATED ALWAYS AS (CASE WHEN path_count > 100 THEN 'over_100_paths' END) STORED,
    flags          text[]      NOT NULL DEFAULT '{}',
    meta_json      jsonb       NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(meta_json) = 'object'),
    source_id      text        NOT NULL GENERATED ALWAYS AS ('svn:' || repo_id || ':' || rev_num) STORED,
    content_hash   bytea       NOT NULL,
    paths_hash     bytea       NOT NULL,
    version        integer     NOT NULL DEFAULT 1,
    batch_id       bigint      NOT NULL,
    deleted_at     timestamptz,
    first_seen_at  timestamptz NOT NULL DEFAULT now(),
    updated_at     timestamptz NOT NULL DEFAULT now(),
    UNIQUE (repo_id, rev_num)
);
CREATE INDEX svn_revisions_by_time ON scm.svn_revisions (ts);
COMMENT ON TABLE scm.svn_revisions IS 'One row per revision, the newest version seen. Revision 0 is no fact.';
COMMENT ON COLUMN scm.svn_revisions.svn_rev_id IS 'Key of the row.';
COMMENT ON COLUMN scm.svn_revisions.repo_id IS 'The repository.';
COMMENT ON COLUMN scm.svn_revisions.rev_num IS 'Revision number; with repo_id the natural key.';
COMMENT ON COLUMN scm.svn_revisions.author_raw IS 'svn:author as stored; NULL if the revision has none.';
COMMENT ON COLUMN scm.svn_revisions.ts IS 'svn:date; NULL if there is none or it cannot be read. Not monotonic in rev_num.';
COMMENT ON COLUMN scm.svn_revisions.message IS 'svn:log; NULL if there is none or the server withholds it.';
COMMENT ON COLUMN scm.svn_revisions.visibility IS 'How much the server lets us see: full, partial or hidden.';
COMMENT ON COLUMN scm.svn_revisions.richness IS 'How much of it was read: a look that saw less never overwrites one that saw more.';
COMMENT ON COLUMN scm.svn_revisions.path_count IS 'Number of rows in scm.svn_changed_paths.';
COMMENT ON COLUMN scm.svn_revisions.is_bulk IS 'True over 100 changed paths.';
COMMENT ON COLUMN scm.svn_revisions.bulk_reason IS 'Why it counts as bulk, or NULL.';
COMMENT ON COLUMN scm.svn_revisions.flags IS 'What had to be mended to store it: invalid_utf8, control_characters, nul, bad_date.';
COMMENT ON COLUMN scm.svn_revisions.meta_json IS 'revprops: other revision properties; raw: base64 of bytes that text cannot carry.';
COMMENT ON COLUMN scm.svn_revisions.source_id IS 'svn:<repo_id>:<rev_num>.';
COMMENT ON COLUMN scm.svn_revisions.content_hash IS 'SHA-256 over everything read; equal means unchanged.';
COMMENT ON COLUMN scm.svn_revisions.paths_hash IS 'SHA-256 over the changed paths, which never change in one repository.';
COMMENT ON COLUMN scm.svn_revisions.version IS 'Raised at every change; older versions are in scm.svn_revision_versions.';
COMMENT ON COLUMN scm.svn_revisions.batch_id IS 'The batch that wrote this version.';
COMMENT ON COLUMN scm.svn_revisions.deleted_at IS 'When the revision was confirmed gone from its source; NULL while it exists.';
COMMENT ON COLUMN scm.svn_revisions.first_seen_at IS 'When it was first stored.';
COMMENT ON COLUMN scm.svn_revisions.updated_at IS 'When this version was stored.';

CREATE TABLE scm.svn_changed_paths (
    repo_id       bigint  NOT NULL,
    rev_num       bigint  NOT NULL,
    path_no       integer NOT NULL,
    path          text    NOT NULL,
    action        text    NOT NULL CHECK (action IN ('A', 'D', 'M', 'R')),
    kind          text    CHECK (kind IN ('file', 'dir')),
    copyfrom_path text,
    copyfrom_rev  bigint,
    text_mods     boolean,
    prop_mods     boolean,
    -- No foreign key to scm.svn_revisions: it would cost as much as the rest of the insert. One statement
    -- writes both tables in one transaction, and sql/ops/prove_paths.sql proves it.
    PRIMARY KEY (repo_id, rev_num, path_no)
);
COMMENT ON TABLE scm.svn_changed_paths IS 'One row per changed path of a revision, replaced as a set with it.';
COMMENT ON COLUMN scm.svn_changed_paths.repo_id IS 'The repository.';
COMMENT ON COLUMN scm.svn_changed_paths.rev_num IS 'The revision.';
COMMENT ON COLUMN scm.svn_changed_paths.path_no IS 'Position in the revision, from 1, in the order the server gives.';
COMMENT ON COLUMN scm.svn_changed_paths.path IS 'Absolute path from the repository root.';
COMMENT ON COLUMN scm.svn_changed_paths.action IS 'A added, D deleted, M modified, R replaced.';
COMMENT ON COLUMN scm.svn_changed_paths.kind IS 'file or dir; NULL where the server did not say.';
COMMENT ON COLUMN scm.svn_changed_paths.copyfrom_path IS 'Where it was copied from, or NULL.';
COMMENT ON COLUMN scm.svn_changed_paths.copyfrom_rev IS 'Revision it was copied from, or NULL.';
COMMENT ON COLUMN scm.svn_changed_paths.text_mods IS 'True if the content changed; NULL where unknown.';
COMMENT ON COLUMN scm.svn_changed_paths.prop_mods IS 'True if properties changed; NULL where unknown.';

CREATE TABLE scm.svn_revision_versions (
    repo_id      bigint      NOT NULL,
    rev_num      bigint      NOT NULL,
    version      integer     NOT NULL,
    author_raw   text,
    ts           timestamptz,
    message      text,
    visibility   text        NOT NULL,
    path_count   integer     NOT NULL,
    flags        text[]      NOT NULL,
    meta_json    jsonb       NOT NULL,
    content_hash bytea       NOT NULL,
    batch_id     bigint      NOT NULL,
    seen_from    timestamptz NOT NULL,
    seen_until   timestamptz NOT NULL,
    PRIMARY KEY (repo_id, rev_num, version)
);
COMMENT ON TABLE scm.svn_revision_versions IS 'Earlier versions of revisions whose properties were edited at the source.';
COMMENT ON COLUMN scm.svn_revision_versions.repo_id IS 'The repository.';
COMMENT ON COLUMN scm.svn_revision_versions.rev_num IS 'The revision.';
COMMENT ON COLUMN scm.svn_revision_versions.version IS 'Number of the version, from 1.';
COMMENT ON COLUMN scm.svn_revision_versions.author_raw IS 'svn:author of that version.';
COMMENT ON COLUMN scm.svn_revision_versions.ts IS 'svn:date of that version.';
COMMENT ON COLUMN scm.svn_revision_versions.message IS 'svn:log of that version.';
COMMENT ON COLUMN scm.svn_revision_versions.visibility IS 'How much of it was visible.';
COMMENT ON COLUMN scm.svn_revision_versions.path_count IS 'Number of changed paths of that version.';
COMMENT ON COLUMN scm.svn_revision_versions.flags IS 'What had to be mended to store it.';
COMMENT ON COLUMN scm.svn_revision_versions.meta_json IS 'Other revision properties of that version.';
COMMENT ON COLUMN scm.svn_revision_versions.content_hash IS 'SHA-256 over everything read.';
COMMENT ON COLUMN scm.svn_revision_versions.batch_id IS 'The batch that wrote it.';
COMMENT ON COLUMN scm.svn_revision_versions.seen_from IS 'When it was stored.';
COMMENT ON COLUMN scm.svn_revision_versions.seen_until IS 'When a newer version replaced it.';

-- Facts for readers --------------------------------------------------------------------------------------

CREATE VIEW scm.v_facts AS
SELECT 'svn'::text AS source_type,
       r.source_id,
       r.repo_id,
       r.ts,
       r.author_raw,
       a.user_id AS author_user_id,
       r.is_bulk,
       r.bulk_reason,
       r.meta_json
         || jsonb_build_object('rev_num', r.rev_num, 'path_count', r.path_count, 'visibility', r.visibility)
         AS meta_json
  FROM scm.svn_revisions AS r
  LEFT JOIN identity.accounts AS a ON a.account_type = 'svn' AND a.account_name = r.author_raw
 WHERE r.deleted_at IS NULL;
COMMENT ON VIEW scm.v_facts IS 'Every fact of every source in one shape, without tombstones.';
COMMENT ON COLUMN scm.v_facts.source_type IS 'Which kind of fact: svn.';
COMMENT ON COLUMN scm.v_facts.source_id IS 'Key of the fact over all sources.';
COMMENT ON COLUMN scm.v_facts.repo_id IS 'The repository.';
COMMENT ON COLUMN scm.v_facts.ts IS 'When it happened at the source.';
COMMENT ON COLUMN scm.v_facts.author_raw IS 'Author as the source writes it.';
COMMENT ON COLUMN scm.v_facts.author_user_id IS 'The person, where the account is known.';
COMMENT ON COLUMN scm.v_facts.is_bulk IS 'True for mass changes.';
COMMENT ON COLUMN scm.v_facts.bulk_reason IS 'Why it counts as bulk, or NULL.';
COMMENT ON COLUMN scm.v_facts.meta_json IS 'What is special to the kind of fact.';

-- Readers ------------------------------------------------------------------------------------------------

DO $$
BEGIN
    CREATE ROLE scm_reader NOLOGIN;
EXCEPTION
    -- Roles belong to the whole server: another database of it may have made this one, even at this moment.
    WHEN duplicate_object OR unique_violation THEN NULL;
END
$$;
GRANT USAGE ON SCHEMA scm, identity TO scm_reader;
GRANT SELECT ON ALL TABLES IN SCHEMA scm, identity TO scm_reader;
ALTER DEFAULT PRIVILEGES IN SCHEMA scm GRANT SELECT ON TABLES TO scm_reader;
ALTER DEFAULT PRIVILEGES IN SCHEMA identity GRANT SELECT ON TABLES TO scm_reader;
