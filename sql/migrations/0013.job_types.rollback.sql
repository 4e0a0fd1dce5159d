-- The constraints list the job types again.
DROP FUNCTION scm.add_job_type(text, text);
DROP FUNCTION scm.remove_job_type(text);
ALTER TABLE scm.sync_jobs
    DROP CONSTRAINT sync_jobs_job_type_fkey,
    ADD CHECK (job_type IN ('commits', 'merge_requests', 'reviews', 'revisions'));
ALTER TABLE scm.sync_watermarks
    DROP CONSTRAINT sync_watermarks_job_type_fkey,
    ADD CHECK (job_type IN ('commits', 'merge_requests', 'reviews', 'revisions'));
ALTER TABLE scm.reconciliations
    DROP CONSTRAINT reconciliations_job_type_fkey,
    ADD CHECK (job_type IN ('commits', 'merge_requests', 'reviews', 'revisions'));
ALTER TABLE scm.discrepancies
    DROP CONSTRAINT discrepancies_job_type_fkey,
    ADD CHECK (job_type IN ('commits', 'merge_requests', 'reviews', 'revisions'));
ALTER TABLE scm.pauses
    DROP CONSTRAINT pauses_job_type_fkey,
    ADD CHECK (job_type IN ('commits', 'merge_requests', 'reviews', 'revisions'));
DROP TABLE scm.job_types;
