-- Removes completion jobs with their attempts. The deferred fetches stay.
ALTER TABLE scm.sync_jobs DISABLE TRIGGER USER;
DELETE FROM scm.sync_runs WHERE job_id IN (SELECT job_id FROM scm.sync_jobs WHERE only_deferred);
DELETE FROM scm.sync_jobs WHERE only_deferred;
ALTER TABLE scm.sync_jobs ENABLE TRIGGER USER;
ALTER TABLE scm.sync_jobs
    DROP CONSTRAINT sync_jobs_window,
    DROP COLUMN only_deferred,
    ADD CONSTRAINT sync_jobs_check1 CHECK (mode IN ('incremental', 'probe') OR num_nonnulls(revs, period) = 1);
COMMENT ON COLUMN scm.sync_jobs.revs IS
    'The window in revisions; NULL for incremental, which reads from the watermark to the end.';
COMMENT ON COLUMN scm.sync_jobs.period IS
    'The window in time; NULL for incremental, which reads from the watermark to the end.';
