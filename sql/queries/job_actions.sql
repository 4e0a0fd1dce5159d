-- Statements of sync_pipeline/ledger/job_actions.py. They read and change jobs for a person
-- (``scm.job_events``).

-- name: attempts
-- Lists the attempts of a job, newest first.
SELECT run_id, attempt, status, started_at, finished_at, worker, dagster_run_id, batches, rows_read, calls,
       rate_limited, timeouts, waited_seconds, degradation, error_code, error
  FROM scm.sync_runs
 WHERE job_id = %(job_id)s
 ORDER BY attempt DESC
 LIMIT 50

-- name: events
-- Lists the actions of people on a job, newest first.
SELECT created_at, action, old_status, new_status, actor, reason
  FROM scm.job_events
 WHERE job_id = %(job_id)s
 ORDER BY created_at DESC
 LIMIT 50

-- name: reset
-- Retries a job at once, with as many attempts as a new job has.
UPDATE scm.sync_jobs
   SET status = 'pending', finished_at = NULL, not_before = NULL, dispatched_at = NULL, updated_at = now(),
       max_attempts = attempts + %(attempts)s
 WHERE job_id = %(job_id)s AND status IN ('dead', 'failed') AND updated_at = %(touched_at)s

-- name: note
-- Records the action of a person on a job.
INSERT INTO scm.job_events (job_id, repo_id, job_type, mode, "window", action, old_status, new_status, actor,
                            reason)
SELECT job_id, repo_id, job_type, mode, coalesce(revs::text, period::text), %(action)s, %(old)s, %(new)s,
       %(actor)s, left(%(reason)s, 2000)
  FROM scm.sync_jobs
 WHERE job_id = %(job_id)s
