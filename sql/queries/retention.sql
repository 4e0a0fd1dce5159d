-- Statements of sync_pipeline/ledger/retention.py. They find and delete old records of finished work.

-- name: jobs
-- Lists finished jobs that may be deleted. The latest of each asset and mode stays, and the one with the
-- latest attempt. A dead job whose window is still missing stays for a person. A job stays while quarantine
-- refers to one of its batches. Repairs stay while differences are open.
WITH stays AS (
    (SELECT DISTINCT ON (repo_id, job_type, mode) job_id FROM scm.sync_jobs
      ORDER BY repo_id, job_type, mode, created_at DESC, job_id)
    UNION
    (SELECT DISTINCT ON (repo_id, job_type, mode) job_id FROM scm.sync_jobs
      WHERE status IN ('completed', 'dead')
      ORDER BY repo_id, job_type, mode, created_at DESC, job_id)
    UNION
    (SELECT DISTINCT ON (repo_id, job_type, mode) job_id FROM scm.sync_runs
      ORDER BY repo_id, job_type, mode, started_at DESC)
    UNION
    SELECT r.job_id
      FROM scm.quarantine AS q
      JOIN scm.sync_batches AS b USING (batch_id)
      JOIN scm.sync_runs AS r USING (run_id)
     WHERE q.resolved_at IS NULL
)
SELECT j.job_id, r.runs, r.batches
  FROM scm.sync_jobs AS j
  JOIN scm.sync_watermarks AS w USING (repo_id, job_type)
 CROSS JOIN LATERAL (
       SELECT count(*) AS runs, coalesce(sum(s.batches), 0)::bigint AS batches,
              coalesce(bool_or(s.status = 'running'), FALSE) AS open
         FROM scm.sync_runs AS s WHERE s.job_id = j.job_id) AS r
 WHERE j.status IN ('completed', 'dead')
   AND j.finished_at < clock_timestamp() - make_interval(secs => %(age)s)
   AND NOT r.open
   AND j.job_id NOT IN (SELECT job_id FROM stays)
   AND NOT (j.status = 'dead' AND coalesce(j.last_error_code, '') <> ALL (%(given_up)s)
            AND j.mode IN ('backfill', 'repair') AND j.quarantine_ids IS NULL
            AND NOT (j.from_raw OR j.only_differences OR j.only_deferred)
            AND NOT coalesce(w.covered_revs @> (j.revs * int8range(1, w.head_rev + 1)),
                             w.covered_time @> j.period, FALSE))
   AND NOT (j.only_differences AND EXISTS (
           SELECT FROM scm.discrepancies AS d
            WHERE d.repo_id = j.repo_id AND d.job_type = j.job_type AND d.resolved_at IS NULL))
 ORDER BY j.finished_at, j.job_id
 LIMIT %(limit)s::bigint

-- name: lock_jobs
-- Locks jobs that are still finished. SKIP LOCKED leaves a job in use for the next time.
SELECT job_id FROM scm.sync_jobs
 WHERE job_id = ANY (%(job_ids)s) AND status IN ('completed', 'dead')
   FOR UPDATE SKIP LOCKED

-- name: delete_batches
-- Deletes the batches of old jobs.
DELETE FROM scm.sync_batches AS b USING scm.sync_runs AS r
 WHERE r.run_id = b.run_id AND r.job_id = ANY (%(job_ids)s)

-- name: delete_runs
-- Deletes the attempts of old jobs.
DELETE FROM scm.sync_runs WHERE job_id = ANY (%(job_ids)s)

-- name: delete_jobs
-- Deletes old jobs, after their batches and attempts.
DELETE FROM scm.sync_jobs WHERE job_id = ANY (%(job_ids)s)

-- name: count_pauses
-- Counts old pauses that were ended or that expired.
SELECT count(*) AS n FROM scm.pauses
 WHERE least(ended_at, until) < clock_timestamp() - make_interval(secs => %(age)s)

-- name: delete_pauses
-- Deletes one part of the old pauses.
DELETE FROM scm.pauses
 WHERE pause_id IN (
       SELECT pause_id FROM scm.pauses
        WHERE least(ended_at, until) < clock_timestamp() - make_interval(secs => %(age)s)
        ORDER BY pause_id LIMIT %(limit)s)

-- name: count_edges
-- Counts old changes of circuit breakers, without the latest of each.
SELECT count(*) AS n FROM scm.breaker_events AS e
 WHERE created_at < clock_timestamp() - make_interval(secs => %(age)s)
   AND EXISTS (SELECT FROM scm.breaker_events AS later
                WHERE later.scope = e.scope AND later.key = e.key AND later.event_id > e.event_id)

-- name: delete_edges
-- Deletes one part of the old changes of circuit breakers.
DELETE FROM scm.breaker_events
 WHERE event_id IN (
       SELECT e.event_id FROM scm.breaker_events AS e
        WHERE created_at < clock_timestamp() - make_interval(secs => %(age)s)
          AND EXISTS (SELECT FROM scm.breaker_events AS later
                       WHERE later.scope = e.scope AND later.key = e.key AND later.event_id > e.event_id)
        ORDER BY e.event_id LIMIT %(limit)s)

-- name: count_differences
-- Counts old differences that are resolved.
SELECT count(*) AS n FROM scm.discrepancies
 WHERE resolved_at < clock_timestamp() - make_interval(secs => %(age)s)

-- name: delete_differences
-- Deletes one part of the old resolved differences.
DELETE FROM scm.discrepancies
 WHERE discrepancy_id IN (
       SELECT discrepancy_id FROM scm.discrepancies
        WHERE resolved_at < clock_timestamp() - make_interval(secs => %(age)s)
        ORDER BY discrepancy_id LIMIT %(limit)s)
