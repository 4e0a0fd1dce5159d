-- Small faults: readings that could not show internal notes, revisions that the source hides later, who changed rate
-- limits, events of deleted jobs, keys that sort by bytes. No table is rewritten; indexes on text are built anew.
-- depends: 0010.evidence

-- The locks of the large tables first, in the order in which a writing job takes them.
LOCK TABLE scm.sync_jobs, scm.sync_locks, scm.sync_runs, scm.sync_watermarks, scm.repos, scm.repo_events, scm.job_events,
           scm.svn_revisions, scm.git_commits, scm.refs, scm.mrs, scm.review_events, scm.mr_reviews, scm.mr_approvals,
           scm.mr_reviewers, scm.quarantine, scm.obligations, scm.reconciliations, scm.discrepancies
    IN ACCESS EXCLUSIVE MODE;

ALTER TABLE scm.mr_reviews ADD COLUMN saw_internal boolean;
COMMENT ON COLUMN scm.mr_reviews.saw_internal IS 'The token of the last reading sees internal notes; NULL: not known.';

ALTER TABLE scm.svn_revisions ADD COLUMN hidden_since timestamptz;
COMMENT ON COLUMN scm.svn_revisions.hidden_since IS 'Since when the source shows our account less of the revision than is stored; what is stored stays. NULL: it shows as much.';

-- What people did to a job stays when the job is deleted, so it says what the job was of.
ALTER TABLE scm.job_events
    DROP CONSTRAINT job_events_job_id_fkey,
    ADD COLUMN repo_id bigint,
    ADD COLUMN job_type text,
    ADD COLUMN mode text,
    ADD COLUMN "window" text;
UPDATE scm.job_events AS e
   SET repo_id = j.repo_id, job_type = j.job_type, mode = j.mode, "window" = coalesce(j.revs::text, j.period::text)
  FROM scm.sync_jobs AS j
 WHERE j.job_id = e.job_id;
COMMENT ON COLUMN scm.job_events.job_id IS 'The job; it may be deleted by now.';
COMMENT ON COLUMN scm.job_events.repo_id IS 'The repository of the job.';
COMMENT ON COLUMN scm.job_events.job_type IS 'What the job synced.';
COMMENT ON COLUMN scm.job_events.mode IS 'The mode of the job.';
COMMENT ON COLUMN scm.job_events."window" IS 'The revisions or the time of the job; NULL: live syncing.';

CREATE TABLE scm.rate_limit_events (
    event_id   bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    instance   text        NOT NULL,
    action     text        NOT NULL CHECK (action IN ('pause', 'resume', 'reset')),
    until      timestamptz,
    actor      text        NOT NULL,
    reason     text        NOT NULL CHECK (reason <> '' AND length(reason) <= 2000),
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX rate_limit_events_by_instance ON scm.rate_limit_events (instance, event_id);
COMMENT ON TABLE scm.rate_limit_events IS 'Append only: what people did to the rate limits of a server.';
COMMENT ON COLUMN scm.rate_limit_events.event_id IS 'Order of the events.';
COMMENT ON COLUMN scm.rate_limit_events.instance IS 'Key of the server.';
COMMENT ON COLUMN scm.rate_limit_events.action IS 'pause: nothing is sent for a while; resume: pauses ended; reset: pauses ended, and the rate of the settings.';
COMMENT ON COLUMN scm.rate_limit_events.until IS 'The end of a pause.';
COMMENT ON COLUMN scm.rate_limit_events.actor IS 'Who did it.';
COMMENT ON COLUMN scm.rate_limit_events.reason IS 'Why.';
COMMENT ON COLUMN scm.rate_limit_events.created_at IS 'When.';

COMMENT ON COLUMN scm.repos.tenant IS 'Owner for fairness and reports; default: the first segment of a GitLab project''s path, the server of a Subversion repository (until 0.6.0 the first folder of its URL).';

ALTER TABLE scm.server_failures ADD COLUMN confirmed_at timestamptz;
COMMENT ON COLUMN scm.server_failures.confirmed_at IS 'When a look that waited several times as long as usual timed out too; NULL: none did.';

-- Keys sort by bytes. A collation of the operating system or of ICU may sort otherwise after an upgrade of it, and then
-- a unique index no longer finds what it has. Only indexes are built anew, no table. Left out are columns that a view
-- uses or an expression defines, and names of commits, whose digits sort alike everywhere: they are compared with one
-- that a view uses. The statistics of a column go with its collation, so they are gathered again.
DO $$
DECLARE
    one record;
BEGIN
    FOR one IN
        SELECT c.oid::regclass AS name,
               string_agg(format('ALTER COLUMN %I TYPE text COLLATE "C"', a.attname), ', ' ORDER BY a.attnum) AS changes,
               string_agg(quote_ident(a.attname), ', ' ORDER BY a.attnum) AS names
          FROM pg_class AS c
          JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
         WHERE c.relkind = 'r' AND c.relnamespace IN ('scm'::regnamespace, 'identity'::regnamespace)
           AND a.atttypid = 'text'::regtype AND a.attcollation = 'pg_catalog."default"'::regcollation
           AND a.attgenerated = '' AND a.attname NOT IN ('commit_sha', 'tip', 'covered')
           AND ((c.oid = 'scm.repos'::regclass AND a.attname = 'url')
                OR EXISTS (SELECT FROM pg_index AS i WHERE i.indrelid = c.oid AND a.attnum = ANY (i.indkey)))
           AND NOT EXISTS (SELECT FROM pg_depend AS d
                            WHERE d.classid = 'pg_rewrite'::regclass AND d.refclassid = 'pg_class'::regclass
                              AND d.refobjid = c.oid AND d.refobjsubid = a.attnum)
         GROUP BY c.oid
         ORDER BY c.oid
    LOOP
        EXECUTE format('ALTER TABLE %s %s', one.name, one.changes);
        EXECUTE format('ANALYZE %s (%s)', one.name, one.names);
    END LOOP;
END
$$;
