-- Statements of sync_pipeline/ledger/reconcile_progress.py. They store the progress of the reconcile
-- schedule and read what it plans from.

-- name: now
-- Reads the database's clock.
SELECT now() AS now

-- name: assets
-- Reads every asset with its coverage, its progress in the rolling scan and its open differences. A
-- difference is due if a repair ended since it was last seen. An extra row that is not confirmed as deleted
-- is due at regular intervals. The last check comes when its time is up. Repair jobs count since the oldest
-- open difference was found.
WITH found AS (
    SELECT d.repo_id, d.job_type, count(*) AS open, min(d.found_at) AS found_at,
           count(*) FILTER (WHERE d.repairs >= %(repairs)s) AS escalated
      FROM scm.discrepancies AS d
     WHERE d.resolved_at IS NULL
     GROUP BY d.repo_id, d.job_type
), repaired AS (
    SELECT f.*, j.ended_at, j.died_at, coalesce(j.active, FALSE) AS active
      FROM found AS f
      LEFT JOIN LATERAL (
           SELECT max(finished_at) FILTER (WHERE status = 'completed') AS ended_at,
                  max(finished_at) FILTER (WHERE status = 'dead') AS died_at,
                  bool_or(status IN ('pending', 'running', 'failed')) AS active
             FROM scm.sync_jobs
            WHERE repo_id = f.repo_id AND job_type = f.job_type AND only_differences AND created_at >= f.found_at
           ) AS j ON TRUE
), due AS (
    SELECT d.repo_id, d.job_type, d.revs, d.period,
           row_number() OVER (PARTITION BY d.repo_id, d.job_type
                              ORDER BY d.last_seen_at, d.discrepancy_id) AS number
      FROM scm.discrepancies AS d
      JOIN repaired AS r USING (repo_id, job_type)
     WHERE d.resolved_at IS NULL
       AND ((d.repairs > 0 AND r.ended_at > d.last_seen_at)
            OR (d.kind = 'extra' AND d.repairs = 0
                AND d.last_seen_at <= now() - make_interval(secs => %(look_again)s)
                AND (d.looks < %(looks)s OR d.found_at > now() - make_interval(secs => %(believed)s))))
), places AS (
    SELECT repo_id, job_type, bool_or(num_nonnulls(revs, period) = 0) AS anywhere,
           range_agg(revs) FILTER (WHERE revs IS NOT NULL) AS revs,
           range_agg(period) FILTER (WHERE period IS NOT NULL) AS period
      FROM due
     WHERE number <= %(places)s
     GROUP BY repo_id, job_type
), probing AS (
    SELECT DISTINCT repo_id, job_type FROM scm.sync_jobs
     WHERE status = 'running' AND mode = 'probe' AND claim_expires_at > now()
)
SELECT w.repo_id, w.job_type, r.kind, r.instance, r.lifecycle, w.access, w.visited_at,
       w.watermark_rev, w.watermark_time, lower(w.covered_revs) AS covered_rev,
       lower(w.covered_time) AS covered_time,
       coalesce(f.open, 0) AS open, coalesce(f.escalated, 0) AS escalated, f.found_at,
       coalesce(f.active, FALSE) AS repairing, f.died_at AS repair_died_at,
       coalesce(p.anywhere, FALSE) AS anywhere, p.revs, p.period, b.repo_id IS NOT NULL AS probed,
       s.next_rev, s.next_time, s.round_began_at, s.round_ended_at, coalesce(s.round_rows, 0) AS round_rows,
       coalesce(s.round_done, 0) AS round_done, s.history_at, s.recent_at, s.places_at
  FROM scm.sync_watermarks AS w
  JOIN scm.repos AS r USING (repo_id)
  LEFT JOIN scm.reconcile_progress AS s USING (repo_id, job_type)
  LEFT JOIN repaired AS f USING (repo_id, job_type)
  LEFT JOIN places AS p USING (repo_id, job_type)
  LEFT JOIN probing AS b USING (repo_id, job_type)
 ORDER BY w.repo_id, w.job_type

-- name: sent
-- Counts requests of all comparisons in this hour and in the previous one.
SELECT r.instance,
       coalesce(sum(c.calls) FILTER (WHERE c.hour = date_trunc('hour', now())), 0)::bigint AS now,
       coalesce(sum(c.calls) FILTER (WHERE c.hour < date_trunc('hour', now())), 0)::bigint AS before
  FROM (SELECT run_id, repo_id, max(calls) AS calls, date_trunc('hour', max(compared_at)) AS hour
          FROM scm.reconciliations
         WHERE compared_at >= date_trunc('hour', now()) - interval '1 hour'
         GROUP BY run_id, repo_id) AS c
  JOIN scm.repos AS r USING (repo_id)
 GROUP BY r.instance

-- name: started
-- Records the start of a task of this kind.
INSERT INTO scm.reconcile_progress AS s (repo_id, job_type, places_at, recent_at, history_at)
VALUES (%(repo_id)s, %(job_type)s,
        CASE WHEN %(why)s = 'places' THEN now() END,
        CASE WHEN %(why)s = 'recent' THEN now() END,
        CASE WHEN %(why)s = 'history' THEN now() END)
ON CONFLICT (repo_id, job_type) DO UPDATE
   SET places_at = coalesce(EXCLUDED.places_at, s.places_at),
       recent_at = coalesce(EXCLUDED.recent_at, s.recent_at),
       history_at = coalesce(EXCLUDED.history_at, s.history_at)

-- name: begin
-- Starts a round and stores the number of its rows.
UPDATE scm.reconcile_progress
   SET round_began_at = now(), round_rows = %(rows)s, round_done = 0, next_rev = NULL, next_time = NULL
 WHERE repo_id = %(repo_id)s AND job_type = %(job_type)s

-- name: move
-- Records how far the round got, or its end.
UPDATE scm.reconcile_progress
   SET next_rev = %(next_rev)s, next_time = %(next_time)s, round_done = round_done + %(rows)s,
       round_ended_at = CASE WHEN %(ends)s THEN now() ELSE round_ended_at END
 WHERE repo_id = %(repo_id)s AND job_type = %(job_type)s

-- name: repairing
-- Returns whether a repair of the asset waits or runs.
SELECT EXISTS (SELECT FROM scm.sync_jobs
                WHERE repo_id = %(repo_id)s AND job_type = %(job_type)s AND mode = 'repair' AND only_differences
                  AND status IN ('pending', 'running', 'failed')) AS repairing

-- name: open
-- Counts the differences of the fleet.
SELECT count(*) FILTER (WHERE resolved_at IS NULL) AS open,
       count(*) FILTER (WHERE resolved_at IS NULL AND repairs >= %(repairs)s) AS escalated,
       count(*) FILTER (WHERE resolved_at IS NULL AND kind = 'extra' AND repairs = 0) AS waiting,
       count(*) FILTER (WHERE outcome = 'deleted') AS tombstones
  FROM scm.discrepancies

-- name: by_day
-- Counts rows that differed, by the day of the comparison.
SELECT compared_at::date AS day, sum(missing)::bigint AS missing, sum(extra)::bigint AS extra,
       sum(changed)::bigint AS changed
  FROM scm.reconciliations
 WHERE compared_at >= date_trunc('day', now()) - make_interval(days => %(days)s)
 GROUP BY compared_at::date
 ORDER BY compared_at::date
