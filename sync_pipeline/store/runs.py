"""Attempts and their batches as a person looks at them: ``scm.sync_runs`` and ``scm.sync_batches``.

Belongs here: the queries that show runs and batches, and what is left of those that retention removed. Does
not belong here: how an attempt is written (:mod:`sync_pipeline.store.jobs`), and what a replay reads
(:mod:`sync_pipeline.operations.runs`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sync_pipeline.job_types import DECLARED
from sync_pipeline.model import Counts, JobType, Mode, TimeWindow, Window
from sync_pipeline.store.database import Connection
from sync_pipeline.store.windows import from_multiranges, from_ranges

# Runs with their jobs, the newest first.
_RUNS = """
SELECT r.run_id, r.job_id, r.attempt, r.repo_id, r.job_type, r.mode, r.status, r.started_at, r.finished_at,
       r.worker, r.dagster_run_id, r.rows_read, r.inserted, r.updated, r.unchanged, r.poorer, r.quarantined,
       r.batches, r.calls, r.error_code, r.error, r.code_version, j.revs, j.period, j.trigger, j.actor,
       j.reason, j.from_raw,
       extract(epoch FROM coalesce(r.finished_at, clock_timestamp()) - r.started_at)::float8 AS seconds
  FROM scm.sync_runs AS r
  JOIN scm.sync_jobs AS j USING (job_id)
 WHERE (%(run_id)s::uuid IS NULL OR r.run_id = %(run_id)s)
   AND (%(dagster_run_id)s::text IS NULL OR r.dagster_run_id = %(dagster_run_id)s)
   AND (%(repo_id)s::bigint IS NULL OR r.repo_id = %(repo_id)s)
   AND (%(job_type)s::text IS NULL OR r.job_type = %(job_type)s)
 ORDER BY r.started_at DESC, r.run_id
 LIMIT %(limit)s
"""

# Batches in the order in which they were written.
_BATCHES = """
SELECT batch_id, run_id, batch_no, job_type, fence, revs, period, covers, rows_read, inserted, updated,
       unchanged, poorer, quarantined, owed, position, first_key, last_key, read_time, calls, seconds,
       committed_at
  FROM scm.sync_batches
 WHERE (%(batch_id)s::bigint IS NULL OR batch_id = %(batch_id)s)
   AND (%(run_ids)s::uuid[] IS NULL OR run_id = ANY (%(run_ids)s))
 ORDER BY run_id, batch_no
 LIMIT %(limit)s
"""

# Events of coverage stay when the records of the work are removed.
_WAS_THERE = """
SELECT 1 FROM scm.sync_watermark_events WHERE run_id = %(run_id)s OR batch_id = %(batch_id)s LIMIT 1
"""

# The jobs that somebody began to work on since then.
_BEGUN = """
SELECT DISTINCT job_id FROM scm.sync_runs
 WHERE repo_id = %(repo_id)s AND job_type = %(job_type)s AND mode = %(mode)s AND started_at >= %(since)s
"""


_SAME_NAMES = (
    *("batch_id", "run_id", "fence", "owed", "position", "first_key", "last_key"),
    *("calls", "seconds", "committed_at"),
)


@dataclass(frozen=True, slots=True)
class BatchRow:
    """A row of ``scm.sync_batches``. ``window`` is what was asked for, ``covered`` what is complete since
    then, ``read`` what a replay reads again: none where it read no rows, or where an earlier version kept no
    position. ``calls`` and ``seconds`` are those since the batch before; None of an earlier version."""

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
    """Runs with what is known of their jobs, the newest first; all that are given have to hold."""
    return conn.execute(
        _RUNS,
        {
            "run_id": run_id,
            "dagster_run_id": dagster_run_id,
            "repo_id": repo_id,
            "job_type": None if job_type is None else str(job_type),
            "limit": limit,
        },
    ).fetchall()


def batches(conn: Connection, run_ids: Iterable[UUID], limit: int | None = None) -> list[BatchRow]:
    """The batches of these runs, those of a run in the order in which they were written."""
    params = {"run_ids": list(run_ids), "batch_id": None, "limit": limit}
    return [_batch(row) for row in conn.execute(_BATCHES, params)]


def batch(conn: Connection, batch_id: int) -> BatchRow | None:
    """The batch of that number, if there is one."""
    rows = conn.execute(_BATCHES, {"run_ids": None, "batch_id": batch_id, "limit": 1}).fetchall()
    return _batch(rows[0]) if rows else None


def was_there(conn: Connection, *, run_id: UUID | None = None, batch_id: int | None = None) -> bool:
    """True if coverage once grew by that run or batch, also where its records were removed since then."""
    return conn.execute(_WAS_THERE, {"run_id": run_id, "batch_id": batch_id}).fetchone() is not None


def begun(conn: Connection, repo_id: int, job_type: JobType, mode: Mode, since: datetime) -> list[UUID]:
    """The jobs that were worked on ``since``, by the database's clock."""
    params = {"repo_id": repo_id, "job_type": str(job_type), "mode": str(mode), "since": since}
    return [row["job_id"] for row in conn.execute(_BEGUN, params)]


def _batch(row: dict[str, Any]) -> BatchRow:
    window = from_ranges(row["revs"], row["period"])
    read: tuple[Window, ...] = from_multiranges((), row["read_time"] or ())
    # A batch of a list by time completes a part of its window.
    covered: Window | None = window
    if DECLARED[JobType(row["job_type"])].by_time and read:
        covered = read[0]
    if row["position"] is not None and window is not None and not isinstance(window, TimeWindow):
        read = (window,)
    counts = {name: row[name] for name in ("inserted", "updated", "unchanged", "poorer", "quarantined")}
    return BatchRow(
        number=row["batch_no"],
        window=window,
        covered=covered if row["covers"] else None,
        read=read,
        counts=Counts(read=row["rows_read"], **counts),
        **{name: row[name] for name in _SAME_NAMES},
    )
