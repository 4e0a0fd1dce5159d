-- Forgets what people did to jobs; the jobs stay as they are.
DROP TABLE scm.job_events;
