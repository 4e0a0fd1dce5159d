-- Completion jobs: repairs that read planned deferred fetches and have no window. No table is rewritten.
-- depends: 0015.levels

ALTER TABLE scm.sync_jobs
    ADD COLUMN only_deferred boolean NOT NULL DEFAULT FALSE,
    DROP CONSTRAINT sync_jobs_check1,
    ADD CONSTRAINT sync_jobs_window
        CHECK (mode IN ('incremental', 'probe') OR num_nonnulls(revs, period) = CASE WHEN only_deferred THEN 0 ELSE 1 END),
    ADD CONSTRAINT sync_jobs_only_deferred
        CHECK (NOT only_deferred
               OR (mode = 'repair' AND NOT (reread OR from_raw OR only_differences) AND quarantine_ids IS NULL));
CREATE INDEX sync_jobs_completion ON scm.sync_jobs (repo_id, job_type, created_at) WHERE only_deferred;
-- The few that failed, among many planned ones.
CREATE INDEX deferred_fetches_failed ON scm.deferred_fetches (repo_id, job_type, not_before)
    WHERE resolved_at IS NULL AND NOT is_planned;
-- When planned fetches were last read.
CREATE INDEX deferred_fetches_read ON scm.deferred_fetches (repo_id, job_type, resolved_at)
    WHERE is_planned AND resolved_at IS NOT NULL;
COMMENT ON COLUMN scm.sync_jobs.only_deferred IS
    'True: reads the planned deferred fetches of the asset and nothing else. The job has no window.';
COMMENT ON TABLE scm.sync_watermarks IS
    'Coverage of each asset: the windows whose rows are all stored. Planned rows of scm.deferred_fetches say which details are still to be read. scm.sync_watermark_events can rebuild it exactly.';
COMMENT ON COLUMN scm.sync_watermarks.covered_time IS
    'Time whose rows are all stored, at least at the level usable.';
COMMENT ON COLUMN scm.sync_jobs.revs IS
    'Window in revisions. NULL for incremental, which reads from the watermark to the end, and for only_deferred.';
COMMENT ON COLUMN scm.sync_jobs.period IS
    'Window in time. NULL for incremental, which reads from the watermark to the end, and for only_deferred.';
