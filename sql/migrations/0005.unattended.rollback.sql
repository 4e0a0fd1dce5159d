-- Removes what runs unattended: pauses, breakers and rate limits are forgotten, jobs and runs stay.
ALTER TABLE scm.heartbeats DROP COLUMN every_seconds;
DROP TABLE scm.worker_pools, scm.tenants_served, scm.sync_rate_limits, scm.breaker_events, scm.breakers, scm.pauses;
DROP INDEX scm.sync_runs_finished;
ALTER TABLE scm.sync_runs DROP COLUMN rate_limited, DROP COLUMN timeouts, DROP COLUMN waited_seconds, DROP COLUMN degradation;
DROP INDEX scm.sync_jobs_running;
ALTER TABLE scm.sync_jobs DROP COLUMN decision, DROP COLUMN planned_at;
