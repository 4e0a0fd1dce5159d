"""The progress of the reconcile schedule, and the snapshot from which it plans.

Belongs here: ``scm.reconcile_progress``, the snapshot query over catalog, coverage and open differences, and
the figures that the fleet-wide asset shows. Does not belong here: any decision; that is
:mod:`sync_pipeline.policy.reconcile_schedule`. Results and differences are written by
:mod:`sync_pipeline.ledger.reconciliations`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sync_pipeline.core.model import JobType
from sync_pipeline.database.pool import Connection
from sync_pipeline.database.queries import queries
from sync_pipeline.database.ranges import from_multiranges
from sync_pipeline.database.rows import mark_of, only_row, only_value

_SQL = queries("reconcile_progress")


@dataclass(frozen=True, slots=True)
class ReconcileRows:
    """The rows of one plan. ``now`` is the database's clock. ``assets`` have the columns of the first query
    above, with ``watermark``, ``covered_from`` and ``next`` in place of pairs of columns, and ``places`` as
    windows. ``sent`` are requests of comparisons by instance: those of this hour, and of the one before."""

    now: datetime
    assets: list[dict[str, Any]]
    sent: dict[str, tuple[int, int]]


def snapshot(
    conn: Connection,
    *,
    repairs: int,
    looks: int,
    believed: float,
    places: int = 200,
) -> ReconcileRows:
    """The data of a plan, read at one moment.

    A difference is left to a person after so many ``repairs``. A row has to be gone in ``looks`` comparisons
    and for ``believed`` seconds. At most so many ``places`` of an asset are due, first those that were not
    compared for the longest time.
    """
    params = {
        "repairs": repairs,
        "looks": looks,
        "believed": believed,
        "look_again": believed / max(1, looks - 1),
        "places": places,
    }
    with conn.transaction():
        now = only_row(conn.execute(_SQL["now"]))
        assets = conn.execute(_SQL["assets"], params).fetchall()
        sent = {row["instance"]: (row["now"], row["before"]) for row in conn.execute(_SQL["sent"])}
    for asset in assets:
        for name, columns in (("watermark", "watermark"), ("covered_from", "covered"), ("next", "next")):
            asset[name] = mark_of(asset, columns)
        asset["places"] = from_multiranges(asset.pop("revs") or (), asset.pop("period") or ())
    return ReconcileRows(now["now"], assets, sent)


def mark_started(conn: Connection, repo_id: int, job_type: JobType, why: str) -> None:
    """A task of the kind ``why`` starts now, whatever its result."""
    conn.execute(_SQL["started"], {"repo_id": repo_id, "job_type": str(job_type), "why": why})


def begin(conn: Connection, repo_id: int, job_type: JobType, rows: int) -> None:
    """A round over ``rows`` stored rows begins. Its task was marked as started before."""
    conn.execute(_SQL["begin"], {"repo_id": repo_id, "job_type": str(job_type), "rows": rows})


def move(
    conn: Connection, repo_id: int, job_type: JobType, next: int | datetime | None, *, rows: int
) -> None:
    """The round got to ``next``, over ``rows`` more stored rows; None: it is at its end."""
    conn.execute(
        _SQL["move"],
        {
            "repo_id": repo_id,
            "job_type": str(job_type),
            "next_rev": next if isinstance(next, int) else None,
            "next_time": next if isinstance(next, datetime) else None,
            "rows": rows,
            "ends": next is None,
        },
    )


def is_repairing(conn: Connection, repo_id: int, job_type: JobType) -> bool:
    """True if a repair of differences waits or runs."""
    return bool(only_value(conn.execute(_SQL["repairing"], {"repo_id": repo_id, "job_type": str(job_type)})))


def totals(conn: Connection, *, repairs: int) -> dict[str, int]:
    """How many differences are ``open``, ``escalated`` among them and ``waiting`` until a deletion is
    believed, and how many ``tombstones`` came of others."""
    return only_row(conn.execute(_SQL["open"], {"repairs": repairs}))


def mismatches_by_day(conn: Connection, days: int) -> list[dict[str, Any]]:
    """Rows that differed on each of the last ``days`` days that have any comparison: ``day``, ``missing``,
    ``extra``, ``changed``."""
    return conn.execute(_SQL["by_day"], {"days": days}).fetchall()
