-- What people did to single jobs, and the order of waiting jobs. Additive.
-- depends: 0005.unattended

CREATE TABLE scm.job_events (
    event_id   bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job_id     uuid        NOT NULL REFERENCES scm.sync_jobs ON DELETE CASCADE,
    action     text        NOT NULL CHECK (action IN ('reset', 'drop', 'release')),
    old_status text        NOT NULL,
    new_status text        NOT NULL,
    actor      text        NOT NULL,
    reason     text        NOT NULL CHECK (reason <> '' AND length(reason) <= 2000),
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX job_events_by_job ON scm.job_events (job_id, created_at);
COMMENT ON TABLE scm.job_events IS 'What a person did to a job: tried again, given up, or taken from its worker.';
COMMENT ON COLUMN scm.job_events.event_id IS 'Number of the event.';
COMMENT ON COLUMN scm.job_events.job_id IS 'The job; its events are deleted with it.';
COMMENT ON COLUMN scm.job_events.action IS 'reset: tried again at once; drop: given up; release: taken from whoever worked on it.';
COMMENT ON COLUMN scm.job_events.old_status IS 'What the job was before.';
COMMENT ON COLUMN scm.job_events.new_status IS 'What it was afterwards.';
COMMENT ON COLUMN scm.job_events.actor IS 'Who did it.';
COMMENT ON COLUMN scm.job_events.reason IS 'Why.';
COMMENT ON COLUMN scm.job_events.created_at IS 'When.';

-- The most urgent waiting jobs of each (repository, job type), for the plan: however long the backlog of one
-- is, the plan finds those of every other.
CREATE INDEX sync_jobs_waiting_by_repo ON scm.sync_jobs (repo_id, job_type, priority, created_at)
    WHERE status IN ('pending', 'failed');

-- What a tenant gets of history costs it no live syncing.
COMMENT ON TABLE scm.tenants_served IS 'When the scheduler last started live syncing for each tenant: who waited longest is served first.';
COMMENT ON COLUMN scm.tenants_served.served_at IS 'When live syncing of it was last started.';
