-- Forgets which servers do not answer; the next looks find out again.
DROP TABLE scm.server_failures;
ALTER TABLE scm.sync_hints DROP COLUMN failures;
