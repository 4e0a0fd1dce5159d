"""Finds abandoned work and ends it.

Belongs here: jobs, runs, leases and waiters for leases whose owners are gone, and jobs that wait in vain.
Every change names the state that was read, so work that has an owner again is left alone. The attempt of a
lost owner is ended by :func:`sync_pipeline.ledger.jobs.end_lost`. Does not belong here: deciding whether work
is lost (:mod:`sync_pipeline.policy.reaping`).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from sync_pipeline.core.model import JobType
from sync_pipeline.database.pool import Connection
from sync_pipeline.database.queries import queries
from sync_pipeline.ledger import sessions

_REAPER_LOCK = 0x5C3_0003
# Claims that are looked at for a dead process; those that ended longest ago come first.
_MAX_CLAIMS_READ = 1000


_SQL = queries("reaping")


def try_lock(conn: Connection) -> bool:
    """Be the only reaper until the caller's transaction ends; False if another one is at work."""
    row = conn.execute(_SQL["try_lock"], {"lock": _REAPER_LOCK}).fetchone()
    return bool(row and row["locked"])


def running_jobs(
    conn: Connection, repo_id: int | None = None, job_type: JobType | None = None
) -> list[dict[str, Any]]:
    """Every claim, or those of one (repository, job type), the one that ends first at the start; at most
    1,000."""
    params = {"limit": _MAX_CLAIMS_READ, "repo_id": repo_id, "job_type": job_type}
    return conn.execute(_SQL["running"], params).fetchall()


def waiting_jobs(
    conn: Connection, *, grace: float, one_off_age: float, age: float | None, limit: int
) -> list[dict[str, Any]]:
    """Waiting jobs that may be given up, the one that was left alone longest first. Ages are seconds since
    the row last changed; ``age`` is None where waiting jobs do not age."""
    longest = 1e11  # longer than anything has been there
    params = {
        "grace": grace,
        "one_off_age": one_off_age,
        "age": longest if age is None else age,
        "limit": limit,
    }
    return conn.execute(_SQL["waiting"], params).fetchall()


def give_up(conn: Connection, job_id: UUID, touched_at: datetime, *, code: str, error: str) -> bool:
    """Make a waiting job dead with this reason; False if it changed since ``touched_at``."""
    params = {"job_id": job_id, "touched_at": touched_at, "code": code, "error": error}
    return conn.execute(_SQL["give_up"], params).rowcount == 1


def open_runs(conn: Connection, limit: int) -> list[dict[str, Any]]:
    """Open runs whose job has ended or is at another attempt, the oldest first."""
    return conn.execute(_SQL["open_runs"], {"limit": limit}).fetchall()


def close_run(conn: Connection, run_id: UUID) -> bool:
    """Close such a run; False if it is closed by now."""
    return conn.execute(_SQL["close_run"], {"run_id": run_id}).rowcount == 1


def ended_leases(conn: Connection, limit: int) -> list[dict[str, Any]]:
    """Leases that ended and were not given back, the oldest first."""
    return conn.execute(_SQL["leases"], {"limit": limit}).fetchall()


def release_lease(conn: Connection, lock_id: int, fence: int, holder: UUID) -> bool:
    """Free an expired lease and raise its fence. False if it has an owner again, or if a transaction of its
    holder had to be ended first: it is free a moment later.
    """
    params = {"lock_id": lock_id, "fence": fence}
    with conn.transaction():
        if conn.execute(_SQL["lock_lease"], params).fetchone() is not None:
            conn.execute(_SQL["release"], params)
            return True
    if conn.execute(_SQL["still_held"], params).fetchone() is not None:
        sessions.end(conn, holder)
    return False


def ended_waiters(conn: Connection, limit: int) -> list[dict[str, Any]]:
    """Wishes for a lease whose owners no longer ask, the oldest first."""
    return conn.execute(_SQL["waiters"], {"limit": limit}).fetchall()


def delete_waiter(conn: Connection, lock_id: int, waiter: UUID, expires_at: datetime) -> bool:
    """Take such a wish back; False if its owner asked again."""
    params = {"lock_id": lock_id, "waiter": waiter, "expires_at": expires_at}
    return conn.execute(_SQL["delete_waiter"], params).rowcount == 1


def signs_of_life(conn: Connection, run_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The ledger's data about these Dagster runs: ``last_sign``, ``lost_at`` and ``claims_live``. Runs that
    never claimed a job are left out.
    """
    rows = conn.execute(_SQL["signs"], {"run_ids": list(run_ids)}).fetchall()
    return {row["dagster_run_id"]: row for row in rows}
