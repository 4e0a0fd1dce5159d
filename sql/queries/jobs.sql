-- Statements of sync_pipeline/ledger/jobs.py. They create, claim and end jobs.

-- name: enqueue
-- Creates the job unless the same repository, job type, mode and window has an active one.
INSERT INTO scm.sync_jobs (repo_id, job_type, mode, revs, period, reread, from_raw, quarantine_ids, only_differences,
                           only_deferred, depth, priority, max_attempts, generation, trigger, actor, reason, config_hash,
                           code_version)
SELECT %(repo_id)s, %(job_type)s, %(mode)s, %(revs)s, %(period)s, %(reread)s, %(from_raw)s,
       %(quarantine_ids)s::bigint[], %(only_differences)s, %(only_deferred)s, %(depth)s, %(priority)s, %(max_attempts)s,
       w.generation,
       %(trigger)s, %(actor)s, %(reason)s, %(config_hash)s, %(code_version)s
  FROM scm.sync_watermarks AS w
 WHERE w.repo_id = %(repo_id)s AND w.job_type = %(job_type)s
ON CONFLICT (repo_id, job_type, mode, revs, period) WHERE status IN ('pending', 'running', 'failed')
DO NOTHING
RETURNING job_id

-- name: join
-- Merges the new request's priority and reread flag into the existing job. A running attempt has read its
-- flag already, so the job runs once more after it. A person's request leaves an event with name and
-- reason.
WITH joined AS (
    UPDATE scm.sync_jobs
       SET priority = least(priority, %(priority)s),
           reread = reread OR (%(reread)s AND status <> 'running'),
           -- An attempt that rereads may already have read past the change that a person asks for. The runs of
           -- one backfill have the same reason, so they request one reread.
           reread_requested = status = 'running' AND (reread_requested OR (%(reread)s AND (
               NOT reread OR (%(trigger)s IN ('ui', 'ci', 'runner')
                              AND NOT (reason = %(reason)s AND starts_with(reason, 'backfill ')))))),
           updated_at = now()
     WHERE repo_id = %(repo_id)s AND job_type = %(job_type)s AND mode = %(mode)s
       AND revs IS NOT DISTINCT FROM %(revs)s::int8range
       AND period IS NOT DISTINCT FROM %(period)s::tstzrange
       AND from_raw = %(from_raw)s
       AND quarantine_ids IS NOT DISTINCT FROM %(quarantine_ids)s::bigint[]
       AND only_differences = %(only_differences)s
       AND only_deferred = %(only_deferred)s
       AND depth IS NOT DISTINCT FROM %(depth)s
       AND status IN ('pending', 'running', 'failed')
    RETURNING job_id, repo_id, job_type, mode, revs, period, status, trigger, actor, reason
), noted AS (
    INSERT INTO scm.job_events (job_id, repo_id, job_type, mode, "window", action, old_status, new_status,
                                actor, reason)
    SELECT job_id, repo_id, job_type, mode, coalesce(revs::text, period::text), 'join', status, status,
           %(actor)s, left(%(trigger)s || ': ' || %(reason)s, 2000)
      FROM joined
     WHERE %(trigger)s IN ('ui', 'ci', 'runner')
       AND (trigger, actor, reason) IS DISTINCT FROM (%(trigger)s, %(actor)s, %(reason)s)
)
SELECT job_id FROM joined

-- name: is_registered
-- Returns whether an asset is registered, after no job could be created.
SELECT 1 FROM scm.sync_watermarks WHERE repo_id = %(repo_id)s AND job_type = %(job_type)s

-- name: lock_for_split
-- Locks a job that is to be cut, unless a process has claimed it. SKIP LOCKED, because a stopped process
-- may hold the row.
SELECT repo_id, job_type, mode, reread, priority, max_attempts, trigger, actor, reason, config_hash,
       created_at
  FROM scm.sync_jobs
 WHERE job_id = %(job_id)s AND period = %(period)s::tstzrange + %(rest)s::tstzrange AND NOT only_differences
   AND (status IN ('pending', 'failed') OR (status = 'running' AND claim_expires_at < clock_timestamp()))
   FOR UPDATE SKIP LOCKED

-- name: shorten
-- Gives a job a shorter window, after another job got the rest.
UPDATE scm.sync_jobs
   SET period = %(period)s, updated_at = now()
 WHERE job_id = %(job_id)s

-- name: since
-- Gives a job the age of the job that it was cut from, so that it keeps the place in the queue.
UPDATE scm.sync_jobs
   SET created_at = least(created_at, %(created_at)s)
 WHERE job_id = %(job_id)s

-- name: supersede
-- Ends a job whose two parts have jobs of their own.
UPDATE scm.sync_jobs
   SET status = 'dead', claim_token = NULL, claim_expires_at = NULL, finished_at = now(), updated_at = now(),
       last_error_code = 'superseded', last_error = 'other jobs read its window in pieces'
 WHERE job_id = %(job_id)s

-- name: claim
-- Claims a waiting job, or one whose claim expired or whose owner is known to be gone. A crash costs an
-- attempt. The job stores the watermark's generation; after a reset the attempt cannot write.
UPDATE scm.sync_jobs
   SET status = 'running',
       reread = reread OR reread_requested,
       reread_requested = FALSE,
       generation = (SELECT w.generation FROM scm.sync_watermarks AS w
                      WHERE w.repo_id = sync_jobs.repo_id AND w.job_type = sync_jobs.job_type),
       claim_token = %(token)s,
       claim_expires_at = clock_timestamp() + make_interval(secs => %(length)s),
       claimed_by = %(worker)s,
       claimed_process = %(process)s,
       claimed_at = clock_timestamp(),
       attempts = attempts + 1,
       not_before = NULL,
       dispatched_at = NULL,
       dagster_run_id = %(dagster_run_id)s,
       config_hash = coalesce(%(config_hash)s, config_hash),
       updated_at = now()
 WHERE job_id = %(job_id)s
   AND (status IN ('pending', 'failed')
        OR (status = 'running' AND (claim_expires_at < clock_timestamp() OR claim_token = %(gone)s)))
   AND attempts < max_attempts
RETURNING *

-- name: lock_claims
-- Makes processes claim one after the other, so that two cannot take the last free slot.
SELECT pg_advisory_xact_lock(%(lock)s)

-- name: at_work
-- Counts the other jobs at work. Job types of one family are read together and count once.
SELECT count(DISTINCT (j.repo_id, t.family, j.mode, j.revs, j.period))::int AS at_work
  FROM scm.sync_jobs AS j
  JOIN scm.job_types AS t USING (job_type)
  JOIN scm.sync_jobs AS mine ON mine.job_id = %(job_id)s
  JOIN scm.job_types AS own ON own.job_type = mine.job_type
 WHERE j.status = 'running' AND j.mode <> 'probe' AND j.claim_expires_at > clock_timestamp()
   AND (j.repo_id, t.family, j.mode, j.revs, j.period)
       IS DISTINCT FROM (mine.repo_id, own.family, mine.mode, mine.revs, mine.period)

-- name: give_up
-- Ends a job whose last allowed attempt died with its worker.
UPDATE scm.sync_jobs
   SET status = 'dead', claim_token = NULL, claim_expires_at = NULL, finished_at = now(), updated_at = now(),
       last_error_code = 'worker_lost',
       last_error = 'the worker disappeared in attempt ' || attempts || ' of ' || max_attempts
 WHERE job_id = %(job_id)s AND attempts >= max_attempts
   AND (status IN ('pending', 'failed')
        OR (status = 'running' AND (claim_expires_at < clock_timestamp() OR claim_token = %(gone)s)))
RETURNING job_id

-- name: owner
-- Locks the job and reads its current owner, whose lease the claim then releases. SKIP LOCKED, because an
-- owner in the middle of a batch still has the job.
SELECT claim_token FROM scm.sync_jobs WHERE job_id = %(job_id)s FOR UPDATE SKIP LOCKED

-- name: overdue
-- Reads the owner of an expired claim, or of a dead process, whose transaction still locks the row.
SELECT claim_token FROM scm.sync_jobs
 WHERE job_id = %(job_id)s AND status = 'running'
   AND (claim_expires_at < clock_timestamp() OR claim_token = %(gone)s)

-- name: end_lost
-- Ends the attempt of a lost owner with the reaper's decision. A live claim is only ended if its process is
-- gone.
UPDATE scm.sync_jobs
   SET status = CASE WHEN reread_requested AND %(status)s = 'completed' THEN 'pending' ELSE %(status)s END,
       reread = reread OR reread_requested,
       reread_requested = FALSE,
       claim_token = NULL,
       claim_expires_at = NULL,
       -- A job that is tried again needs an attempt, so this raises the limit if needed.
       max_attempts = CASE WHEN %(status)s IN ('failed', 'pending') OR reread_requested
                           THEN greatest(max_attempts, attempts + 1) ELSE max_attempts END,
       not_before = CASE WHEN %(status)s = 'failed'
                         THEN clock_timestamp() + make_interval(secs => %(backoff)s) END,
       finished_at = CASE WHEN %(status)s = 'dead' OR (%(status)s = 'completed' AND NOT reread_requested)
                          THEN now() END,
       last_error_code = %(error_code)s,
       last_error = left(%(error)s, 2000),
       updated_at = now()
 WHERE job_id = %(job_id)s AND claim_token = %(token)s
   AND (claim_expires_at < clock_timestamp() OR %(process_gone)s)

-- name: release_lease
-- Releases the lease of a lost owner. A higher fence stops the old holder from writing.
UPDATE scm.sync_locks
   SET fence = fence + 1, locked_by = NULL, holder = NULL, expires_at = NULL, updated_at = now()
 WHERE holder = %(owner)s

-- name: close_lost_runs
-- Closes the attempts of a job that a later claim replaced.
UPDATE scm.sync_runs
   SET status = 'failed', finished_at = now(), error_code = 'worker_lost',
       error = 'the claim of this attempt ran out; a later attempt took the job over'
 WHERE job_id = %(job_id)s AND status = 'running'

-- name: renew
-- Extends the claim of the owner.
UPDATE scm.sync_jobs
   SET claim_expires_at = clock_timestamp() + make_interval(secs => %(length)s)
 WHERE job_id = %(job_id)s AND claim_token = %(token)s AND claim_expires_at > clock_timestamp()

-- name: guard
-- Checks the claim at the start of every writing transaction. The share lock delays a takeover until that
-- transaction ends. The application name has the claim, so that a later owner can end the transaction of a
-- stopped process (see sync_pipeline.ledger.sessions).
SELECT set_config('application_name', %(writer)s, TRUE) FROM scm.sync_jobs
 WHERE job_id = %(job_id)s AND claim_token = %(token)s AND claim_expires_at > clock_timestamp()
   FOR KEY SHARE

-- name: finish
-- Ends the owner's attempt with completed, failed (retried at not_before), dead or pending. A reread that
-- was requested meanwhile makes a finished job wait again.
UPDATE scm.sync_jobs
   SET status = CASE WHEN reread_requested AND %(status)s IN ('completed', 'dead') THEN 'pending'
                     ELSE %(status)s END,
       reread = reread OR reread_requested,
       reread_requested = FALSE,
       claim_token = NULL,
       claim_expires_at = NULL,
       max_attempts = max_attempts + greatest(%(refund)s, reread_requested::int),
       not_before = CASE WHEN %(status)s = 'failed'
                         THEN clock_timestamp() + make_interval(secs => %(backoff)s) END,
       finished_at = CASE WHEN %(status)s IN ('completed', 'dead') AND NOT reread_requested THEN now() END,
       last_error_code = %(error_code)s,
       last_error = left(%(error)s, 2000),
       updated_at = now()
 WHERE job_id = %(job_id)s AND claim_token = %(token)s

-- name: get
-- Reads one job, for a process that waits for its end.
SELECT * FROM scm.sync_jobs WHERE job_id = %(job_id)s

-- name: cancel_pending
-- Ends the waiting jobs of a repository that is no longer synced.
UPDATE scm.sync_jobs
   SET status = 'dead', finished_at = now(), updated_at = now(),
       last_error_code = 'cancelled', last_error = left(%(reason)s, 2000)
 WHERE repo_id = %(repo_id)s AND status IN ('pending', 'failed')

-- name: start_run
-- Records the start of an attempt.
INSERT INTO scm.sync_runs (job_id, attempt, repo_id, job_type, mode, dagster_run_id, worker,
                           watermark_rev_before, watermark_time_before, code_version, degradation)
SELECT j.job_id, j.attempts, j.repo_id, j.job_type, j.mode, j.dagster_run_id, j.claimed_by,
       w.watermark_rev, w.watermark_time, %(code_version)s,
       CASE WHEN j.decision #> '{sizes,reasons}' <> '[]' THEN j.decision -> 'sizes' END
  FROM scm.sync_jobs AS j
  JOIN scm.sync_watermarks AS w USING (repo_id, job_type)
 WHERE j.job_id = %(job_id)s
RETURNING run_id,
          (SELECT count(*)::int FROM scm.sync_runs AS s
            WHERE s.job_id = sync_runs.job_id AND s.status = 'failed') AS failures

-- name: finish_run
-- Records the end and the counts of an attempt.
UPDATE scm.sync_runs AS r
   SET status = %(status)s, finished_at = clock_timestamp(), calls = %(calls)s, head_rev = %(head_rev)s,
       rate_limited = %(rate_limited)s, timeouts = %(timeouts)s, waited_seconds = %(waited)s,
       error_code = %(error_code)s, error = left(%(error)s, 2000), notice = left(%(notice)s, 2000),
       watermark_rev_after = w.watermark_rev, watermark_time_after = w.watermark_time
  FROM scm.sync_watermarks AS w
 WHERE r.run_id = %(run_id)s AND r.status = 'running'
   AND w.repo_id = r.repo_id AND w.job_type = r.job_type

-- name: next_batch
-- Reserves the number of a batch, before its facts are written. The numbers follow the order of reading.
SELECT nextval(pg_get_serial_sequence('scm.sync_batches', 'batch_id')) AS batch_id

-- name: add_batch
-- Records a batch and adds its counts to the attempt.
WITH counted AS (
    UPDATE scm.sync_runs
       SET batches = batches + 1, rows_read = rows_read + %(read)s, inserted = inserted + %(inserted)s,
           updated = updated + %(updated)s, unchanged = unchanged + %(unchanged)s,
           regressed = regressed + %(regressed)s, quarantined = quarantined + %(quarantined)s
     WHERE run_id = %(run_id)s
    RETURNING batches, repo_id, job_type
)
INSERT INTO scm.sync_batches (batch_id, run_id, batch_no, repo_id, job_type, fence, revs, period, covers,
                              rows_read, inserted, updated, unchanged, regressed, quarantined, deferred, position,
                              first_key, last_key, read_time, calls, seconds)
OVERRIDING SYSTEM VALUE
SELECT %(batch_id)s, %(run_id)s, batches, repo_id, job_type, %(fence)s, %(revs)s, %(period)s, %(covers)s,
       %(read)s, %(inserted)s, %(updated)s, %(unchanged)s, %(regressed)s, %(quarantined)s, %(deferred)s,
       left(%(position)s, 200), left(%(first_key)s, 200), left(%(last_key)s, 200), %(read_time)s,
       %(calls)s, %(seconds)s
  FROM counted

-- name: latest_run
-- Reads the latest attempt at a job, for a caller that waited for its result.
SELECT r.*, extract(epoch FROM coalesce(r.finished_at, clock_timestamp()) - r.started_at)::float8 AS seconds
  FROM scm.sync_runs AS r
 WHERE r.job_id = %(job_id)s
 ORDER BY r.attempt DESC
 LIMIT 1
