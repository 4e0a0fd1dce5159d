-- Statements of sync_pipeline/ledger/reaping.py. They find abandoned work and end it.

-- name: running
-- Reads every claim, or those of one asset, with the facts that decide its end. A window counts as covered
-- only if the job was to cover it.
SELECT j.job_id, j.claim_token AS token, j.repo_id, r.slug, j.job_type, j.mode, j.claimed_by,
       j.claimed_process, j.claimed_at, j.claim_expires_at AS expires_at, j.attempts, j.max_attempts,
       j.last_error_code, j.dagster_run_id, tried.failures, tried.got_on,
       coalesce(w.covered_revs @> (j.revs * int8range(1, w.head_rev + 1)), w.covered_time @> j.period, FALSE)
       AND j.mode IN ('backfill', 'repair') AND NOT (j.reread OR j.only_differences OR j.only_deferred OR j.from_raw)
       AND j.quarantine_ids IS NULL AS covered
  FROM scm.sync_jobs AS j
  JOIN scm.repos AS r USING (repo_id)
  JOIN scm.sync_watermarks AS w USING (repo_id, job_type)
 CROSS JOIN LATERAL (
       SELECT count(*) FILTER (WHERE s.status = 'failed')::int AS failures,
              coalesce(bool_or(s.attempt = j.attempts AND s.inserted > 0), FALSE) AS got_on
         FROM scm.sync_runs AS s
        WHERE s.job_id = j.job_id) AS tried
 WHERE j.status = 'running'
   AND (%(repo_id)s::bigint IS NULL OR (j.repo_id = %(repo_id)s AND j.job_type = %(job_type)s))
 ORDER BY j.claim_expires_at
 LIMIT %(limit)s

-- name: waiting
-- Lists waiting jobs that may be abandoned. A one-off job is useless to anybody but its requester. A job
-- without which the coverage has a gap stays, however old it is.
SELECT * FROM (
    SELECT j.job_id, j.repo_id, r.slug, j.job_type, j.mode, j.status, j.updated_at AS touched_at,
           r.lifecycle = 'retired' AND NOT j.from_raw AS retired,
           known.plain AND j.mode = 'backfill' AND known.complete AS covered,
           known.one_off,
           known.plain AND j.mode IN ('backfill', 'repair') AND NOT known.complete AS needed
      FROM scm.sync_jobs AS j
      JOIN scm.repos AS r USING (repo_id)
      JOIN scm.sync_watermarks AS w USING (repo_id, job_type)
     CROSS JOIN LATERAL (
           SELECT NOT (j.reread OR j.only_differences OR j.only_deferred OR j.from_raw) AND j.quarantine_ids IS NULL AS plain,
                  j.from_raw OR j.quarantine_ids IS NOT NULL OR j.mode = 'probe' AS one_off,
                  coalesce(w.covered_revs @> (j.revs * int8range(1, w.head_rev + 1)),
                           w.covered_time @> j.period, FALSE) AS complete) AS known
     WHERE j.status IN ('pending', 'failed')
       AND j.updated_at < clock_timestamp() - make_interval(secs => %(grace)s)) AS waiting
 WHERE retired OR covered
    OR (one_off AND touched_at < clock_timestamp() - make_interval(secs => %(one_off_age)s))
    OR (NOT needed AND touched_at < clock_timestamp() - make_interval(secs => %(age)s))
 ORDER BY touched_at
 LIMIT %(limit)s

-- name: give_up
-- Ends a waiting job, unless it changed since it was read.
UPDATE scm.sync_jobs
   SET status = 'dead', not_before = NULL, finished_at = now(), updated_at = now(),
       last_error_code = %(code)s, last_error = left(%(error)s, 2000)
 WHERE job_id = %(job_id)s AND status IN ('pending', 'failed') AND updated_at = %(touched_at)s

-- name: open_runs
-- Lists open runs whose job has ended or is at another attempt.
SELECT s.run_id, s.job_id, s.attempt, s.repo_id, r.slug, s.job_type, s.worker, s.started_at
  FROM scm.sync_runs AS s
  JOIN scm.sync_jobs AS j USING (job_id)
  JOIN scm.repos AS r ON r.repo_id = s.repo_id
 WHERE s.status = 'running' AND NOT (j.status = 'running' AND j.attempts = s.attempt)
 ORDER BY s.started_at
 LIMIT %(limit)s

-- name: close_run
-- Closes such a run.
UPDATE scm.sync_runs AS s
   SET status = 'failed', finished_at = clock_timestamp(), error_code = 'worker_lost',
       error = 'nobody works on this attempt any more'
  FROM scm.sync_jobs AS j
 WHERE s.run_id = %(run_id)s AND s.status = 'running'
   AND j.job_id = s.job_id AND NOT (j.status = 'running' AND j.attempts = s.attempt)

-- name: leases
-- Lists expired leases that were not released.
SELECT l.lock_id, l.fence, l.holder, l.repo_id, r.slug, l.job_type, l.locked_by, l.expires_at
  FROM scm.sync_locks AS l
  JOIN scm.repos AS r USING (repo_id)
 WHERE l.expires_at < clock_timestamp()
 ORDER BY l.expires_at
 LIMIT %(limit)s

-- name: lock_lease
-- Locks an expired lease. SKIP LOCKED, because a writer in the middle of a batch still has it.
SELECT 1 FROM scm.sync_locks
 WHERE lock_id = %(lock_id)s AND fence = %(fence)s AND expires_at < clock_timestamp()
   FOR UPDATE SKIP LOCKED

-- name: release
-- Releases the lease. A higher fence stops the old holder from writing.
UPDATE scm.sync_locks
   SET fence = fence + 1, locked_by = NULL, holder = NULL, expires_at = NULL, updated_at = now()
 WHERE lock_id = %(lock_id)s

-- name: still_held
-- Returns whether the same lease still exists and is still expired.
SELECT 1 FROM scm.sync_locks
 WHERE lock_id = %(lock_id)s AND fence = %(fence)s AND expires_at < clock_timestamp()

-- name: waiters
-- Lists waiters for a lease that expired.
SELECT w.lock_id, w.waiter, w.who, w.expires_at, l.repo_id, r.slug, l.job_type
  FROM scm.sync_lock_waiters AS w
  JOIN scm.sync_locks AS l USING (lock_id)
  JOIN scm.repos AS r USING (repo_id)
 WHERE w.expires_at < clock_timestamp()
 ORDER BY w.expires_at
 LIMIT %(limit)s

-- name: delete_waiter
-- Deletes an expired waiter.
DELETE FROM scm.sync_lock_waiters
 WHERE lock_id = %(lock_id)s AND waiter = %(waiter)s AND expires_at = %(expires_at)s

-- name: signs
-- Reads what the ledger knows of Dagster runs. It returns whether a claim is live, the last sign of an
-- attempt, and when a claim was last taken.
SELECT s.dagster_run_id,
       max(CASE WHEN s.error_code = 'worker_lost' THEN s.started_at
                ELSE greatest(s.started_at, s.finished_at) END) AS last_sign,
       max(s.finished_at) FILTER (WHERE s.error_code = 'worker_lost') AS lost_at,
       coalesce(bool_or(j.status = 'running' AND j.dagster_run_id = s.dagster_run_id
                        AND j.claim_expires_at > clock_timestamp()), FALSE) AS claims_live
  FROM scm.sync_runs AS s
  JOIN scm.sync_jobs AS j USING (job_id)
 WHERE s.dagster_run_id = ANY (%(run_ids)s)
 GROUP BY s.dagster_run_id

-- name: try_lock
-- Tries the reaper's lock. It ends with the transaction, so it also works behind a transaction pooler.
SELECT pg_try_advisory_xact_lock(%(lock)s) AS locked
