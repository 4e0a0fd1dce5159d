-- Unattended: pauses, circuit breakers, shared rate limits, tenants served, pools of workers, and why each job
-- was started. Additive: a worker of the previous version that is in the middle of a job goes on.
-- depends: 0004.reconciliation

-- Jobs and runs ------------------------------------------------------------------------------------------

ALTER TABLE scm.sync_jobs
    ADD COLUMN decision jsonb CHECK (jsonb_typeof(decision) = 'object'),
    ADD COLUMN planned_at timestamptz;
COMMENT ON COLUMN scm.sync_jobs.decision IS 'What the scheduler knew when it started the job: reason, rates, breaker, caps and what they counted, suggested sizes. NULL where no scheduler did.';
COMMENT ON COLUMN scm.sync_jobs.planned_at IS 'When the scheduler last handed the job to a worker.';
CREATE INDEX sync_jobs_running ON scm.sync_jobs (claim_expires_at) WHERE status = 'running';

ALTER TABLE scm.sync_runs
    ADD COLUMN rate_limited integer NOT NULL DEFAULT 0 CHECK (rate_limited >= 0),
    ADD COLUMN timeouts integer NOT NULL DEFAULT 0 CHECK (timeouts >= 0),
    ADD COLUMN waited_seconds float8 NOT NULL DEFAULT 0 CHECK (waited_seconds >= 0),
    ADD COLUMN degradation jsonb CHECK (jsonb_typeof(degradation) = 'object');
COMMENT ON COLUMN scm.sync_runs.rate_limited IS 'Answers that told us to slow down (429).';
COMMENT ON COLUMN scm.sync_runs.timeouts IS 'Requests that timed out.';
COMMENT ON COLUMN scm.sync_runs.waited_seconds IS 'Seconds spent waiting: for the shared rate limit and before asking again.';
COMMENT ON COLUMN scm.sync_runs.degradation IS 'Smaller sizes that the run worked with, and why. NULL where nothing was degraded.';
CREATE INDEX sync_runs_finished ON scm.sync_runs (finished_at) WHERE status <> 'running';

-- Pauses -------------------------------------------------------------------------------------------------

CREATE TABLE scm.pauses (
    pause_id   bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    scope      text        NOT NULL CHECK (scope IN ('global', 'instance', 'tenant', 'repository')),
    instance   text        CHECK ((scope = 'instance') = (instance IS NOT NULL)),
    tenant     text        CHECK ((scope = 'tenant') = (tenant IS NOT NULL)),
    repo_id    bigint      REFERENCES scm.repos CHECK ((scope = 'repository') = (repo_id IS NOT NULL)),
    job_type   text        CHECK (job_type IN ('commits', 'merge_requests', 'reviews', 'revisions')),
    reason     text        NOT NULL CHECK (reason <> '' AND length(reason) <= 2000),
    actor      text        NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    until      timestamptz,
    ended_at   timestamptz,
    ended_by   text        CHECK ((ended_at IS NULL) = (ended_by IS NULL))
);
CREATE UNIQUE INDEX pauses_one_active ON scm.pauses (scope, instance, tenant, repo_id, job_type)
    NULLS NOT DISTINCT WHERE ended_at IS NULL;
COMMENT ON TABLE scm.pauses IS 'What a person has stopped: nothing new is started or claimed there until the pause ends.';
COMMENT ON COLUMN scm.pauses.pause_id IS 'Number of the pause.';
COMMENT ON COLUMN scm.pauses.scope IS 'What is paused: everything (global), one server, one tenant, or one repository.';
COMMENT ON COLUMN scm.pauses.instance IS 'The paused server.';
COMMENT ON COLUMN scm.pauses.tenant IS 'The paused tenant.';
COMMENT ON COLUMN scm.pauses.repo_id IS 'The paused repository.';
COMMENT ON COLUMN scm.pauses.job_type IS 'Only this job type; NULL is all of them.';
COMMENT ON COLUMN scm.pauses.reason IS 'Why, in one line.';
COMMENT ON COLUMN scm.pauses.actor IS 'Who paused it.';
COMMENT ON COLUMN scm.pauses.created_at IS 'Since when.';
COMMENT ON COLUMN scm.pauses.until IS 'When it ends by itself; NULL is when somebody ends it.';
COMMENT ON COLUMN scm.pauses.ended_at IS 'When it ended, NULL while it is not known to have.';
COMMENT ON COLUMN scm.pauses.ended_by IS 'Who ended it; time where it ended by itself.';

-- Circuit breakers ---------------------------------------------------------------------------------------

CREATE TABLE scm.breakers (
    scope               text        NOT NULL CHECK (scope IN ('global', 'instance', 'tenant')),
    key                 text        NOT NULL,
    state               text        NOT NULL CHECK (state IN ('closed', 'open', 'half_open')),
    since               timestamptz NOT NULL,
    opened_at           timestamptz,
    failure_rate        float8      NOT NULL DEFAULT 0 CHECK (failure_rate BETWEEN 0 AND 1),
    rate_limit_rate     float8      NOT NULL DEFAULT 0 CHECK (rate_limit_rate BETWEEN 0 AND 1),
    timeout_rate        float8      NOT NULL DEFAULT 0 CHECK (timeout_rate BETWEEN 0 AND 1),
    samples             integer     NOT NULL DEFAULT 0 CHECK (samples >= 0),
    judged_upto         timestamptz,
    half_open_successes integer     NOT NULL DEFAULT 0 CHECK (half_open_successes >= 0),
    reason              text        CHECK (length(reason) <= 2000),
    updated_at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (scope, key),
    CHECK (state = 'closed' OR opened_at IS NOT NULL)
);
COMMENT ON TABLE scm.breakers IS 'Circuit breakers: whether so much fails in a scope that nothing but probes is started there. Written at every edge by the scheduler, from finished runs; a scope without a row is closed.';
COMMENT ON COLUMN scm.breakers.scope IS 'global, instance (one server) or tenant.';
COMMENT ON COLUMN scm.breakers.key IS 'The server or the tenant; empty for global.';
COMMENT ON COLUMN scm.breakers.state IS 'closed: all runs; open: nothing does until it may be tried again; half_open: single probes.';
COMMENT ON COLUMN scm.breakers.since IS 'When it came into this state.';
COMMENT ON COLUMN scm.breakers.opened_at IS 'When it last opened.';
COMMENT ON COLUMN scm.breakers.failure_rate IS 'Share of finished runs that failed, smoothed, when it was last judged.';
COMMENT ON COLUMN scm.breakers.rate_limit_rate IS 'Share of finished runs that were told to slow down, smoothed.';
COMMENT ON COLUMN scm.breakers.timeout_rate IS 'Share of finished runs with time-outs, smoothed.';
COMMENT ON COLUMN scm.breakers.samples IS 'Finished runs that were judged.';
COMMENT ON COLUMN scm.breakers.judged_upto IS 'End of the last run that was judged.';
COMMENT ON COLUMN scm.breakers.half_open_successes IS 'Probes in a row that succeeded since.';
COMMENT ON COLUMN scm.breakers.reason IS 'Why it is in this state, in one line.';
COMMENT ON COLUMN scm.breakers.updated_at IS 'When it was last judged.';

CREATE TABLE scm.breaker_events (
    event_id   bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    scope      text        NOT NULL CHECK (scope IN ('global', 'instance', 'tenant')),
    key        text        NOT NULL,
    old_state  text        NOT NULL CHECK (old_state IN ('closed', 'open', 'half_open')),
    new_state  text        NOT NULL CHECK (new_state IN ('closed', 'open', 'half_open')),
    reason     text        NOT NULL CHECK (length(reason) <= 2000),
    actor      text        NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX breaker_events_by_key ON scm.breaker_events (scope, key, event_id);
COMMENT ON TABLE scm.breaker_events IS 'Append only: every change of state of a circuit breaker.';
COMMENT ON COLUMN scm.breaker_events.event_id IS 'Order of the changes.';
COMMENT ON COLUMN scm.breaker_events.scope IS 'See scm.breakers.';
COMMENT ON COLUMN scm.breaker_events.key IS 'See scm.breakers.';
COMMENT ON COLUMN scm.breaker_events.old_state IS 'State before.';
COMMENT ON COLUMN scm.breaker_events.new_state IS 'State after.';
COMMENT ON COLUMN scm.breaker_events.reason IS 'Why, in one line.';
COMMENT ON COLUMN scm.breaker_events.actor IS 'The scheduler, or the person who reset it.';
COMMENT ON COLUMN scm.breaker_events.created_at IS 'When.';
CREATE TRIGGER breaker_events_append_only BEFORE UPDATE ON scm.breaker_events
    FOR EACH ROW EXECUTE FUNCTION scm.refuse_update();

-- Rate limits --------------------------------------------------------------------------------------------

CREATE TABLE scm.sync_rate_limits (
    instance          text        NOT NULL,
    endpoint_class    text        NOT NULL,
    tokens            float8      NOT NULL,
    rate              float8      NOT NULL CHECK (rate > 0),
    refilled_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    paused_until      timestamptz,
    paused_at         timestamptz,
    pause_reason      text        CHECK (length(pause_reason) <= 2000),
    changed_at        timestamptz,
    consecutive_429   integer     NOT NULL DEFAULT 0 CHECK (consecutive_429 >= 0),
    last_429_at       timestamptz,
    consumed          bigint      NOT NULL DEFAULT 0 CHECK (consumed >= 0),
    rejected          bigint      NOT NULL DEFAULT 0 CHECK (rejected >= 0),
    limited           bigint      NOT NULL DEFAULT 0 CHECK (limited >= 0),
    server_limit      integer,
    server_remaining  integer,
    PRIMARY KEY (instance, endpoint_class)
);
COMMENT ON TABLE scm.sync_rate_limits IS 'The token bucket of each server and endpoint class, shared by all processes; times are the database''s clock.';
COMMENT ON COLUMN scm.sync_rate_limits.instance IS 'Key of the server.';
COMMENT ON COLUMN scm.sync_rate_limits.endpoint_class IS 'What takes from the bucket: all requests to a GitLab (all), all commands to an SVN server (svn), or one kind of request to a GitLab that the server limits on its own.';
COMMENT ON COLUMN scm.sync_rate_limits.tokens IS 'Requests that may be sent at once, at refilled_at; below zero: so many have a place in the queue and wait for it.';
COMMENT ON COLUMN scm.sync_rate_limits.rate IS 'Requests per second that flow in: never above the setting, halved when the server says 429, slowly raised after.';
COMMENT ON COLUMN scm.sync_rate_limits.refilled_at IS 'When tokens was last brought up to date; in a pause its end.';
COMMENT ON COLUMN scm.sync_rate_limits.paused_until IS 'No request before this moment.';
COMMENT ON COLUMN scm.sync_rate_limits.paused_at IS 'When the pause was set or lifted; places in the queue from before count no more.';
COMMENT ON COLUMN scm.sync_rate_limits.pause_reason IS 'Why it is or was paused, or who lifted that and why, in one line.';
COMMENT ON COLUMN scm.sync_rate_limits.changed_at IS 'From when on the lowered rate is raised; NULL while it is the setting.';
COMMENT ON COLUMN scm.sync_rate_limits.consecutive_429 IS 'Times in a row that we were told to slow down; answers to requests that were sent together count once.';
COMMENT ON COLUMN scm.sync_rate_limits.last_429_at IS 'The last such time.';
COMMENT ON COLUMN scm.sync_rate_limits.consumed IS 'Requests that were let through, ever.';
COMMENT ON COLUMN scm.sync_rate_limits.rejected IS 'Requests that would have waited too long and were turned away, ever.';
COMMENT ON COLUMN scm.sync_rate_limits.limited IS 'Answers that told us to slow down, ever.';
COMMENT ON COLUMN scm.sync_rate_limits.server_limit IS 'The limit that the server last told, in requests of its own period.';
COMMENT ON COLUMN scm.sync_rate_limits.server_remaining IS 'What it said was left of it.';

-- Tenants and pools --------------------------------------------------------------------------------------

CREATE TABLE scm.tenants_served (
    tenant    text        PRIMARY KEY,
    served_at timestamptz NOT NULL
);
COMMENT ON TABLE scm.tenants_served IS 'When the scheduler last started something for each tenant: who waited longest is served first.';
COMMENT ON COLUMN scm.tenants_served.tenant IS 'The tenant.';
COMMENT ON COLUMN scm.tenants_served.served_at IS 'When something of it was last started.';

CREATE TABLE scm.worker_pools (
    name      text        PRIMARY KEY,
    instances text[]      NOT NULL,
    tenants   text[]      NOT NULL,
    job_types text[]      NOT NULL,
    seen_at   timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE scm.worker_pools IS 'The pools that were alive lately and what each of them takes.';
COMMENT ON COLUMN scm.worker_pools.name IS 'Name of the pool.';
COMMENT ON COLUMN scm.worker_pools.instances IS 'Servers that it takes; empty is all.';
COMMENT ON COLUMN scm.worker_pools.tenants IS 'Tenants that it takes; empty is all.';
COMMENT ON COLUMN scm.worker_pools.job_types IS 'Job types that it takes; empty is all.';
COMMENT ON COLUMN scm.worker_pools.seen_at IS 'When a scheduler or worker of the pool last said that it lives.';

ALTER TABLE scm.heartbeats ADD COLUMN every_seconds float8 CHECK (every_seconds > 0);
COMMENT ON COLUMN scm.heartbeats.every_seconds IS 'How often a tick is expected at least; NULL where the writer does not say.';
