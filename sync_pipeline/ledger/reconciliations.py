"""Comparisons with the source: their results and the open differences.

Belongs here: ``scm.reconciliations`` and ``scm.discrepancies``. Rows are compared in
:mod:`sync_pipeline.facts.comparison`; :mod:`sync_pipeline.policy.reconciliation` decides what follows from a
difference. The progress of the rolling scan is in :mod:`sync_pipeline.ledger.reconcile_progress`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sync_pipeline.core.model import Difference, DifferenceKind, JobType, Window
from sync_pipeline.database.pool import Connection
from sync_pipeline.database.queries import queries
from sync_pipeline.database.ranges import from_ranges, range_params
from sync_pipeline.database.rows import only_value, read_row

COUNTED = ("expected", "stored", "missing", "extra", "changed", "newer", "unreadable", "hidden")
"""The counts of rows in the result of a comparison."""


_SQL = queries("reconciliations")


@dataclass(frozen=True, slots=True)
class Discrepancy:
    """An open difference. ``looks`` is how many comparisons saw it as it is; ``found_at`` since when;
    ``now`` the database's clock when it was read."""

    discrepancy_id: int
    difference: Difference
    looks: int
    repairs: int
    found_at: datetime
    last_seen_at: datetime
    now: datetime


def next_number(conn: Connection) -> int:
    """The number of the comparison that begins."""
    return int(only_value(conn.execute(_SQL["next"])))


def add(conn: Connection, window: Window, columns: Mapping[str, Any]) -> None:
    """Write the result of a comparison: the ``columns`` of ``scm.reconciliations``, those of COUNTED among
    them, with ``number`` for its number."""
    conn.execute(_SQL["add"], {**range_params(window), **columns})


def put(
    conn: Connection, *, repo_id: int, job_type: JobType, number: int, found: Iterable[Difference]
) -> None:
    """Write down differences that comparison ``number`` saw."""
    rows = [
        {
            "repo_id": repo_id,
            "job_type": str(job_type),
            "natural_key": one.natural_key,
            "kind": str(one.kind),
            "fields": list(one.fields),
            "number": number,
        }
        | range_params(one.position)
        for one in found
    ]
    if rows:
        with conn.cursor() as cursor:
            cursor.executemany(_SQL["put"], rows)


def resolve_unseen(
    conn: Connection,
    *,
    repo_id: int,
    job_type: JobType,
    window: Window,
    number: int,
    everywhere: bool,
    unread: Collection[str] = (),
    only: Collection[str] | None = None,
) -> int:
    """Close the differences in ``window`` that comparison ``number`` did not see; with ``everywhere`` also
    those without a place. The rows with keys in ``unread`` could not be compared. With ``only`` the rows with
    these keys were compared with all their parts, and no others. Returns how many."""
    params = {
        "repo_id": repo_id,
        "job_type": str(job_type),
        "number": number,
        "everywhere": everywhere,
        "unread": list(unread),
        "only": None if only is None else list(only),
    }
    return conn.execute(_SQL["resolve"], params | range_params(window)).rowcount


def open_ones(
    conn: Connection,
    repo_id: int,
    job_type: JobType,
    *,
    window: Window | None = None,
    number: int | None = None,
    limit: int | None = None,
) -> list[Discrepancy]:
    """At most ``limit`` open differences: those in ``window`` or without a place, and only those that
    comparison ``number`` saw, where these are set."""
    params = {
        "repo_id": repo_id,
        "job_type": str(job_type),
        "within": window is not None,
        "number": number,
        "limit": limit,
    }
    return [
        read_row(
            Discrepancy,
            row,
            difference=Difference(
                row["natural_key"],
                DifferenceKind(row["kind"]),
                from_ranges(row["revs"], row["period"]),
                tuple(row["fields"]),
            ),
        )
        for row in conn.execute(_SQL["open"], params | range_params(window))
    ]


def tried(conn: Connection, ids: Sequence[int]) -> None:
    """A repair read the rows of these again."""
    conn.execute(_SQL["tried"], {"ids": list(ids)})


def deleted(conn: Connection, ids: Sequence[int]) -> None:
    """The rows of these are tombstones now."""
    conn.execute(_SQL["deleted"], {"ids": list(ids)})


def forgive(conn: Connection, repo_id: int, job_type: JobType) -> None:
    """A person starts the repair of abandoned differences once more."""
    conn.execute(_SQL["forgive"], {"repo_id": repo_id, "job_type": str(job_type)})


def of_run(conn: Connection, run_id: UUID) -> list[dict[str, Any]]:
    """The results of one probe, in order: the columns of ``scm.reconciliations``, with ``window`` in place of
    the two ranges."""
    rows = conn.execute(_SQL["of_run"], {"run_id": run_id}).fetchall()
    for row in rows:
        row["window"] = from_ranges(row.pop("revs"), row.pop("period"))
    return rows
