"""Quarantine and deferred fetches: rows that could not be stored, and details that are still to be read.

Belongs here: writing both in the batch's transaction, finding the fetches that are due, and looking
through quarantine. They are resolved by the module that stores the row or the detail after all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from sync_pipeline.core.model import DeferredFetch, JobType, QuarantinedRow, TimeWindow, Window
from sync_pipeline.database.pool import Connection
from sync_pipeline.database.queries import queries
from sync_pipeline.database.ranges import from_ranges
from sync_pipeline.database.rows import read_row
from sync_pipeline.database.values import recordset

_SQL = queries("quarantine")


GONE = "no longer at the source; "
"""How the detail of an entry begins that left quarantine without being stored."""


@dataclass(frozen=True, slots=True)
class QuarantineEntry:
    """An entry of quarantine without its payload. ``window`` is that of the batch that last met it, None
    where that is unknown; ``run_id`` is the run of that batch."""

    quarantine_id: int
    repo_id: int
    job_type: JobType
    natural_key: str
    reason: str
    detail: str
    payload_bytes: int
    batch_id: int | None
    run_id: UUID | None
    window: Window | None
    seen: int
    created_at: datetime
    last_seen_at: datetime
    resolved_at: datetime | None


def quarantine(
    conn: Connection, *, repo_id: int, job_type: JobType, batch_id: int, rows: Iterable[QuarantinedRow]
) -> int:
    """Put rows into quarantine; a row that is there already is updated. Returns how many came."""
    number = 0
    for row in rows:
        number += 1
        conn.execute(
            _SQL["quarantine"],
            {
                "repo_id": repo_id,
                "job_type": str(job_type),
                **asdict(row),
                "batch_id": batch_id,
            },
        )
    return number


def defer(conn: Connection, *, repo_id: int, job_type: JobType, fetches: Iterable[DeferredFetch]) -> None:
    """Record details that were not read. One that failed before waits longer each time. A planned one that
    is recorded already keeps its time, and its error if it failed."""
    once = {(item.natural_key, item.detail): item for item in fetches}
    if not once:
        return
    rows = [asdict(item) | {"wait": item.wait.total_seconds()} for item in once.values()]
    conn.execute(_SQL["defer"], {"repo_id": repo_id, "job_type": str(job_type), "fetches": recordset(rows)})


def due(conn: Connection, repo_id: int, job_type: JobType, limit: int) -> list[DeferredFetch]:
    """At most ``limit`` failed fetches whose next try has come, the longest waiting first."""
    params = {"repo_id": repo_id, "job_type": str(job_type), "limit": limit}
    return [DeferredFetch(**row) for row in conn.execute(_SQL["due"], params)]


def planned(
    conn: Connection,
    repo_id: int,
    job_types: Iterable[JobType],
    *,
    limit: int,
    waiting: bool = False,
    updated: TimeWindow | None = None,
    except_for: Iterable[str] = (),
) -> dict[str, dict[JobType, list[str]]]:
    """Planned details by the keys of their rows and by job type, the most urgent row first: at most ``limit``
    details of each job type. With ``waiting`` also those whose time has not come. With ``updated`` only those
    of rows that were updated in this window. Keys in ``except_for`` are left out."""
    params = {
        "repo_id": repo_id,
        "job_types": [str(one) for one in job_types],
        "limit": limit,
        "waiting": waiting,
        "since": None if updated is None else updated.since,
        "until": None if updated is None else updated.until,
        "except_for": list(except_for),
    }
    found: dict[str, dict[JobType, list[str]]] = {}
    for row in conn.execute(_SQL["planned"], params):
        of_row = found.setdefault(row["natural_key"], {})
        of_row.setdefault(JobType(row["job_type"]), []).append(row["detail"])
    return found


def entries(
    conn: Connection,
    *,
    ids: Sequence[int] | None = None,
    repo_id: int | None = None,
    job_type: JobType | None = None,
    reason: str | None = None,
    resolved: bool = False,
    limit: int | None = None,
) -> tuple[list[QuarantineEntry], int]:
    """Entries of quarantine that fit every filter, the latest met first, at most ``limit``; and how many fit
    in all. Those that were stored after all only with ``resolved``."""
    params = {
        "ids": None if ids is None else list(ids),
        "repo_id": repo_id,
        "job_type": None if job_type is None else str(job_type),
        "reason": reason,
        "resolved": resolved,
        "limit": limit,
    }
    rows = conn.execute(_SQL["entries"], params).fetchall()
    return [_entry(row) for row in rows], rows[0]["total"] if rows else 0


def _entry(row: dict[str, Any]) -> QuarantineEntry:
    return read_row(QuarantineEntry, row, window=from_ranges(row["revs"], row["period"]))


def payload_of(conn: Connection, quarantine_id: int) -> bytes:
    """The row as received, after redaction; empty where the entry is none."""
    row = conn.execute(_SQL["payload"], {"id": quarantine_id}).fetchone()
    return bytes(row["payload"]) if row is not None else b""


def resolve(conn: Connection, ids: Sequence[int]) -> None:
    """These entries leave quarantine although nothing was stored: their rows are no longer at the source."""
    conn.execute(_SQL["resolve"], {"ids": list(ids), "gone": GONE})


def settle(
    conn: Connection,
    repo_id: int,
    job_type: JobType,
    keys: Iterable[str],
    fetched: Iterable[tuple[str, str]] = (),
) -> None:
    """Take these keys out of quarantine. End the deferred fetches of what was ``fetched``: pairs of a key and
    a detail."""
    found = recordset({"natural_key": key, "detail": detail} for key, detail in fetched)
    params = {"repo_id": repo_id, "job_type": str(job_type), "keys": list(keys), "fetched": found}
    conn.execute(_SQL["settle"], params)


def settle_gone(
    conn: Connection, repo_id: int, job_types: Sequence[JobType], keys: Sequence[int | str]
) -> None:
    """End the deferred fetches and the quarantine of rows that are gone from their source. The key of a
    merge request is its number, and stands for all that belongs to it."""
    if not keys:
        return
    params = {
        "repo_id": repo_id,
        "job_types": [str(one) for one in job_types],
        "keys": [str(key) for key in keys],
        "gone": GONE,
    }
    conn.execute(_SQL["settle_deferred"], params)
    conn.execute(_SQL["settle_quarantine"], params)


def settle_unstored(
    conn: Connection, *, repo_id: int, job_type: JobType, iid: int, confirmations: int, time: timedelta
) -> None:
    """The source says now that there is no such merge request. Its deferred fetches end if it is not stored
    and it was requested ``confirmations`` times, over ``time`` at least."""
    params = {
        "repo_id": repo_id,
        "job_type": str(job_type),
        "iid": iid,
        "confirmations": confirmations,
        "time": time,
    }
    if conn.execute(_SQL["unstored"], params).fetchone() is not None:
        settle_gone(conn, repo_id, [job_type], [iid])


def open_keys(conn: Connection, repo_id: int, job_type: JobType) -> set[str]:
    """The keys of everything of an asset that is in quarantine."""
    rows = conn.execute(_SQL["open_keys"], {"repo_id": repo_id, "job_type": str(job_type)})
    return {row["natural_key"] for row in rows}
