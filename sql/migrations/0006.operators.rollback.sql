-- Forgets what people did to jobs; the jobs stay as they are.
DROP TABLE scm.job_events;
DROP INDEX scm.sync_jobs_waiting_by_repo;
COMMENT ON TABLE scm.tenants_served IS 'When the scheduler last started something for each tenant: who waited longest is served first.';
COMMENT ON COLUMN scm.tenants_served.served_at IS 'When something of it was last started.';
