-- The job types as a table, so that a new one is one statement: five tables listed them in constraints. Each of these
-- tables is scanned once; none is rewritten.
-- depends: 0012.words

-- The locks of the large tables first, in the order in which a writing job takes them.
LOCK TABLE scm.sync_jobs, scm.sync_watermarks, scm.reconciliations, scm.discrepancies, scm.pauses IN ACCESS EXCLUSIVE MODE;

CREATE TABLE scm.job_types (
    job_type text    COLLATE "C" PRIMARY KEY,
    kind     text    NOT NULL CHECK (kind IN ('gitlab', 'svn')),
    family   text    NOT NULL,
    by_time  boolean NOT NULL
);
COMMENT ON TABLE scm.job_types IS 'Job types that can be synced. scm.add_job_type() adds one.';
COMMENT ON COLUMN scm.job_types.job_type IS 'Name of the job type.';
COMMENT ON COLUMN scm.job_types.kind IS 'The kind of repository that has it.';
COMMENT ON COLUMN scm.job_types.family IS 'Job types of one family are read together, by one step.';
COMMENT ON COLUMN scm.job_types.by_time IS 'A window is what was updated in it, and each batch completes a part of its window.';
INSERT INTO scm.job_types (job_type, kind, family, by_time)
VALUES ('commits', 'gitlab', 'commits', FALSE), ('merge_requests', 'gitlab', 'merge_requests', TRUE),
       ('reviews', 'gitlab', 'merge_requests', TRUE), ('revisions', 'svn', 'revisions', FALSE);

ALTER TABLE scm.sync_jobs
    DROP CONSTRAINT sync_jobs_job_type_check,
    ADD FOREIGN KEY (job_type) REFERENCES scm.job_types;
ALTER TABLE scm.sync_watermarks
    DROP CONSTRAINT sync_watermarks_job_type_check,
    ADD FOREIGN KEY (job_type) REFERENCES scm.job_types;
ALTER TABLE scm.reconciliations
    DROP CONSTRAINT reconciliations_job_type_check,
    ADD FOREIGN KEY (job_type) REFERENCES scm.job_types;
ALTER TABLE scm.discrepancies
    DROP CONSTRAINT discrepancies_job_type_check,
    ADD FOREIGN KEY (job_type) REFERENCES scm.job_types;
ALTER TABLE scm.pauses
    DROP CONSTRAINT pauses_job_type_check,
    ADD FOREIGN KEY (job_type) REFERENCES scm.job_types;

CREATE FUNCTION scm.add_job_type(name text, of_kind text) RETURNS void LANGUAGE sql
BEGIN ATOMIC
    INSERT INTO scm.job_types (job_type, kind, family, by_time) VALUES (name, of_kind, name, FALSE);
    INSERT INTO scm.sync_watermarks (repo_id, job_type, origin_rev, origin_time)
    SELECT w.repo_id, name, max(w.origin_rev), max(w.origin_time)
      FROM scm.sync_watermarks AS w
      JOIN scm.repos AS r USING (repo_id)
     WHERE r.kind = of_kind
     GROUP BY w.repo_id;
    INSERT INTO scm.sync_watermark_events
           (repo_id, job_type, direction, covered_revs, covered_time, origin_rev, origin_time, watermark_rev,
            watermark_time, generation, actor, reason, code_version)
    SELECT repo_id, job_type, 'register', covered_revs, covered_time, origin_rev, origin_time, watermark_rev,
           watermark_time, generation, 'migration', 'the job type is new', ''
      FROM scm.sync_watermarks
     WHERE job_type = name;
END;
COMMENT ON FUNCTION scm.add_job_type(text, text) IS 'Adds a job type that is read as a whole list, for new repositories and for those that are registered.';

CREATE FUNCTION scm.remove_job_type(name text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    ALTER TABLE scm.sync_jobs DISABLE TRIGGER USER;
    ALTER TABLE scm.sync_locks DISABLE TRIGGER USER;
    DELETE FROM scm.sync_runs WHERE job_type = name;
    DELETE FROM scm.sync_jobs WHERE job_type = name;
    DELETE FROM scm.sync_locks WHERE job_type = name;
    DELETE FROM scm.quarantine WHERE job_type = name;
    DELETE FROM scm.deferred_fetches WHERE job_type = name;
    DELETE FROM scm.unreadable_details WHERE job_type = name;
    DELETE FROM scm.discrepancies WHERE job_type = name;
    DELETE FROM scm.reconciliations WHERE job_type = name;
    DELETE FROM scm.reconcile_progress WHERE job_type = name;
    DELETE FROM scm.health WHERE job_type = name;
    DELETE FROM scm.pauses WHERE job_type = name;
    DELETE FROM scm.job_events WHERE job_type = name;
    DELETE FROM scm.sync_watermark_events WHERE job_type = name;
    DELETE FROM scm.sync_watermarks WHERE job_type = name;
    DELETE FROM scm.job_types WHERE job_type = name;
    ALTER TABLE scm.sync_jobs ENABLE TRIGGER USER;
    ALTER TABLE scm.sync_locks ENABLE TRIGGER USER;
END
$$;
COMMENT ON FUNCTION scm.remove_job_type(text) IS 'For the rollback of a migration: removes a job type with all that was kept of it, but for its facts.';
