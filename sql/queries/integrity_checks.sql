-- Statements of sync_pipeline/ledger/integrity_checks.py. They check that our own records agree with each
-- other.

-- name: open
-- Counts records that wait for a repair, a retry or a person. They are no contradiction.
SELECT 'discrepancies' AS what, count(*) AS open, min(found_at) AS oldest_at
  FROM scm.discrepancies WHERE resolved_at IS NULL
UNION ALL
SELECT 'obligations', count(*), min(created_at) FROM scm.deferred_fetches WHERE resolved_at IS NULL
UNION ALL
SELECT 'quarantine', count(*), min(created_at) FROM scm.quarantine WHERE resolved_at IS NULL
 ORDER BY what
