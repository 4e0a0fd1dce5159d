-- Retrying rows in quarantine: a job that tries certain entries again, and nothing else. Additive: a worker of
-- the previous version that is in the middle of a job goes on.
-- depends: 0002.gitlab

ALTER TABLE scm.sync_jobs ADD COLUMN quarantine_ids bigint[]
    CHECK (quarantine_ids IS NULL OR (cardinality(quarantine_ids) > 0 AND mode = 'repair' AND NOT from_raw));
COMMENT ON COLUMN scm.sync_jobs.quarantine_ids IS 'The entries of quarantine that a repair job tries to store again, and nothing else; NULL for every other job. The scheduler never takes such a job up.';
