-- Statements of sync_pipeline/ledger/leases.py. They manage leases, the right to write for one asset, and
-- their fences.

-- name: ensure
-- Creates the row of a lease, which then stays for ever.
INSERT INTO scm.sync_locks (repo_id, job_type) VALUES (%(repo_id)s, %(job_type)s)
ON CONFLICT (repo_id, job_type) DO NOTHING

-- name: candidate
-- Locks a lease that is free, expired or still ours, unless a more urgent process waits for it. SKIP
-- LOCKED, because a writer in the middle of a batch still has it.
SELECT lock_id FROM scm.sync_locks AS l
 WHERE l.repo_id = %(repo_id)s AND l.job_type = %(job_type)s
   AND (l.locked_by IS NULL OR l.expires_at < clock_timestamp() OR l.holder = %(waiter)s)
   AND NOT EXISTS (
       SELECT 1 FROM scm.sync_lock_waiters AS w
        WHERE w.lock_id = l.lock_id AND w.waiter <> %(waiter)s AND w.expires_at > clock_timestamp()
          AND (w.priority, w.since) < (%(priority)s,
              coalesce((SELECT me.since FROM scm.sync_lock_waiters AS me
                         WHERE me.lock_id = l.lock_id AND me.waiter = %(waiter)s), clock_timestamp())))
   FOR UPDATE SKIP LOCKED

-- name: take
-- Takes the lease and raises its fence.
UPDATE scm.sync_locks
   SET fence = fence + 1, locked_by = %(who)s, holder = %(waiter)s, locked_at = clock_timestamp(),
       lease_seconds = %(length)s,
       expires_at = clock_timestamp() + make_interval(secs => %(length)s), updated_at = now()
 WHERE lock_id = %(lock_id)s
RETURNING fence

-- name: wait
-- Registers or refreshes a waiter, so that the holder releases the lease between two chunks.
INSERT INTO scm.sync_lock_waiters (lock_id, waiter, who, priority, expires_at)
SELECT lock_id, %(waiter)s, %(who)s, %(priority)s, clock_timestamp() + interval '10 seconds'
  FROM scm.sync_locks WHERE repo_id = %(repo_id)s AND job_type = %(job_type)s
ON CONFLICT (lock_id, waiter) DO UPDATE SET expires_at = EXCLUDED.expires_at

-- name: stop_waiting
-- Removes a waiter from the queue.
DELETE FROM scm.sync_lock_waiters WHERE waiter = %(waiter)s

-- name: delete_waiters
-- Removes the new holder and expired waiters from the queue. The row lock lets one process do this at a
-- time.
DELETE FROM scm.sync_lock_waiters
 WHERE lock_id = %(lock_id)s AND (waiter = %(waiter)s OR expires_at < clock_timestamp())

-- name: renew
-- Extends the lease of its holder.
UPDATE scm.sync_locks
   SET expires_at = clock_timestamp() + make_interval(secs => %(length)s)
 WHERE lock_id = %(lock_id)s AND fence = %(fence)s AND expires_at > clock_timestamp()

-- name: release
-- Returns the lease, unless another process has it by now.
UPDATE scm.sync_locks SET locked_by = NULL, holder = NULL, expires_at = NULL, updated_at = now()
 WHERE lock_id = %(lock_id)s AND fence = %(fence)s

-- name: guard
-- Checks the lease at the start of every writing transaction.
SELECT 1 FROM scm.sync_locks
 WHERE lock_id = %(lock_id)s AND fence = %(fence)s AND expires_at > clock_timestamp()
   FOR KEY SHARE

-- name: lost_to
-- Reads who has the lease now, for the process that lost it. Once it is free again, this is the latest
-- attempt.
SELECT l.fence, l.locked_by, l.locked_at, l.expires_at,
       (SELECT r.worker FROM scm.sync_runs AS r
         WHERE r.repo_id = l.repo_id AND r.job_type = l.job_type
         ORDER BY r.started_at DESC LIMIT 1) AS latest
  FROM scm.sync_locks AS l
 WHERE l.lock_id = %(lock_id)s

-- name: overdue
-- Reads the holder of an expired lease whose transaction still locks the row.
SELECT holder FROM scm.sync_locks
 WHERE repo_id = %(repo_id)s AND job_type = %(job_type)s
   AND holder IS NOT NULL AND expires_at < clock_timestamp()

-- name: holder
-- Reads who holds the lease now.
SELECT locked_by, locked_at, expires_at FROM scm.sync_locks
 WHERE repo_id = %(repo_id)s AND job_type = %(job_type)s AND expires_at > clock_timestamp()
