"""Leases: the right to write for one asset, and the fence that proves it.

Belongs here: taking, renewing, checking and releasing. Times are the database's clock. A writer holds ``FOR
KEY SHARE`` on (lock_id, fence). A heartbeat changes neither, so it does not wait. The next claim raises the
fence, so it waits for the writer. ``FOR SHARE`` would block the heartbeat.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sync_pipeline.core.errors import LeaseLost
from sync_pipeline.core.model import JobType
from sync_pipeline.database.pool import Connection
from sync_pipeline.database.queries import queries
from sync_pipeline.database.rows import only_row
from sync_pipeline.ledger import sessions

_SQL = queries("leases")


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
    conn.execute(_SQL["ensure"], {"repo_id": repo_id, "job_type": str(job_type)})


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
    """Take the lease for ``length`` seconds, renewable. None if it is held, or if another attempt with a
    smaller ``priority`` (or an equal one, but earlier) waits.

    The request is then stored for 10 s: ask again before. ``waiter`` is the claim token of the asking
    attempt. A transaction that outlived its lease, because its process stopped or its machine is unavailable,
    is ended.
    """
    params = {
        "repo_id": repo_id,
        "job_type": str(job_type),
        "waiter": waiter,
        "who": who,
        "priority": priority,
        "length": length,
    }
    with conn.transaction():
        candidate = conn.execute(_SQL["candidate"], params).fetchone()
        if candidate is not None:
            taken = only_row(conn.execute(_SQL["take"], params | candidate))
            conn.execute(_SQL["delete_waiters"], params | candidate)
            return Lease(candidate["lock_id"], taken["fence"])
    overdue = conn.execute(_SQL["overdue"], params).fetchone()
    if overdue is not None:
        sessions.end(conn, overdue["holder"])
    conn.execute(_SQL["wait"], params)
    return None


def stop_waiting(conn: Connection, waiter: UUID) -> None:
    """Take the wish for a lease back."""
    conn.execute(_SQL["stop_waiting"], {"waiter": waiter})


def renew(conn: Connection, lease: Lease, length: float) -> bool:
    """Keep the lease for another ``length`` seconds; False if it expired or has another holder."""
    params = {"lock_id": lease.lock_id, "fence": lease.fence, "length": length}
    return conn.execute(_SQL["renew"], params).rowcount == 1


def release(conn: Connection, lease: Lease) -> None:
    """Give the lease back; nothing happens if it has another holder by now."""
    conn.execute(_SQL["release"], {"lock_id": lease.lock_id, "fence": lease.fence})


def guard(conn: Connection, lease: Lease) -> None:
    """Check the lease inside a writing transaction and hold its fence until the end. Raises LeaseLost, which
    says to whom."""
    params = {"lock_id": lease.lock_id, "fence": lease.fence}
    if conn.execute(_SQL["guard"], params).fetchone() is not None:
        return
    now = conn.execute(_SQL["lost_to"], params).fetchone()
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
    row = conn.execute(_SQL["holder"], {"repo_id": repo_id, "job_type": str(job_type)}).fetchone()
    return Holder(row["locked_by"], row["locked_at"], row["expires_at"]) if row else None
