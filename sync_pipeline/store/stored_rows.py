"""How many rows of a (repository, job type) are stored, and when its source last changed.

Belongs here: two short queries for the page of an asset in Dagster. Both cost milliseconds, whatever the size
of the table. Exact counts of everything are in :mod:`sync_pipeline.store.completeness`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import LiteralString

from sync_pipeline.model import JobType
from sync_pipeline.store.database import Connection

COUNTED_ROWS = 100_000
"""More rows are estimated. Counting so many takes 30 ms from the index alone, and 300 ms where the rows are
so new that PostgreSQL has to look at each of them (measured)."""

# Rows of the asset's table, tombstones included: so the index alone has the answer.
_COUNT: Mapping[JobType, LiteralString] = {
    JobType.COMMITS: """
SELECT count(*) AS rows
  FROM (SELECT FROM scm.git_commits WHERE repo_id = %(repo_id)s LIMIT %(limit)s) AS counted
""",
    JobType.MERGE_REQUESTS: """
SELECT count(*) AS rows
  FROM (SELECT FROM scm.mrs WHERE repo_id = %(repo_id)s LIMIT %(limit)s) AS counted
""",
    JobType.REVIEWS: """
SELECT count(*) AS rows
  FROM (SELECT FROM scm.review_events WHERE repo_id = %(repo_id)s LIMIT %(limit)s) AS counted
""",
    JobType.REVISIONS: """
SELECT count(*) AS rows
  FROM (SELECT FROM scm.svn_revisions WHERE repo_id = %(repo_id)s LIMIT %(limit)s) AS counted
""",
}

# What the planner knows of the same rows: the share of the repository in the table's statistics, times the
# size that the table has now.
_ESTIMATE: Mapping[JobType, LiteralString] = {
    JobType.COMMITS: "EXPLAIN (FORMAT JSON) SELECT FROM scm.git_commits WHERE repo_id = %(repo_id)s",
    JobType.MERGE_REQUESTS: "EXPLAIN (FORMAT JSON) SELECT FROM scm.mrs WHERE repo_id = %(repo_id)s",
    JobType.REVIEWS: "EXPLAIN (FORMAT JSON) SELECT FROM scm.review_events WHERE repo_id = %(repo_id)s",
    JobType.REVISIONS: "EXPLAIN (FORMAT JSON) SELECT FROM scm.svn_revisions WHERE repo_id = %(repo_id)s",
}

# The newest revision's date, or the last activity that the GitLab tells of the project.
_LAST_CHANGE = """
SELECT CASE r.kind
       WHEN 'svn' THEN (SELECT s.ts FROM scm.svn_revisions AS s
                         WHERE s.repo_id = r.repo_id ORDER BY s.rev_num DESC LIMIT 1)
       ELSE greatest(w.activity_at, h.activity_at) END AS changed_at
  FROM scm.sync_watermarks AS w
  JOIN scm.repos AS r USING (repo_id)
  LEFT JOIN scm.sync_hints AS h USING (repo_id)
 WHERE w.repo_id = %(repo_id)s AND w.job_type = %(job_type)s
"""


@dataclass(frozen=True, slots=True)
class StoredRows:
    """A number of rows, tombstones included. ``is_estimate``: there are more than ``COUNTED_ROWS``, and
    PostgreSQL's statistics say about how many."""

    number: int
    is_estimate: bool = False


def count(conn: Connection, repo_id: int, job_type: JobType, counted_rows: int = COUNTED_ROWS) -> StoredRows:
    """The rows of the asset's own table; at most ``counted_rows`` are counted."""
    row = conn.execute(_COUNT[job_type], {"repo_id": repo_id, "limit": counted_rows + 1}).fetchone()
    assert row is not None
    if row["rows"] <= counted_rows:
        return StoredRows(row["rows"])
    explained = conn.execute(_ESTIMATE[job_type], {"repo_id": repo_id}).fetchone()
    assert explained is not None
    [plan] = explained["QUERY PLAN"]
    return StoredRows(max(row["rows"], int(plan["Plan"]["Plan Rows"])), is_estimate=True)


def last_change_at(conn: Connection, repo_id: int, job_type: JobType) -> datetime | None:
    """When the source last changed, as far as it is known here (UTC): the date of the newest stored revision,
    or the last activity of the project, which GitLab may tell up to an hour late."""
    row = conn.execute(_LAST_CHANGE, {"repo_id": repo_id, "job_type": str(job_type)}).fetchone()
    found: datetime | None = None if row is None else row["changed_at"]
    return found
