-- Planned fetches become ordinary ones, which the earlier version reads.
ALTER TABLE scm.sync_runs DROP COLUMN notice;
ALTER TABLE scm.mrs DROP COLUMN versions_read_at;
ALTER TABLE scm.review_events DROP COLUMN time_precision;
DROP INDEX scm.deferred_fetches_planned;
ALTER TABLE scm.deferred_fetches DROP COLUMN row_updated_at, DROP COLUMN priority, DROP COLUMN is_planned;
COMMENT ON TABLE scm.deferred_fetches IS
    'Details of stored rows that could not be read yet. They count as missing and are read later.';
