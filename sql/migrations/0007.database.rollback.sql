-- Allows the statements again.
DROP TRIGGER sync_jobs_keep_unfinished ON scm.sync_jobs;
DROP TRIGGER sync_jobs_no_truncate ON scm.sync_jobs;
DROP FUNCTION scm.refuse_delete_of_job();
DROP TRIGGER sync_locks_no_delete ON scm.sync_locks;
DROP TRIGGER sync_locks_no_truncate ON scm.sync_locks;
DROP FUNCTION scm.refuse_delete_of_lease();
