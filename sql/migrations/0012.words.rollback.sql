DROP VIEW scm.obligations, scm.sync_hints, scm.credential_stops, scm.tenants_served, scm.sweeps, scm.project_looks;

LOCK TABLE scm.sync_jobs, scm.sync_runs, scm.sync_batches, scm.svn_revisions, scm.deferred_fetches, scm.change_hints,
           scm.revoked_credentials, scm.tenant_fairness, scm.reconcile_progress, scm.project_snapshots
    IN ACCESS EXCLUSIVE MODE;

-- Constraints are named after their table.
DO $$
DECLARE
    found record;
BEGIN
    FOR found IN
        SELECT c.conrelid::regclass AS tablename, c.conname, replace(c.conname, n.old, n.new) AS new_name
          FROM (VALUES ('deferred_fetches', 'obligations'),
                       ('change_hints', 'sync_hints'),
                       ('revoked_credentials', 'credential_stops'),
                       ('tenant_fairness', 'tenants_served'),
                       ('reconcile_progress', 'sweeps'),
                       ('project_snapshots', 'project_looks')) AS n (old, new)
          JOIN pg_constraint AS c ON c.conrelid = ('scm.' || n.old)::regclass AND starts_with(c.conname, n.old)
    LOOP
        EXECUTE format('ALTER TABLE %s RENAME CONSTRAINT %I TO %I', found.tablename, found.conname, found.new_name);
    END LOOP;
END
$$;

ALTER TABLE scm.deferred_fetches RENAME TO obligations;
ALTER TABLE scm.change_hints RENAME TO sync_hints;
ALTER TABLE scm.revoked_credentials RENAME TO credential_stops;
ALTER TABLE scm.tenant_fairness RENAME TO tenants_served;
ALTER TABLE scm.reconcile_progress RENAME TO sweeps;
ALTER TABLE scm.project_snapshots RENAME TO project_looks;
ALTER TABLE scm.obligations RENAME COLUMN deferred_fetch_id TO obligation_id;
ALTER SEQUENCE scm.deferred_fetches_deferred_fetch_id_seq RENAME TO obligations_obligation_id_seq;
ALTER INDEX scm.deferred_fetches_one_open RENAME TO obligations_one_open;
ALTER TABLE scm.sync_jobs RENAME COLUMN only_differences TO heals;
ALTER TABLE scm.sync_jobs RENAME CONSTRAINT sync_jobs_only_differences TO sync_jobs_heals;
ALTER TABLE scm.sync_jobs RENAME COLUMN dispatched_at TO planned_at;
ALTER TABLE scm.svn_revisions RENAME COLUMN detail_level TO richness;
ALTER TABLE scm.sync_runs RENAME COLUMN regressed TO poorer;
ALTER TABLE scm.sync_batches RENAME COLUMN regressed TO poorer;
ALTER TABLE scm.sync_batches RENAME COLUMN deferred TO owed;
ALTER TABLE scm.repos RENAME COLUMN missing_confirmations TO vanished_looks;
