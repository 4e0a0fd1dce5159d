-- Forgets who changed rate limits, and what people did to jobs that were deleted since.
DROP TABLE scm.rate_limit_events;
DELETE FROM scm.job_events AS e WHERE NOT EXISTS (SELECT FROM scm.sync_jobs AS j WHERE j.job_id = e.job_id);
ALTER TABLE scm.job_events
    DROP COLUMN repo_id,
    DROP COLUMN job_type,
    DROP COLUMN mode,
    DROP COLUMN "window",
    ADD CONSTRAINT job_events_job_id_fkey FOREIGN KEY (job_id) REFERENCES scm.sync_jobs ON DELETE CASCADE;
COMMENT ON COLUMN scm.job_events.job_id IS 'The job; its events are deleted with it.';

-- Forgets which revisions the source hides by now; their content stays.
ALTER TABLE scm.svn_revisions DROP COLUMN hidden_since;

-- Forgets which tokens saw internal notes.
ALTER TABLE scm.mr_reviews DROP COLUMN saw_internal;

COMMENT ON COLUMN scm.repos.tenant IS 'Owner for fairness and reports; default: first segment of the path.';

ALTER TABLE scm.server_failures DROP COLUMN confirmed_at;
