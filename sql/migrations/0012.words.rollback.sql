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

COMMENT ON TABLE scm.obligations IS 'Details of stored rows that could not be read and are retried on their own.';
COMMENT ON COLUMN scm.obligations.obligation_id IS 'Key of the obligation.';
COMMENT ON COLUMN scm.obligations.detail IS 'Which detail is owed: message or changed_paths.';
COMMENT ON COLUMN scm.obligations.attempts IS 'How often it was retried.';
COMMENT ON COLUMN scm.obligations.not_before IS 'Earliest time of the next try.';
COMMENT ON COLUMN scm.obligations.created_at IS 'When it arose.';
COMMENT ON TABLE scm.sync_hints IS 'What the changes sensor last saw of a repository; a hint for planning, never a proof.';
COMMENT ON COLUMN scm.sync_hints.head_rev IS 'SVN: youngest revision seen.';
COMMENT ON COLUMN scm.sync_hints.error_code IS 'Why the look failed, or NULL.';
COMMENT ON COLUMN scm.sync_hints.observed_at IS 'When the sensor looked.';
COMMENT ON COLUMN scm.sync_hints.failures IS 'Looks in a row that failed; 0 where the latest one did not.';
COMMENT ON TABLE scm.credential_stops IS 'Tokens that a server refused (401): nothing is started with them until one is accepted again.';
COMMENT ON COLUMN scm.credential_stops.fingerprint IS 'Start of the SHA-256 of the token, which tells it from a renewed one and nothing else.';
COMMENT ON COLUMN scm.credential_stops.stopped_at IS 'When it was first refused.';
COMMENT ON COLUMN scm.credential_stops.last_seen_at IS 'When it was last refused; an hour later one job tries again.';
COMMENT ON TABLE scm.tenants_served IS 'When the scheduler last started live syncing for each tenant: who waited longest is served first.';
COMMENT ON COLUMN scm.tenants_served.served_at IS 'When live syncing of it was last started.';
COMMENT ON TABLE scm.sweeps IS 'How far the rolling comparison of all history got, per (repository, job type).';
COMMENT ON COLUMN scm.sweeps.next_rev IS 'Revision at which it goes on; NULL: at the beginning.';
COMMENT ON COLUMN scm.sweeps.next_time IS 'Time at which it goes on; NULL: at the beginning.';
COMMENT ON COLUMN scm.sweeps.round_began_at IS 'When the round that is under way began.';
COMMENT ON COLUMN scm.sweeps.round_ended_at IS 'When everything had been compared once more; NULL before the first time.';
COMMENT ON COLUMN scm.sweeps.round_rows IS 'Rows that were stored when the round that is under way began.';
COMMENT ON COLUMN scm.sweeps.round_done IS 'Rows of the round that lie before the place where it goes on.';
COMMENT ON COLUMN scm.sweeps.history_at IS 'When a share of history last had its turn, whatever came of it.';
COMMENT ON COLUMN scm.sweeps.recent_at IS 'When the newest part last had its turn.';
COMMENT ON COLUMN scm.sweeps.places_at IS 'When open differences were last looked at again.';
COMMENT ON TABLE scm.project_looks IS 'The latest look at each GitLab project. Visits of its other job types use it for a minute, so that a round asks once.';
COMMENT ON COLUMN scm.project_looks.fingerprint IS 'The token of the look, as in scm.credential_stops; with another one the answer may differ.';
COMMENT ON COLUMN scm.project_looks.job_types IS 'Job types that have used the look; each uses it once.';
COMMENT ON COLUMN scm.project_looks.raw IS 'The project as the server gave it, without its secrets.';
COMMENT ON COLUMN scm.project_looks.server_date IS 'The server''s clock at the look; NULL where it did not say.';
COMMENT ON COLUMN scm.project_looks.looked_at IS 'When, by the database''s clock.';
COMMENT ON COLUMN scm.sync_jobs.heals IS 'True: reads the open rows of scm.discrepancies in its window again, and nothing else.';
COMMENT ON COLUMN scm.sync_jobs.planned_at IS 'When the scheduler last handed the job to a worker.';
COMMENT ON COLUMN scm.svn_revisions.richness IS 'How much of it was read: a look that saw less never overwrites one that saw more.';
COMMENT ON COLUMN scm.sync_runs.poorer IS 'Rows that arrived with less than is stored and changed nothing.';
COMMENT ON COLUMN scm.sync_batches.poorer IS 'Rows that arrived with less than is stored and changed nothing.';
COMMENT ON COLUMN scm.sync_batches.owed IS 'Details of its rows that could not be read and are read later (scm.obligations).';
COMMENT ON COLUMN scm.repos.vanished_looks IS 'How many complete listings in a row did not show it.';
