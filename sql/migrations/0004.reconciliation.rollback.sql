-- Removes reconciliation: its results and the list of what differs are forgotten, facts and tombstones stay.
DROP TABLE scm.sweeps, scm.discrepancies, scm.reconciliations;
DELETE FROM scm.sync_runs WHERE job_id IN (SELECT job_id FROM scm.sync_jobs WHERE heals OR depth IS NOT NULL);
DELETE FROM scm.sync_jobs WHERE heals OR depth IS NOT NULL;
ALTER TABLE scm.repos DROP COLUMN source_created_at;
ALTER TABLE scm.sync_jobs DROP COLUMN heals, DROP COLUMN depth;
