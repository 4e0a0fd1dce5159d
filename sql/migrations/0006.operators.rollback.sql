-- Forgets what people did to jobs; the jobs stay as they are.
DROP TABLE scm.job_events;
DROP INDEX scm.sync_jobs_waiting_by_repo;
