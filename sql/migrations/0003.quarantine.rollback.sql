-- Removes what retrying rows in quarantine needs; the entries stay, and which jobs retried them is forgotten.
ALTER TABLE scm.sync_jobs DROP COLUMN quarantine_ids;
