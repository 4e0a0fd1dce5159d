-- Forgets why repositories were changed; the events stay.
ALTER TABLE scm.repo_events DROP COLUMN reason;
