"""Leases: the right to write for one (repository, job type), and the fence that proves it.

Belongs here: taking, renewing, guarding and giving back. Times are the database's clock. A writer holds
``FOR KEY SHARE`` on (lock_id, fence): a heartbeat, which changes neither, passes it; the next claim raises
the fence and therefore waits for the writer to end. ``FOR SHARE`` would block the heartbeat.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sync_pipeline.errors import LeaseLost
from sync_pipeline.model import JobType
from sync_pipeline.store import sessions
from sync_pipeline.store.database import Connection

# The row of a lease stays for ever; the first one who needs it makes it.
_ENSURE = """
INSERT INTO scm.sync_locks (repo_id, job_type) VALUES (%(repo_id)s, %(job_type)s)
ON CONFLICT (repo_id, job_type) DO NOTHING
"""

# Free, run out, or still our own because giving it back failed; and nobody more urgent waits. SKIP LOCKED: a
# writer in the middle of a batch still has it.
_CANDIDATE = """
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
"""

_TAKE = """
UPDATE scm.sync_locks
   SET fence = fence + 1, locked_by = %(who)s, holder = %(waiter)s, locked_at = clock_timestamp(),
       lease_seconds = %(length)s,
       expires_at = clock_timestamp() + make_interval(secs => %(length)s), updated_at = now()
 WHERE lock_id = %(lock_id)s
RETURNING fence
"""

# Registers, or refreshes, the wish to have the lease, so that the holder lets us in between two chunks.
_WAIT = """
INSERT INTO scm.sync_lock_waiters (lock_id, waiter, who, priority, expires_at)
SELECT lock_id, %(waiter)s, %(who)s, %(priority)s, clock_timestamp() + interval '10 seconds'
  FROM scm.sync_locks WHERE repo_id = %(repo_id)s AND job_type = %(job_type)s
ON CONFLICT (lock_id, waiter) DO UPDATE SET expires_at = EXCLUDED.expires_at
"""

_STOP_WAITING = "DELETE FROM scm.sync_lock_waiters WHERE waiter = %(waiter)s"

# Whoever takes a lease also clears away those who stopped asking; the row lock makes it one at a time.
_FORGET_WAITERS = """
DELETE FROM scm.sync_lock_waiters
 WHERE lock_id = %(lock_id)s AND (waiter = %(waiter)s OR expires_at < clock_timestamp())
"""

_RENEW = """
UPDATE scm.sync_locks
   SET expires_at = clock_timestamp() + make_interval(secs => %(length)s)
 WHERE lock_id = %(lock_id)s AND fence = %(fence)s AND expires_at > clock_timestamp()
"""

_RELEASE = """
UPDATE scm.sync_locks SET locked_by = NULL, holder = NULL, expires_at = NULL, updated_at = now()
 WHERE lock_id = %(lock_id)s AND fence = %(fence)s
"""

# First statement of every writing transaction.
_GUARD = """
SELECT 1 FROM scm.sync_locks
 WHERE lock_id = %(lock_id)s AND fence = %(fence)s AND expires_at > clock_timestamp()
   FOR KEY SHARE
"""

# Whose the lease is now, for whoever lost it. Once it is free again, the latest attempt is the one to name.
_LOST_TO = """
SELECT l.fence, l.locked_by, l.locked_at, l.expires_at,
       (SELECT r.worker FROM scm.sync_runs AS r
         WHERE r.repo_id = l.repo_id AND r.job_type = l.job_type
         ORDER BY r.started_at DESC LIMIT 1) AS latest
  FROM scm.sync_locks AS l
 WHERE l.lock_id = %(lock_id)s
"""

# Whose lease ran out although a transaction of his still holds its row.
_OVERDUE = """
SELECT holder FROM scm.sync_locks
 WHERE repo_id = %(repo_id)s AND job_type = %(job_type)s
   AND holder IS NOT NULL AND expires_at < clock_timestamp()
"""

_HOLDER = """
SELECT locked_by, locked_at, expires_at FROM scm.sync_locks
 WHERE repo_id = %(repo_id)s AND job_type = %(job_type)s AND expires_at > clock_timestamp()
"""


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to write until it expires or a larger fence exists."""

    lock_id: int
    fence: int


@dataclass(frozen=True, slots=True)
class Holder:
    """Who has a lease, since and until when (database clock)."""

    who: str
    since: datetime
    until: datetime


def ensure(conn: Connection, repo_id: int, job_type: JobType) -> None:
    """Make the row of the lease unless it is there."""
    conn.execute(_ENSURE, {"repo_id": repo_id, "job_type": str(job_type)})


def acquire(
    conn: Connection,
    *,
    repo_id: int,
    job_type: JobType,
    waiter: UUID,
    who: str,
    priority: int,
    length: float,
) -> Lease | None:
    """Take the lease for ``length`` seconds, renewable. None if it is held, or if somebody with a smaller
    ``priority`` (or as urgent, but earlier) waits; the wish is then on record for 10 s: ask again before.
    ``waiter`` is the claim token of the attempt that asks. A transaction that outlived the lease under which
    it began, because its process stopped or its machine is away, is ended."""
    params = {
        "repo_id": repo_id,
        "job_type": str(job_type),
        "waiter": waiter,
        "who": who,
        "priority": priority,
        "length": length,
    }
    with conn.transaction():
        candidate = conn.execute(_CANDIDATE, params).fetchone()
        if candidate is not None:
            taken = conn.execute(_TAKE, params | candidate).fetchone()
            assert taken is not None
            conn.execute(_FORGET_WAITERS, params | candidate)
            return Lease(candidate["lock_id"], taken["fence"])
    overdue = conn.execute(_OVERDUE, params).fetchone()
    if overdue is not None:
        sessions.end(conn, overdue["holder"])
    conn.execute(_WAIT, params)
    return None


def stop_waiting(conn: Connection, waiter: UUID) -> None:
    """Take the wish for a lease back."""
    conn.execute(_STOP_WAITING, {"waiter": waiter})


def renew(conn: Connection, lease: Lease, length: float) -> bool:
    """Keep the lease for another ``length`` seconds; False if it ran out or somebody else has it."""
    params = {"lock_id": lease.lock_id, "fence": lease.fence, "length": length}
    return conn.execute(_RENEW, params).rowcount == 1


def release(conn: Connection, lease: Lease) -> None:
    """Give the lease back; nothing happens if it is somebody else's by now."""
    conn.execute(_RELEASE, {"lock_id": lease.lock_id, "fence": lease.fence})


def guard(conn: Connection, lease: Lease) -> None:
    """Check the lease inside a writing transaction and hold its fence until the end. Raises LeaseLost, which
    says to whom."""
    params = {"lock_id": lease.lock_id, "fence": lease.fence}
    if conn.execute(_GUARD, params).fetchone() is not None:
        return
    now = conn.execute(_LOST_TO, params).fetchone()
    if now is None:
        why = "is not in the database any more (was it restored?)"
    elif now["fence"] == lease.fence:
        ended = f"at {now['expires_at']:%H:%M:%S} UTC" if now["expires_at"] else "or was given back"
        why = f"ran out {ended} before it was renewed (was the process stopped, or the database away?)"
    elif now["locked_by"] is not None:
        why = f"was lost: {now['locked_by']} has it since {now['locked_at']:%H:%M:%S} UTC"
    else:
        why = f"was lost: it was taken over, and {now['latest'] or 'somebody'} was the last to have it"
    raise LeaseLost(f"the lease with fence {lease.fence} {why}; nothing of this batch was written")


def holder(conn: Connection, repo_id: int, job_type: JobType) -> Holder | None:
    """Who has the lease now."""
    row = conn.execute(_HOLDER, {"repo_id": repo_id, "job_type": str(job_type)}).fetchone()
    return Holder(row["locked_by"], row["locked_at"], row["expires_at"]) if row else None
