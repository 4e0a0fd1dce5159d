-- Standard names for tables and columns. Views keep the old names of the tables. No row is rewritten.
-- depends: 0011.leftovers

LOCK TABLE scm.sync_jobs, scm.sync_runs, scm.sync_batches, scm.svn_revisions, scm.obligations, scm.sync_hints,
           scm.credential_stops, scm.tenants_served, scm.sweeps, scm.project_looks
    IN ACCESS EXCLUSIVE MODE;

ALTER TABLE scm.obligations RENAME TO deferred_fetches;
ALTER TABLE scm.sync_hints RENAME TO change_hints;
ALTER TABLE scm.credential_stops RENAME TO revoked_credentials;
ALTER TABLE scm.tenants_served RENAME TO tenant_fairness;
ALTER TABLE scm.sweeps RENAME TO reconcile_progress;
ALTER TABLE scm.project_looks RENAME TO project_snapshots;
ALTER TABLE scm.deferred_fetches RENAME COLUMN obligation_id TO deferred_fetch_id;
ALTER SEQUENCE scm.obligations_obligation_id_seq RENAME TO deferred_fetches_deferred_fetch_id_seq;
ALTER INDEX scm.obligations_one_open RENAME TO deferred_fetches_one_open;
ALTER TABLE scm.sync_jobs RENAME COLUMN heals TO only_differences;
ALTER TABLE scm.sync_jobs RENAME CONSTRAINT sync_jobs_heals TO sync_jobs_only_differences;
ALTER TABLE scm.sync_jobs RENAME COLUMN planned_at TO dispatched_at;
ALTER TABLE scm.svn_revisions RENAME COLUMN richness TO detail_level;
ALTER TABLE scm.sync_runs RENAME COLUMN poorer TO regressed;
ALTER TABLE scm.sync_batches RENAME COLUMN poorer TO regressed;
ALTER TABLE scm.sync_batches RENAME COLUMN owed TO deferred;
ALTER TABLE scm.repos RENAME COLUMN vanished_looks TO missing_confirmations;

-- Constraints are named after their table.
DO $$
DECLARE
    found record;
BEGIN
    FOR found IN
        SELECT c.conrelid::regclass AS tablename, c.conname, replace(c.conname, n.old, n.new) AS new_name
          FROM (VALUES ('obligations', 'deferred_fetches'),
                       ('sync_hints', 'change_hints'),
                       ('credential_stops', 'revoked_credentials'),
                       ('tenants_served', 'tenant_fairness'),
                       ('sweeps', 'reconcile_progress'),
                       ('project_looks', 'project_snapshots')) AS n (old, new)
          JOIN pg_constraint AS c ON c.conrelid = ('scm.' || n.new)::regclass AND starts_with(c.conname, n.old)
    LOOP
        EXECUTE format('ALTER TABLE %s RENAME CONSTRAINT %I TO %I', found.tablename, found.conname, found.new_name);
    END LOOP;
END
$$;

COMMENT ON TABLE scm.deferred_fetches IS 'Details of stored rows that could not be read yet. They count as missing and are read later.';
COMMENT ON COLUMN scm.deferred_fetches.deferred_fetch_id IS 'Key of the row.';
COMMENT ON COLUMN scm.deferred_fetches.detail IS 'Missing detail, such as approvals, versions, notes, message or changed_paths.';
COMMENT ON COLUMN scm.deferred_fetches.attempts IS 'Number of failed attempts to read the detail.';
COMMENT ON COLUMN scm.deferred_fetches.not_before IS 'Earliest time of the next attempt.';
COMMENT ON COLUMN scm.deferred_fetches.created_at IS 'When the detail was first found missing.';
COMMENT ON TABLE scm.change_hints IS 'Latest sign of activity of each repository, written by the changes sensor. A hint for planning, never a proof.';
COMMENT ON COLUMN scm.change_hints.head_rev IS 'SVN: youngest revision seen.';
COMMENT ON COLUMN scm.change_hints.error_code IS 'Why the request failed, or NULL.';
COMMENT ON COLUMN scm.change_hints.observed_at IS 'When the sensor asked the server.';
COMMENT ON COLUMN scm.change_hints.failures IS 'Number of failed requests in a row; 0 after a success.';
COMMENT ON TABLE scm.revoked_credentials IS 'Tokens that a server rejected with status 401. No job starts with such a token until the server accepts it again.';
COMMENT ON COLUMN scm.revoked_credentials.fingerprint IS 'Start of the SHA-256 of the token. It distinguishes the token from a renewed one and reveals nothing else.';
COMMENT ON COLUMN scm.revoked_credentials.stopped_at IS 'When the server first rejected the token.';
COMMENT ON COLUMN scm.revoked_credentials.last_seen_at IS 'When the server last rejected the token. One job tries again an hour later.';
COMMENT ON TABLE scm.tenant_fairness IS 'When the scheduler last started live syncing for each tenant. The tenant that waited longest goes first.';
COMMENT ON COLUMN scm.tenant_fairness.served_at IS 'When live syncing of the tenant last started.';
COMMENT ON TABLE scm.reconcile_progress IS 'Progress of the continuous comparison with the source, per (repository, job type).';
COMMENT ON COLUMN scm.reconcile_progress.next_rev IS 'Revision at which the comparison continues; NULL: at the beginning.';
COMMENT ON COLUMN scm.reconcile_progress.next_time IS 'Time at which the comparison continues; NULL: at the beginning.';
COMMENT ON COLUMN scm.reconcile_progress.round_began_at IS 'Start of the current round over the whole history.';
COMMENT ON COLUMN scm.reconcile_progress.round_ended_at IS 'End of the last complete round; NULL before the first one.';
COMMENT ON COLUMN scm.reconcile_progress.round_rows IS 'Number of rows that were stored at the start of the current round.';
COMMENT ON COLUMN scm.reconcile_progress.round_done IS 'Number of rows of the current round that are compared.';
COMMENT ON COLUMN scm.reconcile_progress.history_at IS 'When a part of the history was last compared, with any result.';
COMMENT ON COLUMN scm.reconcile_progress.recent_at IS 'When the newest part was last compared.';
COMMENT ON COLUMN scm.reconcile_progress.places_at IS 'When open differences were last checked again.';
COMMENT ON TABLE scm.project_snapshots IS 'Latest answer about each GitLab project. Visits of its other job types use it for one minute, so that each round asks once.';
COMMENT ON COLUMN scm.project_snapshots.fingerprint IS 'Fingerprint of the token, as in scm.revoked_credentials. Another token may get another answer.';
COMMENT ON COLUMN scm.project_snapshots.job_types IS 'Job types that have used the answer. Each uses it once.';
COMMENT ON COLUMN scm.project_snapshots.raw IS 'The project as the server returned it, without secrets.';
COMMENT ON COLUMN scm.project_snapshots.server_date IS 'Time of the answer by the server''s clock; NULL where the server gave none.';
COMMENT ON COLUMN scm.project_snapshots.looked_at IS 'Time of the answer by the database''s clock.';
COMMENT ON COLUMN scm.sync_jobs.only_differences IS 'True: reads only the rows of scm.discrepancies that are open in the window of the job.';
COMMENT ON COLUMN scm.sync_jobs.dispatched_at IS 'When the scheduler last dispatched the job to a worker.';
COMMENT ON COLUMN scm.svn_revisions.detail_level IS 'How much of the revision was read. A reading with less detail never overwrites one with more.';
COMMENT ON COLUMN scm.sync_runs.regressed IS 'Number of rows that arrived with less than is stored. They changed nothing.';
COMMENT ON COLUMN scm.sync_batches.regressed IS 'Number of rows that arrived with less than is stored. They changed nothing.';
COMMENT ON COLUMN scm.sync_batches.deferred IS 'Details that could not be read and are read later (scm.deferred_fetches).';
COMMENT ON COLUMN scm.repos.missing_confirmations IS 'Number of complete listings in a row that did not contain the repository.';

CREATE VIEW scm.obligations AS
    SELECT deferred_fetch_id AS obligation_id, repo_id, job_type, natural_key, detail, attempts, not_before, last_error,
           created_at, resolved_at
      FROM scm.deferred_fetches;
COMMENT ON VIEW scm.obligations IS 'Old name of scm.deferred_fetches, kept for queries until 1.0.';
CREATE VIEW scm.sync_hints AS
    SELECT *
      FROM scm.change_hints;
COMMENT ON VIEW scm.sync_hints IS 'Old name of scm.change_hints, kept for queries until 1.0.';
CREATE VIEW scm.credential_stops AS
    SELECT *
      FROM scm.revoked_credentials;
COMMENT ON VIEW scm.credential_stops IS 'Old name of scm.revoked_credentials, kept for queries until 1.0.';
CREATE VIEW scm.tenants_served AS
    SELECT *
      FROM scm.tenant_fairness;
COMMENT ON VIEW scm.tenants_served IS 'Old name of scm.tenant_fairness, kept for queries until 1.0.';
CREATE VIEW scm.sweeps AS
    SELECT *
      FROM scm.reconcile_progress;
COMMENT ON VIEW scm.sweeps IS 'Old name of scm.reconcile_progress, kept for queries until 1.0.';
CREATE VIEW scm.project_looks AS
    SELECT *
      FROM scm.project_snapshots;
COMMENT ON VIEW scm.project_looks IS 'Old name of scm.project_snapshots, kept for queries until 1.0.';

-- Columns of the views have the comments of the tables.
DO $$
DECLARE
    found record;
BEGIN
    FOR found IN
        SELECT v.attrelid::regclass AS viewname, v.attname,
               coalesce(col_description(t.attrelid, t.attnum), 'Key of the row.') AS meaning
          FROM (VALUES ('obligations', 'deferred_fetches'),
                       ('sync_hints', 'change_hints'),
                       ('credential_stops', 'revoked_credentials'),
                       ('tenants_served', 'tenant_fairness'),
                       ('sweeps', 'reconcile_progress'),
                       ('project_looks', 'project_snapshots')) AS n (old, new)
          JOIN pg_attribute AS v ON v.attrelid = ('scm.' || n.old)::regclass AND v.attnum > 0
          LEFT JOIN pg_attribute AS t ON t.attrelid = ('scm.' || n.new)::regclass AND t.attname = v.attname
    LOOP
        EXECUTE format('COMMENT ON COLUMN %s.%I IS %L', found.viewname, found.attname, found.meaning);
    END LOOP;
END
$$;

-- Roles that may read a table may read the view of its old name.
DO $$
DECLARE
    found record;
BEGIN
    FOR found IN
        SELECT n.old, coalesce(quote_ident(r.rolname), 'PUBLIC') AS reader
          FROM (VALUES ('obligations', 'deferred_fetches'), ('sync_hints', 'change_hints'),
                       ('credential_stops', 'revoked_credentials'), ('tenants_served', 'tenant_fairness'),
                       ('sweeps', 'reconcile_progress'), ('project_looks', 'project_snapshots')) AS n (old, new)
          JOIN pg_class AS c ON c.oid = ('scm.' || n.new)::regclass
         CROSS JOIN LATERAL aclexplode(c.relacl) AS a
          LEFT JOIN pg_roles AS r ON r.oid = a.grantee
         WHERE a.privilege_type = 'SELECT' AND a.grantee <> c.relowner
    LOOP
        EXECUTE format('GRANT SELECT ON scm.%I TO %s', found.old, found.reader);
    END LOOP;
END
$$;
