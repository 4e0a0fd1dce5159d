-- Statements of sync_pipeline/ledger/reconciliations.py. They store the results of comparisons with the
-- source and the open differences.

-- name: next
-- Reserves the number of a comparison, because its differences are written before its result.
SELECT nextval(pg_get_serial_sequence('scm.reconciliations', 'reconciliation_id')) AS number

-- name: add
-- Stores the result of a comparison.
INSERT INTO scm.reconciliations (reconciliation_id, repo_id, job_type, revs, period, depth, status, expected,
                                 stored, missing, extra, changed, newer, unreadable, hidden, calls, detail,
                                 run_id)
OVERRIDING SYSTEM VALUE
VALUES (%(number)s, %(repo_id)s, %(job_type)s, %(revs)s, %(period)s, %(depth)s, %(status)s, %(expected)s,
        %(stored)s, %(missing)s, %(extra)s, %(changed)s, %(newer)s, %(unreadable)s, %(hidden)s, %(calls)s,
        left(%(detail)s, 2000), %(run_id)s)

-- name: put
-- Stores a difference, or counts one more sighting of it. A difference of another kind starts over.
INSERT INTO scm.discrepancies AS d (repo_id, job_type, natural_key, kind, fields, revs, period,
                                    reconciliation)
VALUES (%(repo_id)s, %(job_type)s, %(natural_key)s, %(kind)s, %(fields)s, %(revs)s, %(period)s, %(number)s)
ON CONFLICT (repo_id, job_type, natural_key) WHERE resolved_at IS NULL DO UPDATE
   SET looks = CASE WHEN d.kind <> EXCLUDED.kind THEN 1
                    WHEN d.reconciliation = EXCLUDED.reconciliation THEN d.looks ELSE d.looks + 1 END,
       found_at = CASE WHEN d.kind = EXCLUDED.kind THEN d.found_at ELSE now() END,
       kind = EXCLUDED.kind, fields = EXCLUDED.fields, revs = EXCLUDED.revs, period = EXCLUDED.period,
       reconciliation = EXCLUDED.reconciliation, last_seen_at = now()

-- name: resolve
-- Ends differences in the compared window that were not found again. A complete comparison also ends those
-- without a window.
UPDATE scm.discrepancies
   SET resolved_at = now(), outcome = CASE WHEN kind = 'extra' THEN 'returned' ELSE 'healed' END
 WHERE repo_id = %(repo_id)s AND job_type = %(job_type)s AND resolved_at IS NULL
   AND reconciliation <> %(number)s AND natural_key <> ALL (%(unread)s)
   -- The parts of a row that could not be compared were not compared either.
   AND split_part(natural_key, ':', 1) <> ALL (%(unread)s)
   AND (%(only)s::text[] IS NULL OR split_part(natural_key, ':', 1) = ANY (%(only)s))
   AND (revs <@ %(revs)s::int8range OR period <@ %(period)s::tstzrange
        OR (revs IS NULL AND period IS NULL AND %(everywhere)s))

-- name: open
-- Lists open differences in a window, and those without a window.
SELECT discrepancy_id, natural_key, kind, fields, revs, period, looks, repairs, found_at, last_seen_at,
       now() AS now
  FROM scm.discrepancies
 WHERE repo_id = %(repo_id)s AND job_type = %(job_type)s AND resolved_at IS NULL
   AND (NOT %(within)s OR revs <@ %(revs)s::int8range OR period <@ %(period)s::tstzrange
        OR (revs IS NULL AND period IS NULL))
   AND (%(number)s::bigint IS NULL OR reconciliation = %(number)s)
 ORDER BY kind, revs, period, natural_key
 LIMIT %(limit)s

-- name: tried
-- Counts one more repair of some differences.
UPDATE scm.discrepancies SET repairs = repairs + 1 WHERE discrepancy_id = ANY (%(ids)s)

-- name: deleted
-- Ends differences whose row is confirmed deleted and is a tombstone now.
UPDATE scm.discrepancies SET resolved_at = now(), outcome = 'deleted'
 WHERE discrepancy_id = ANY (%(ids)s) AND resolved_at IS NULL

-- name: of_run
-- Lists the results of one probe, in order, with the notice of its run.
SELECT c.*, r.notice
  FROM scm.reconciliations AS c
  JOIN scm.sync_runs AS r USING (run_id)
 WHERE c.run_id = %(run_id)s
 ORDER BY c.reconciliation_id

-- name: forgive
-- Resets the number of repairs, on a person's request.
UPDATE scm.discrepancies SET repairs = 0
 WHERE repo_id = %(repo_id)s AND job_type = %(job_type)s AND resolved_at IS NULL AND repairs > 0
