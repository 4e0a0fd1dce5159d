"""Comparisons with the source: their results and the open differences.

Belongs here: ``scm.reconciliations`` and ``scm.discrepancies``. Rows are compared in
:mod:`sync_pipeline.store.comparison`; :mod:`sync_pipeline.policy.reconciliation` decides what follows from a
difference. The progress of the rolling scan is in :mod:`sync_pipeline.store.sweeps`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sync_pipeline.model import Difference, DifferenceKind, JobType, Window
from sync_pipeline.store.database import Connection
from sync_pipeline.store.windows import from_ranges, range_params

COUNTED = ("expected", "stored", "missing", "extra", "changed", "newer", "unreadable", "hidden")
"""The counts of rows in the result of a comparison."""

# The number of a comparison is needed while its differences are written, before its result is known.
_NEXT = "SELECT nextval(pg_get_serial_sequence('scm.reconciliations', 'reconciliation_id')) AS number"

_ADD = """
INSERT INTO scm.reconciliations (reconciliation_id, repo_id, job_type, revs, period, depth, status, expected,
                                 stored, missing, extra, changed, newer, unreadable, hidden, calls, detail,
                                 run_id)
OVERRIDING SYSTEM VALUE
VALUES (%(number)s, %(repo_id)s, %(job_type)s, %(revs)s, %(period)s, %(depth)s, %(status)s, %(expected)s,
        %(stored)s, %(missing)s, %(extra)s, %(changed)s, %(newer)s, %(unreadable)s, %(hidden)s, %(calls)s,
        left(%(detail)s, 2000), %(run_id)s)
"""

# A difference that is known already was seen once more; one that is another one now begins anew.
_PUT = """
INSERT INTO scm.discrepancies AS d (repo_id, job_type, natural_key, kind, fields, revs, period,
                                    reconciliation)
VALUES (%(repo_id)s, %(job_type)s, %(natural_key)s, %(kind)s, %(fields)s, %(revs)s, %(period)s, %(number)s)
ON CONFLICT (repo_id, job_type, natural_key) WHERE resolved_at IS NULL DO UPDATE
   SET looks = CASE WHEN d.kind <> EXCLUDED.kind THEN 1
                    WHEN d.reconciliation = EXCLUDED.reconciliation THEN d.looks ELSE d.looks + 1 END,
       found_at = CASE WHEN d.kind = EXCLUDED.kind THEN d.found_at ELSE now() END,
       kind = EXCLUDED.kind, fields = EXCLUDED.fields, revs = EXCLUDED.revs, period = EXCLUDED.period,
       reconciliation = EXCLUDED.reconciliation, last_seen_at = now()
"""

# Differences that a comparison of their place no longer saw; it may check those without a place, too.
_RESOLVE = """
UPDATE scm.discrepancies
   SET resolved_at = now(), outcome = CASE WHEN kind = 'extra' THEN 'returned' ELSE 'healed' END
 WHERE repo_id = %(repo_id)s AND job_type = %(job_type)s AND resolved_at IS NULL
   AND reconciliation <> %(number)s AND natural_key <> ALL (%(unread)s)
   -- The parts of a row that could not be compared were not compared either.
   AND split_part(natural_key, ':', 1) <> ALL (%(unread)s)
   AND (revs <@ %(revs)s::int8range OR period <@ %(period)s::tstzrange
        OR (revs IS NULL AND period IS NULL AND %(everywhere)s))
"""

# The open ones in a window, and those without a place.
_OPEN = """
SELECT discrepancy_id, natural_key, kind, fields, revs, period, looks, repairs, found_at, last_seen_at,
       now() AS now
  FROM scm.discrepancies
 WHERE repo_id = %(repo_id)s AND job_type = %(job_type)s AND resolved_at IS NULL
   AND (NOT %(within)s OR revs <@ %(revs)s::int8range OR period <@ %(period)s::tstzrange
        OR (revs IS NULL AND period IS NULL))
   AND (%(number)s::bigint IS NULL OR reconciliation = %(number)s)
 ORDER BY kind, revs, period, natural_key
 LIMIT %(limit)s
"""

_TRIED = "UPDATE scm.discrepancies SET repairs = repairs + 1 WHERE discrepancy_id = ANY (%(ids)s)"

# Confirmed gone: the row is a tombstone now.
_DELETED = """
UPDATE scm.discrepancies SET resolved_at = now(), outcome = 'deleted'
 WHERE discrepancy_id = ANY (%(ids)s) AND resolved_at IS NULL
"""

# The results of one probe, in order.
_OF_RUN = "SELECT * FROM scm.reconciliations WHERE run_id = %(run_id)s ORDER BY reconciliation_id"

# A person starts the repairs again.
_FORGIVE = """
UPDATE scm.discrepancies SET repairs = 0
 WHERE repo_id = %(repo_id)s AND job_type = %(job_type)s AND resolved_at IS NULL AND repairs > 0
"""


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


_NOTED = ("discrepancy_id", "looks", "repairs", "found_at", "last_seen_at", "now")


def next_number(conn: Connection) -> int:
    """The number of the comparison that begins."""
    row = conn.execute(_NEXT).fetchone()
    assert row is not None
    return int(row["number"])


def add(conn: Connection, window: Window, columns: Mapping[str, Any]) -> None:
    """Write the result of a comparison: the ``columns`` of ``scm.reconciliations``, those of COUNTED among
    them, with ``number`` for its number."""
    conn.execute(_ADD, {**range_params(window), **columns})


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
        | range_params(one.place)
        for one in found
    ]
    if rows:
        with conn.cursor() as cursor:
            cursor.executemany(_PUT, rows)


def resolve_unseen(
    conn: Connection,
    *,
    repo_id: int,
    job_type: JobType,
    window: Window,
    number: int,
    everywhere: bool,
    unread: Collection[str] = (),
) -> int:
    """Close the differences in ``window`` that comparison ``number`` did not see; with ``everywhere`` also
    those without a place. The rows with keys in ``unread`` could not be compared. Returns how many."""
    params = {
        "repo_id": repo_id,
        "job_type": str(job_type),
        "number": number,
        "everywhere": everywhere,
        "unread": list(unread),
    }
    return conn.execute(_RESOLVE, params | range_params(window)).rowcount


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
        Discrepancy(
            difference=Difference(
                row["natural_key"],
                DifferenceKind(row["kind"]),
                from_ranges(row["revs"], row["period"]),
                tuple(row["fields"]),
            ),
            **{name: row[name] for name in _NOTED},
        )
        for row in conn.execute(_OPEN, params | range_params(window))
    ]


def tried(conn: Connection, ids: Sequence[int]) -> None:
    """A repair read the rows of these again."""
    conn.execute(_TRIED, {"ids": list(ids)})


def deleted(conn: Connection, ids: Sequence[int]) -> None:
    """The rows of these are tombstones now."""
    conn.execute(_DELETED, {"ids": list(ids)})


def forgive(conn: Connection, repo_id: int, job_type: JobType) -> None:
    """A person starts the repair of abandoned differences once more."""
    conn.execute(_FORGIVE, {"repo_id": repo_id, "job_type": str(job_type)})


def of_run(conn: Connection, run_id: UUID) -> list[dict[str, Any]]:
    """The results of one probe, in order: the columns of ``scm.reconciliations``, with ``window`` in place of
    the two ranges."""
    rows = conn.execute(_OF_RUN, {"run_id": run_id}).fetchall()
    for row in rows:
        row["window"] = from_ranges(row.pop("revs"), row.pop("period"))
    return rows
