"""Requests of people in the Dagster UI, as the ledger keeps them: ``scm.dagster_requests``.

Belongs here: which requests were taken over, and their jobs when Dagster is done with them. The jobs of a
request have the trigger ``ui`` and name the request in their reason. Does not belong here: reading Dagster's
records (:mod:`sync_pipeline.orchestration.ui_requests`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from sync_pipeline.core.model import JobRequest
from sync_pipeline.database.pool import Connection
from sync_pipeline.database.queries import queries
from sync_pipeline.database.ranges import range_params

_SQL = queries("dagster_requests")


@dataclass(frozen=True, slots=True)
class Request:
    """A request that the ledger takes over. ``requested_at`` is Dagster's time (UTC), ``status`` Dagster's
    word. ``job_count`` jobs were made so far for its first ``assets_done`` assets; ``skipped_count`` of their
    partitions have none. With ``ended`` Dagster does no more for it."""

    request_id: str
    kind: str
    requested_at: datetime
    actor: str
    status: str
    job_count: int = 0
    skipped_count: int = 0
    assets_done: int = 0
    complete: bool = False
    ended: bool = False


def known(conn: Connection, pool: str, request_ids: Collection[str]) -> dict[str, Request]:
    """Those of ``request_ids`` that this pool knows, and all that it has open, by id."""
    rows = conn.execute(_SQL["known"], {"pool": pool, "request_ids": list(request_ids)}).fetchall()
    return {row["request_id"]: Request(**row) for row in rows}


def put(conn: Connection, pool: str, request: Request) -> None:
    """Write down how far the ledger has taken a request over."""
    conn.execute(_SQL["put"], asdict(request) | {"pool": pool})


def dispatched(conn: Connection, job_ids: Sequence[UUID]) -> None:
    """Leave these jobs to the runs that Dagster makes for them."""
    conn.execute(_SQL["dispatched"], {"job_ids": list(job_ids)})


def undispatch(conn: Connection, reason: str) -> int:
    """Let the plan start what waits of the request with this reason; returns how many jobs."""
    return conn.execute(_SQL["undispatch"], {"reason": reason}).rowcount


def give_up(conn: Connection, reason: str, *, code: str, error: str) -> int:
    """End what waits of the request with this reason; returns how many jobs."""
    return conn.execute(_SQL["give_up"], {"reason": reason, "code": code, "error": error}).rowcount


def is_done(conn: Connection, request: JobRequest) -> bool:
    """True if completed jobs of the same request hold all of its window."""
    params: dict[str, Any] = {
        "repo_id": request.repo_id,
        "job_type": str(request.job_type),
        "mode": str(request.mode),
        "reason": request.reason,
    }
    row = conn.execute(_SQL["is_done"], params | range_params(request.window)).fetchone()
    return row is not None and bool(row["done"])


def put_down(conn: Connection, lately: timedelta, limit: int) -> dict[UUID, str]:
    """Jobs of people that ended with their run, newest first, with the id of that Dagster run."""
    rows = conn.execute(_SQL["interrupted"], {"lately": lately, "limit": limit})
    return {row["job_id"]: row["dagster_run_id"] for row in rows}


def revive(conn: Connection, job_ids: Collection[UUID]) -> int:
    """Let jobs wait again that no person stopped; returns how many."""
    return conn.execute(_SQL["revive"], {"job_ids": list(job_ids)}).rowcount
