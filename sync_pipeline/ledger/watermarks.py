"""Coverage: what is known to be complete, per (repository, job type), and the events that prove it.

Belongs here: every read and write of ``scm.sync_watermarks`` and ``scm.sync_watermark_events``. Both change
in one transaction, the caller's. The watermark itself is a generated column, so nothing here computes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sync_pipeline import __version__
from sync_pipeline.core.errors import ConfigurationError, WatermarkSet
from sync_pipeline.core.model import Access, JobType, Window
from sync_pipeline.database.pool import Connection
from sync_pipeline.database.queries import queries
from sync_pipeline.database.ranges import from_multiranges, from_ranges, multirange_params, range_params
from sync_pipeline.database.rows import mark_of, read_row
from sync_pipeline.facts.job_types import FACTS

_SQL = queries("watermarks")


@dataclass(frozen=True, slots=True)
class WatermarkRow:
    """A row of ``scm.sync_watermarks``. ``watermark`` and ``origin`` are a revision or a UTC time."""

    repo_id: int
    job_type: JobType
    origin: int | datetime
    covered: tuple[Window, ...]
    watermark: int | datetime | None
    generation: int
    verified_at: datetime | None
    head_rev: int | None
    sweep_rev: int
    swept_at: datetime | None
    access: Access
    access_detail: str | None
    access_since: datetime
    visited_at: datetime | None


def _key(repo_id: int, job_type: JobType) -> dict[str, Any]:
    return {"repo_id": repo_id, "job_type": str(job_type), "code_version": __version__}


def register(
    conn: Connection,
    *,
    repo_id: int,
    job_type: JobType,
    origin_rev: int | None = None,
    origin_time: datetime | None = None,
    head_rev: int | None = None,
    actor: str,
    reason: str,
) -> None:
    """Make the row of a newly registered (repository, job type); registering twice changes nothing."""
    params = _key(repo_id, job_type) | {
        "origin_rev": origin_rev,
        "origin_time": origin_time,
        "head_rev": head_rev,
        "actor": actor,
        "reason": reason,
        "direction": "register",
    }
    with conn.transaction():
        if conn.execute(_SQL["register"], params).fetchone() is not None:
            conn.execute(_SQL["snapshot_event"], params)


def get(conn: Connection, repo_id: int, job_type: JobType) -> WatermarkRow:
    """Coverage, watermark and access of one asset. Raises ConfigurationError if it is not registered."""
    row = conn.execute(_SQL["get"], _key(repo_id, job_type)).fetchone()
    if row is None:
        raise ConfigurationError(
            f"repository {repo_id} has no {job_type}; see `scm-sync repo list`", code="not_registered"
        )
    return read_row(
        WatermarkRow,
        row,
        origin=mark_of(row, "origin"),
        covered=from_multiranges(row["covered_revs"], row["covered_time"]),
        watermark=mark_of(row, "watermark"),
    )


def missing(conn: Connection, repo_id: int, job_type: JobType, window: Window) -> tuple[Window, ...]:
    """The parts of ``window`` that are not covered, in order."""
    row = conn.execute(_SQL["missing"], _key(repo_id, job_type) | multirange_params(window)).fetchone()
    return from_multiranges(row["revs"], row["period"]) if row else (window,)


def extend(
    conn: Connection,
    *,
    repo_id: int,
    job_type: JobType,
    window: Window,
    actor: str,
    reason: str,
    run_id: UUID,
    batch_id: int,
) -> bool:
    """Mark ``window`` complete; True if that was news. The caller's transaction holds the row's lock."""
    ranges = range_params(window)
    params = _key(repo_id, job_type) | multirange_params(window)
    params |= {"added_revs": ranges["revs"], "added_time": ranges["period"]}
    params |= {"actor": actor, "reason": reason, "run_id": run_id, "batch_id": batch_id}
    return conn.execute(_SQL["extend"], params).rowcount == 1


def move_origin(
    conn: Connection, *, repo_id: int, job_type: JobType, window: Window, actor: str, reason: str
) -> bool:
    """Move the origin back to the start of ``window``. False, and no change, if the window does not join
    the origin (the watermark would move back) or the origin is there already."""
    params = _key(repo_id, job_type) | range_params(window) | {"actor": actor, "reason": reason}
    with conn.transaction():
        return conn.execute(_SQL["move_origin"], params).rowcount == 1


def replace(
    conn: Connection, *, repo_id: int, job_type: JobType, covered: tuple[Window, ...], actor: str, reason: str
) -> int:
    """A person's decision about what counts as complete; empty ``covered`` is a reset, after which everything
    is read again. Returns the new generation; jobs of the old one can write no more."""
    params = _key(repo_id, job_type) | multirange_params(*covered)
    params |= {"actor": actor, "reason": reason, "direction": "set" if covered else "reset"}
    with conn.transaction():
        row = conn.execute(_SQL["replace"], params).fetchone()
        if row is None:
            raise ConfigurationError(f"repository {repo_id} has no {job_type}; see `scm-sync repo list`")
        conn.execute(_SQL["snapshot_event"], params)
        if not covered and (on_reset := FACTS[job_type].on_reset) is not None:
            conn.execute(on_reset, params)
    return int(row["generation"])


def record_visit(
    conn: Connection,
    *,
    repo_id: int,
    job_type: JobType,
    access: Access,
    detail: str | None = None,
    head_rev: int | None = None,
    verified_at: datetime | None = None,
    activity_at: datetime | None = None,
) -> None:
    """Write down what a look at the source found. ``verified_at`` only if nothing was missing;
    ``activity_at`` is the source's own time of its last activity."""
    params = _key(repo_id, job_type)
    params |= {"access": str(access), "detail": detail, "head_rev": head_rev, "verified_at": verified_at}
    params["activity_at"] = activity_at
    conn.execute(_SQL["visited"], params)


def record_scan(conn: Connection, *, repo_id: int, job_type: JobType, sweep_rev: int) -> None:
    """The rolling sweep goes on at ``sweep_rev`` next time."""
    conn.execute(_SQL["record_scan"], _key(repo_id, job_type) | {"sweep_rev": sweep_rev})


def events(conn: Connection, repo_id: int, job_type: JobType, limit: int) -> list[dict[str, Any]]:
    """The newest ``limit`` changes of coverage, newest first. Each has event_id, created_at, direction, added
    (a window or None), watermark (a revision or a UTC time), generation, actor, reason, run_id.
    """
    rows = conn.execute(_SQL["events"], _key(repo_id, job_type) | {"limit": limit}).fetchall()
    return [
        {
            **{name: row[name] for name in ("event_id", "created_at", "direction")},
            "added": from_ranges(row["added_revs"], row["added_time"]),
            "watermark": mark_of(row, "watermark"),
            **{name: row[name] for name in ("generation", "actor", "reason", "run_id")},
        }
        for row in rows
    ]


def lock_generation(conn: Connection, repo_id: int, job_type: JobType, generation: int) -> None:
    """Hold the row until the transaction ends. Raises WatermarkSet if a person set it meanwhile."""
    row = conn.execute(_SQL["lock"], _key(repo_id, job_type)).fetchone()
    if row is None or row["generation"] != generation:
        raise WatermarkSet(
            f"the watermark of repository {repo_id} ({job_type}) was set by hand while this job ran; "
            "what came after that was not written, and the job waits to run again"
        )
