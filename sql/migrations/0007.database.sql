-- Statements that lose queued work or leases are refused, with the command to use. Additive.
-- depends: 0006.operators

CREATE FUNCTION scm.refuse_delete_of_job() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'TRUNCATE' THEN
        RAISE EXCEPTION 'scm.sync_jobs is not truncated: queued history would be lost for good'
            USING HINT = 'Give waiting jobs up with: scm-sync admin jobs drop --all --reason "..."';
    END IF;
    RAISE EXCEPTION 'job % is %, not finished, and is not deleted: what it has to read would be lost for good', OLD.job_id, OLD.status
        USING HINT = format('Give it up with: scm-sync admin jobs drop %s --reason "...", many of them with --mode backfill --older-than 7d instead of the id. '
                            'Finished jobs are deleted with: scm-sync admin retention --execute', OLD.job_id);
END
$$;
COMMENT ON FUNCTION scm.refuse_delete_of_job IS 'Trigger: refuses to delete jobs that are not finished, and names the command to use.';
CREATE TRIGGER sync_jobs_keep_unfinished BEFORE DELETE ON scm.sync_jobs
    FOR EACH ROW WHEN (OLD.status NOT IN ('completed', 'dead')) EXECUTE FUNCTION scm.refuse_delete_of_job();
CREATE TRIGGER sync_jobs_no_truncate BEFORE TRUNCATE ON scm.sync_jobs
    FOR EACH STATEMENT EXECUTE FUNCTION scm.refuse_delete_of_job();

CREATE FUNCTION scm.refuse_delete_of_lease() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'rows of scm.sync_locks are not deleted: a writer that lost its lease could no longer be refused'
        USING HINT = 'Release leases of lost workers with: scm-sync reaper; take a job from a worker that hangs with: scm-sync admin jobs release <job id> --reason "..."';
END
$$;
COMMENT ON FUNCTION scm.refuse_delete_of_lease IS 'Trigger: refuses to delete leases, and names the commands to use.';
CREATE TRIGGER sync_locks_no_delete BEFORE DELETE ON scm.sync_locks
    FOR EACH ROW EXECUTE FUNCTION scm.refuse_delete_of_lease();
CREATE TRIGGER sync_locks_no_truncate BEFORE TRUNCATE ON scm.sync_locks
    FOR EACH STATEMENT EXECUTE FUNCTION scm.refuse_delete_of_lease();
