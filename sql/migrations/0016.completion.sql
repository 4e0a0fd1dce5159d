-- Completion jobs: repairs that read planned deferred fetches and have no window. No table is rewritten.
-- depends: 0014.comments

ALTER TABLE scm.sync_jobs
    ADD COLUMN only_deferred boolean NOT NULL DEFAULT FALSE,
    DROP CONSTRAINT sync_jobs_check1,
    ADD CONSTRAINT sync_jobs_window
        CHECK (mode IN ('incremental', 'probe') OR num_nonnulls(revs, period) = CASE WHEN only_deferred THEN 0 ELSE 1 END),
    ADD CONSTRAINT sync_jobs_only_deferred
        CHECK (NOT only_deferred
               OR (mode = 'repair' AND NOT (reread OR from_raw OR only_differences) AND quarantine_ids IS NULL));
COMMENT ON COLUMN scm.sync_jobs.only_deferred IS
    'True: reads the planned deferred fetches of the asset and nothing else. The job has no window.';
COMMENT ON COLUMN scm.sync_jobs.revs IS
    'Window in revisions. NULL for incremental, which reads from the watermark to the end, and for only_deferred.';
COMMENT ON COLUMN scm.sync_jobs.period IS
    'Window in time. NULL for incremental, which reads from the watermark to the end, and for only_deferred.';
