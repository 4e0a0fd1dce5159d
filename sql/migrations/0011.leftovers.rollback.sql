-- Keys sort as the database does again.
DO $$
DECLARE
    one record;
BEGIN
    FOR one IN
        SELECT c.oid::regclass AS name,
               string_agg(format('ALTER COLUMN %I TYPE text COLLATE "default"', a.attname), ', ') AS changes
          FROM pg_class AS c
          JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
         WHERE c.relkind = 'r' AND c.relnamespace IN ('scm'::regnamespace, 'identity'::regnamespace)
           AND a.attcollation = 'pg_catalog."C"'::regcollation
         GROUP BY c.oid
         ORDER BY c.oid
    LOOP
        EXECUTE format('ALTER TABLE %s %s', one.name, one.changes);
    END LOOP;
END
$$;

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
