"""How many rows of a (repository, job type) are stored, and when its source last changed.

Belongs here: short queries that count the rows of an asset, all of them or those of a window. The meaning
of the counts is described in :mod:`sync_pipeline.reports.completeness`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sync_pipeline.core.model import JobType, RevisionWindow, TimeWindow, Window
from sync_pipeline.database.pool import Connection
from sync_pipeline.database.queries import queries
from sync_pipeline.database.rows import only_row, only_value
from sync_pipeline.facts.job_types import for_each_job_type

COUNTED_ROWS = 100_000
"""More rows are estimated. Measured: counting this many takes 30 ms from the index alone, and 300 ms if
PostgreSQL has to check each new row.
"""

# The API shows milliseconds.
_STEP = timedelta(milliseconds=1)

# Rows of the asset's table, tombstones included: so the index alone has the answer.
_COUNT = for_each_job_type("""
SELECT count(*) AS rows
  FROM (SELECT FROM {table} WHERE repo_id = %(repo_id)s LIMIT %(limit)s) AS counted
""")

# The planner's estimate of the same rows: the share of the repository in the table's statistics, times the
# size that the table has now.
_ESTIMATE = for_each_job_type("EXPLAIN (FORMAT JSON) SELECT FROM {table} WHERE repo_id = %(repo_id)s")

# Rows of each repository, without and as tombstones. One scan of a table takes 0.1 s for 300,000 rows.
_BY_REPOSITORY = for_each_job_type("""
SELECT repo_id, count(*) FILTER (WHERE deleted_at IS NULL) AS stored, count(deleted_at) AS deleted,
       count(*) FILTER (WHERE deleted_at IS NULL AND {hidden}) AS hidden
  FROM {table}
 GROUP BY repo_id
""")

# The rows of a window that a comparison asks for; at most so many where there is a limit.
_IN_WINDOW = for_each_job_type("""
SELECT count(*) AS rows, min(at) AS first, max(at) AS last
  FROM (SELECT {time_column} AS at FROM {compared}
         WHERE repo_id = %(repo_id)s AND {time_column} >= %(start)s AND {time_column} < %(end)s AND {live}
         ORDER BY {time_column} LIMIT %(limit)s) AS counted
""")


_SQL = queries("stored_rows")


@dataclass(frozen=True, slots=True)
class StoredRows:
    """A number of rows, tombstones included. ``is_estimate``: there are more than ``COUNTED_ROWS``, and
    PostgreSQL's statistics say about how many."""

    number: int
    is_estimate: bool = False


def count(conn: Connection, repo_id: int, job_type: JobType, counted_rows: int = COUNTED_ROWS) -> StoredRows:
    """The rows of the asset's own table; at most ``counted_rows`` are counted."""
    params = {"repo_id": repo_id, "limit": counted_rows + 1}
    row = only_row(conn.execute(_COUNT[job_type], params))
    if row["rows"] <= counted_rows:
        return StoredRows(row["rows"])
    [plan] = only_value(conn.execute(_ESTIMATE[job_type], params))
    return StoredRows(max(row["rows"], int(plan["Plan"]["Plan Rows"])), is_estimate=True)


def by_repository(conn: Connection, job_type: JobType) -> list[dict[str, Any]]:
    """By ``repo_id``, if there are any: ``stored`` rows, ``deleted`` ones (tombstones), and ``hidden`` ones,
    which the server shows only in part.
    """
    return conn.execute(_BY_REPOSITORY[job_type]).fetchall()


def count_in(conn: Connection, repo_id: int, job_type: JobType, window: Window) -> int:
    """How many revisions, commits or merge requests of ``window`` are stored."""
    return int(_in_window(conn, repo_id, job_type, window, None)["rows"])


def end_of(conn: Connection, repo_id: int, job_type: JobType, window: TimeWindow, rows: int) -> datetime:
    """Where the part of ``window`` ends that holds about its first ``rows`` stored rows; the end of it if
    there are no more. Rows of one moment stay together."""
    found = _in_window(conn, repo_id, job_type, window, rows + 1)
    if found["rows"] <= rows:
        return window.until
    first, last = found["first"], found["last"]
    end: datetime = last if last > first else last + _STEP
    return min(end, window.until)


def _in_window(
    conn: Connection, repo_id: int, job_type: JobType, window: Window, limit: int | None
) -> Mapping[str, Any]:
    start, end = (
        (window.first, window.end) if isinstance(window, RevisionWindow) else (window.since, window.until)
    )
    params = {"repo_id": repo_id, "start": start, "end": end, "limit": limit}
    return only_row(conn.execute(_IN_WINDOW[job_type], params))


def last_change_at(conn: Connection, repo_id: int, job_type: JobType) -> datetime | None:
    """When the source last changed, as far as known here (UTC). It is the date of the newest stored revision,
    or the last activity of the project, which GitLab may report an hour late.
    """
    row = conn.execute(_SQL["last_change"], {"repo_id": repo_id, "job_type": str(job_type)}).fetchone()
    found: datetime | None = None if row is None else row["changed_at"]
    return found
