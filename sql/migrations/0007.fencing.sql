-- A reread that is asked for while an attempt runs is kept with the job. Additive.
-- depends: 0006.operators

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
COMMENT ON COLUMN scm.dagster_requests.status IS 'What Dagster called it at the last look.';
COMMENT ON COLUMN scm.dagster_requests.ended_at IS 'When the scheduler saw that Dagster is done with it; what is left is the ledger''s alone from then on.';

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
