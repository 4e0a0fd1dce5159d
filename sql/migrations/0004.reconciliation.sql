-- Reconciliation: what the source has against what is stored, the differences that were found, and the repair
-- of them. Additive: a worker of the previous version that is in the middle of a job goes on.
-- depends: 0003.quarantine

-- Jobs ---------------------------------------------------------------------------------------------------

ALTER TABLE scm.sync_jobs
    ADD COLUMN depth text CHECK (depth IN ('listing', 'details')),
    ADD COLUMN heals boolean NOT NULL DEFAULT FALSE,
    ADD CONSTRAINT sync_jobs_depth CHECK (depth IS NULL OR mode = 'probe'),
    ADD CONSTRAINT sync_jobs_heals CHECK (NOT heals OR (mode = 'repair' AND NOT from_raw AND quarantine_ids IS NULL));
COMMENT ON COLUMN scm.sync_jobs.depth IS 'Of a probe: listing asks for details only where lists differ, details asks for all of them. NULL for every other job.';
COMMENT ON COLUMN scm.sync_jobs.heals IS 'True: reads the open rows of scm.discrepancies in its window again, and nothing else.';

-- The same number, another project ------------------------------------------------------------------------

ALTER TABLE scm.repos ADD COLUMN source_created_at timestamptz;
COMMENT ON COLUMN scm.repos.source_created_at IS 'GitLab: when the project was created at its server, as first seen; another time is another project.';

-- Comparisons --------------------------------------------------------------------------------------------

CREATE TABLE scm.reconciliations (
    reconciliation_id bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    repo_id           bigint      NOT NULL REFERENCES scm.repos,
    job_type          text        NOT NULL CHECK (job_type IN ('commits', 'merge_requests', 'reviews', 'revisions')),
    revs              int8range,
    period            tstzrange,
    depth             text        NOT NULL CHECK (depth IN ('listing', 'details')),
    status            text        NOT NULL CHECK (status IN ('clean', 'mismatch', 'inconclusive')),
    expected          bigint      NOT NULL,
    stored            bigint      NOT NULL,
    missing           bigint      NOT NULL,
    extra             bigint      NOT NULL,
    changed           bigint      NOT NULL,
    newer             bigint      NOT NULL,
    unreadable        bigint      NOT NULL,
    calls             integer     NOT NULL,
    detail            text        CHECK (length(detail) <= 2000),
    run_id            uuid        NOT NULL,
    compared_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    CHECK (num_nonnulls(revs, period) = 1),
    CHECK (status = 'inconclusive' OR (status = 'mismatch') = (missing + extra + changed > 0)),
    CHECK (status <> 'inconclusive' OR detail IS NOT NULL)
);
CREATE INDEX reconciliations_by_repo ON scm.reconciliations (repo_id, job_type, reconciliation_id);
CREATE INDEX reconciliations_by_time ON scm.reconciliations (compared_at);
COMMENT ON TABLE scm.reconciliations IS 'Append only: every comparison of a window of a (repository, job type) with its source, row by row and value by value.';
COMMENT ON COLUMN scm.reconciliations.reconciliation_id IS 'Order of the comparisons.';
COMMENT ON COLUMN scm.reconciliations.repo_id IS 'The repository.';
COMMENT ON COLUMN scm.reconciliations.job_type IS 'What was compared.';
COMMENT ON COLUMN scm.reconciliations.revs IS 'Revisions that were compared.';
COMMENT ON COLUMN scm.reconciliations.period IS 'Time that was compared: merge requests and reviews by when the merge request was last updated, commits by when they were committed.';
COMMENT ON COLUMN scm.reconciliations.depth IS 'listing: details were asked for only where lists differ; details: all of them.';
COMMENT ON COLUMN scm.reconciliations.status IS 'clean, mismatch, or inconclusive (the source could not be read to the end; nothing was concluded).';
COMMENT ON COLUMN scm.reconciliations.expected IS 'Rows that the source has.';
COMMENT ON COLUMN scm.reconciliations.stored IS 'Rows that are stored, without tombstones.';
COMMENT ON COLUMN scm.reconciliations.missing IS 'Rows that the source has and that are not stored.';
COMMENT ON COLUMN scm.reconciliations.extra IS 'Rows that are stored and that the source does not have, asked in two ways.';
COMMENT ON COLUMN scm.reconciliations.changed IS 'Rows whose values differ.';
COMMENT ON COLUMN scm.reconciliations.newer IS 'Differences that arose after what was read last; the next visit reads them, and they are no mismatch.';
COMMENT ON COLUMN scm.reconciliations.unreadable IS 'Rows of the source that could not be read, and so not compared.';
COMMENT ON COLUMN scm.reconciliations.calls IS 'Requests to the source, or svn commands.';
COMMENT ON COLUMN scm.reconciliations.detail IS 'One redacted line: why it is inconclusive, or where it ended.';
COMMENT ON COLUMN scm.reconciliations.run_id IS 'The attempt that compared.';
COMMENT ON COLUMN scm.reconciliations.compared_at IS 'When it ended.';
CREATE TRIGGER reconciliations_append_only BEFORE UPDATE ON scm.reconciliations
    FOR EACH ROW EXECUTE FUNCTION scm.refuse_update();

CREATE TABLE scm.discrepancies (
    discrepancy_id bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    repo_id        bigint      NOT NULL REFERENCES scm.repos,
    job_type       text        NOT NULL CHECK (job_type IN ('commits', 'merge_requests', 'reviews', 'revisions')),
    natural_key    text        NOT NULL,
    kind           text        NOT NULL CHECK (kind IN ('missing', 'extra', 'changed')),
    fields         text[]      NOT NULL DEFAULT '{}',
    revs           int8range,
    period         tstzrange,
    looks          integer     NOT NULL DEFAULT 1,
    repairs        integer     NOT NULL DEFAULT 0,
    reconciliation bigint      NOT NULL,
    found_at       timestamptz NOT NULL DEFAULT now(),
    last_seen_at   timestamptz NOT NULL DEFAULT now(),
    resolved_at    timestamptz,
    outcome        text        CHECK (outcome IN ('healed', 'deleted', 'returned')),
    CHECK (num_nonnulls(revs, period) <= 1),
    CHECK ((resolved_at IS NULL) = (outcome IS NULL))
);
CREATE UNIQUE INDEX discrepancies_one_open ON scm.discrepancies (repo_id, job_type, natural_key)
    WHERE resolved_at IS NULL;
COMMENT ON TABLE scm.discrepancies IS 'Rows that differ between a source and what is stored. Resolved when a comparison of their place no longer shows them.';
COMMENT ON COLUMN scm.discrepancies.discrepancy_id IS 'Key of the entry.';
COMMENT ON COLUMN scm.discrepancies.repo_id IS 'The repository.';
COMMENT ON COLUMN scm.discrepancies.job_type IS 'What was compared.';
COMMENT ON COLUMN scm.discrepancies.natural_key IS 'Key of the row: a revision number, a sha, branch:<name>, the iid of a merge request, <iid>:<event>, <iid>:approval:<person>.';
COMMENT ON COLUMN scm.discrepancies.kind IS 'missing (not stored), extra (not at the source) or changed.';
COMMENT ON COLUMN scm.discrepancies.fields IS 'changed: the columns whose values differ.';
COMMENT ON COLUMN scm.discrepancies.revs IS 'Where it is among the revisions; NULL with period: anywhere.';
COMMENT ON COLUMN scm.discrepancies.period IS 'Where it is in time; NULL with revs: anywhere.';
COMMENT ON COLUMN scm.discrepancies.looks IS 'How many comparisons saw it as it is now.';
COMMENT ON COLUMN scm.discrepancies.repairs IS 'How many repairs tried to heal it; from the third one on a person has to look.';
COMMENT ON COLUMN scm.discrepancies.reconciliation IS 'The comparison that saw it last.';
COMMENT ON COLUMN scm.discrepancies.found_at IS 'When it was first seen so; for extra: since when it has been gone at every look.';
COMMENT ON COLUMN scm.discrepancies.last_seen_at IS 'When it was last seen.';
COMMENT ON COLUMN scm.discrepancies.resolved_at IS 'When it was seen no longer, or became a tombstone; NULL while it is open.';
COMMENT ON COLUMN scm.discrepancies.outcome IS 'healed (stored equals source), deleted (confirmed gone: a tombstone) or returned (the source has it again).';

CREATE TABLE scm.sweeps (
    repo_id        bigint      NOT NULL,
    job_type       text        NOT NULL,
    next_rev       bigint,
    next_time      timestamptz,
    round_began_at timestamptz,
    round_ended_at timestamptz,
    round_rows     bigint      NOT NULL DEFAULT 0,
    round_done     bigint      NOT NULL DEFAULT 0,
    history_at     timestamptz,
    recent_at      timestamptz,
    places_at      timestamptz,
    PRIMARY KEY (repo_id, job_type),
    FOREIGN KEY (repo_id, job_type) REFERENCES scm.sync_watermarks
);
COMMENT ON TABLE scm.sweeps IS 'How far the rolling comparison of all history got, per (repository, job type).';
COMMENT ON COLUMN scm.sweeps.repo_id IS 'The repository.';
COMMENT ON COLUMN scm.sweeps.job_type IS 'The job type.';
COMMENT ON COLUMN scm.sweeps.next_rev IS 'Revision at which it goes on; NULL: at the beginning.';
COMMENT ON COLUMN scm.sweeps.next_time IS 'Time at which it goes on; NULL: at the beginning.';
COMMENT ON COLUMN scm.sweeps.round_began_at IS 'When the round that is under way began.';
COMMENT ON COLUMN scm.sweeps.round_ended_at IS 'When everything had been compared once more; NULL before the first time.';
COMMENT ON COLUMN scm.sweeps.round_rows IS 'Rows that were stored when the round that is under way began.';
COMMENT ON COLUMN scm.sweeps.round_done IS 'Rows of the round that lie before the place where it goes on.';
COMMENT ON COLUMN scm.sweeps.history_at IS 'When a share of history last had its turn, whatever came of it.';
COMMENT ON COLUMN scm.sweeps.recent_at IS 'When the newest part last had its turn.';
COMMENT ON COLUMN scm.sweeps.places_at IS 'When open differences were last looked at again.';
