"""Queries about runs and batches for reports: ``scm.sync_runs`` and ``scm.sync_batches``.

Belongs here: lists of runs and batches, how fast they read, and traces of those that retention removed. Does
not belong here: how an attempt is written (:mod:`sync_pipeline.ledger.jobs`), and what a replay reads
(:mod:`sync_pipeline.reports.runs`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sync_pipeline.core.job_types import DECLARED
from sync_pipeline.core.model import Counts, JobType, Mode, TimeWindow, Window
from sync_pipeline.database.pool import Connection
from sync_pipeline.database.queries import queries
from sync_pipeline.database.ranges import from_multiranges, from_ranges
from sync_pipeline.database.rows import only_value, read_row

_SQL = queries("runs")


@dataclass(frozen=True, slots=True)
class BatchRow:
    """A row of ``scm.sync_batches``. ``window`` is the requested one, ``covered`` the window that it
    completed, ``read`` the times that a replay reads again. ``read`` is empty if it read no rows, or in
    earlier versions without positions. ``calls`` and ``seconds`` are those since the batch before; None in
    earlier versions.
    """

    batch_id: int
    run_id: UUID
    number: int
    fence: int
    window: Window | None
    covered: Window | None
    read: tuple[Window, ...]
    counts: Counts
    owed: int | None
    position: str | None
    first_key: str | None
    last_key: str | None
    calls: int | None
    seconds: float | None
    committed_at: datetime


def listed(
    conn: Connection,
    *,
    run_id: UUID | None = None,
    dagster_run_id: str | None = None,
    repo_id: int | None = None,
    job_type: JobType | None = None,
    limit: int = 1,
) -> list[dict[str, Any]]:
    """Runs that meet all given conditions, with the columns of their jobs, the newest first."""
    return conn.execute(
        _SQL["runs"],
        {
            "run_id": run_id,
            "dagster_run_id": dagster_run_id,
            "repo_id": repo_id,
            "job_type": None if job_type is None else str(job_type),
            "limit": limit,
        },
    ).fetchall()


def batches(conn: Connection, run_ids: Iterable[UUID], limit: int | None = None) -> list[BatchRow]:
    """The batches of these runs. Those of one run are in the order in which they were written."""
    params = {"run_ids": list(run_ids), "batch_id": None, "limit": limit}
    return [_batch(row) for row in conn.execute(_SQL["batches"], params)]


def batch(conn: Connection, batch_id: int) -> BatchRow | None:
    """The batch of this number; None if there is none."""
    rows = conn.execute(_SQL["batches"], {"run_ids": None, "batch_id": batch_id, "limit": 1}).fetchall()
    return _batch(rows[0]) if rows else None


def was_there(conn: Connection, *, run_id: UUID | None = None, batch_id: int | None = None) -> bool:
    """True if this run or batch once extended coverage, also after retention removed its records."""
    return conn.execute(_SQL["exists_batch"], {"run_id": run_id, "batch_id": batch_id}).fetchone() is not None


def begun(conn: Connection, repo_id: int, job_type: JobType, mode: Mode, since: datetime) -> list[UUID]:
    """The jobs that a worker claimed after ``since`` (UTC, by the clock of the database)."""
    params = {"repo_id": repo_id, "job_type": str(job_type), "mode": str(mode), "since": since}
    return [row["job_id"] for row in conn.execute(_SQL["begun"], params)]


def _batch(row: dict[str, Any]) -> BatchRow:
    window = from_ranges(row["revs"], row["period"])
    read: tuple[Window, ...] = from_multiranges((), row["read_time"] or ())
    # A batch of a list by time completes a part of its window.
    covered: Window | None = window
    if DECLARED[JobType(row["job_type"])].by_time and read:
        covered = read[0]
    if row["position"] is not None and window is not None and not isinstance(window, TimeWindow):
        read = (window,)
    return read_row(
        BatchRow,
        row,
        number=row["batch_no"],
        window=window,
        covered=covered if row["covers"] else None,
        read=read,
        counts=read_row(Counts, row, read=row["rows_read"]),
    )


def seconds_per_row(conn: Connection, repo_id: int, job_type: JobType) -> float | None:
    """Seconds for each row of this job type in the largest runs of the last 30 days; None without runs."""
    found: float | None = only_value(
        conn.execute(_SQL["pace"], {"repo_id": repo_id, "job_type": str(job_type)})
    )
    return found
