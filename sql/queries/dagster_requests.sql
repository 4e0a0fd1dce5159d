-- Statements of sync_pipeline/ledger/dagster_requests.py. They store the requests of people in the Dagster
-- UI (``scm.dagster_requests``).

-- name: known
-- Reads what this pool has taken over of the given requests and of all open ones.
SELECT request_id, kind, requested_at, actor, job_count, skipped_count, assets_done, complete, status,
       ended_at IS NOT NULL AS ended
  FROM scm.dagster_requests
 WHERE pool = %(pool)s AND (ended_at IS NULL OR request_id = ANY (%(request_ids)s))

-- name: put
-- Stores how much of a request has been taken over.
INSERT INTO scm.dagster_requests
       (request_id, pool, kind, requested_at, actor, job_count, skipped_count, assets_done, complete, status,
        ended_at)
VALUES (%(request_id)s, %(pool)s, %(kind)s, %(requested_at)s, %(actor)s, %(job_count)s, %(skipped_count)s,
        %(assets_done)s, %(complete)s, %(status)s, CASE WHEN %(ended)s THEN clock_timestamp() END)
ON CONFLICT (request_id, pool) DO UPDATE
   SET job_count = EXCLUDED.job_count, skipped_count = EXCLUDED.skipped_count,
       assets_done = EXCLUDED.assets_done, complete = EXCLUDED.complete, status = EXCLUDED.status,
       ended_at = EXCLUDED.ended_at

-- name: dispatched
-- Marks jobs for which Dagster creates runs, so that the plan leaves them alone for a while.
UPDATE scm.sync_jobs SET dispatched_at = clock_timestamp()
 WHERE job_id = ANY (%(job_ids)s) AND status = 'pending' AND dispatched_at IS NULL

-- name: undispatch
-- Returns the waiting jobs of a request to the plan, because Dagster does no more for them.
UPDATE scm.sync_jobs SET dispatched_at = NULL
 WHERE trigger = 'ui' AND reason = %(reason)s AND status IN ('pending', 'failed')

-- name: give_up
-- Ends the remaining jobs of a request that its runs have done, or that its person cancelled.
UPDATE scm.sync_jobs
   SET status = 'dead', finished_at = now(), dispatched_at = NULL, updated_at = now(),
       last_error_code = %(code)s, last_error = %(error)s
 WHERE trigger = 'ui' AND reason = %(reason)s AND status IN ('pending', 'failed')

-- name: is_done
-- Returns whether completed jobs of a request cover a whole window, however Dagster's runs have cut it.
SELECT coalesce(range_agg(revs) @> %(revs)s::int8range, range_agg(period) @> %(period)s::tstzrange, FALSE)
       AS done
  FROM scm.sync_jobs
 WHERE repo_id = %(repo_id)s AND job_type = %(job_type)s AND mode = %(mode)s AND status = 'completed'
   AND trigger = 'ui' AND reason = %(reason)s

-- name: interrupted
-- Lists jobs of people whose latest attempt ended with its Dagster run. A job that was dropped or retired
-- since then has another error. Only Dagster knows who ended the run.
SELECT j.job_id, j.dagster_run_id
  FROM scm.sync_jobs AS j
 WHERE j.status = 'dead' AND j.last_error_code = 'cancelled' AND j.trigger = 'ui'
   AND j.dagster_run_id IS NOT NULL AND NOT j.from_raw AND j.quarantine_ids IS NULL AND j.mode <> 'probe'
   AND j.finished_at > clock_timestamp() - %(lately)s
   AND EXISTS (
       SELECT FROM scm.sync_runs AS r
        WHERE r.job_id = j.job_id AND r.attempt = j.attempts AND r.status = 'interrupted'
          AND r.error = j.last_error)
   AND NOT EXISTS (
       SELECT FROM scm.dagster_requests AS q
        WHERE q.kind = 'backfill' AND q.status = 'CANCELED' AND j.reason = 'backfill ' || q.request_id)
 ORDER BY j.finished_at DESC
 LIMIT %(limit)s

-- name: revive
-- Makes jobs that no person stopped wait again with one attempt left. A job whose work was requested again
-- stays as it is.
UPDATE scm.sync_jobs AS j
   SET status = 'pending', finished_at = NULL, not_before = NULL, dispatched_at = NULL, updated_at = now(),
       max_attempts = greatest(max_attempts, attempts + 1)
 WHERE j.job_id = ANY (%(job_ids)s) AND j.status = 'dead' AND j.last_error_code = 'cancelled'
   AND NOT EXISTS (
       SELECT FROM scm.sync_jobs AS other
        WHERE other.repo_id = j.repo_id AND other.job_type = j.job_type AND other.mode = j.mode
          AND other.revs IS NOT DISTINCT FROM j.revs AND other.period IS NOT DISTINCT FROM j.period
          AND other.job_id <> j.job_id
          AND (other.created_at > j.created_at OR other.status IN ('pending', 'running', 'failed')))
