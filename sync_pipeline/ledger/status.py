"""The facts of the status report besides those of health.

Belongs here: one query over every asset, one over the jobs and one over those at work. The missing windows
and the verdict come from :mod:`sync_pipeline.ledger.health` by way of :mod:`sync_pipeline.reports.health`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sync_pipeline.database.pool import Connection
from sync_pipeline.database.queries import queries
from sync_pipeline.database.ranges import from_multiranges
from sync_pipeline.ledger.jobs import GIVEN_UP, SETTLED

_SQL = queries("status")


# The number of jobs, without dead ones that need no person, and how many of them read a window. Waiting ones
# with a window are queued history. Failed live syncing waits for its next attempt.
_JOBS = (
    """
SELECT repo_id, job_type, status, count(*) AS jobs,
       count(*) FILTER (WHERE revs IS NOT NULL OR period IS NOT NULL) AS with_window,
       max(not_before) FILTER (WHERE mode = 'incremental' AND status = 'failed' AND not_before > now())
           AS retry_at
  FROM scm.sync_jobs AS j
 WHERE (%(repo_ids)s::bigint[] IS NULL OR repo_id = ANY (%(repo_ids)s))
   -- A failed comparison needs no person, because the next one repeats it.
   AND NOT (mode = 'probe' AND status = 'dead')
   AND NOT """
    + SETTLED
    + """
 GROUP BY repo_id, job_type, status
"""
)


def assets(conn: Connection, repo_ids: Sequence[int] | None = None) -> list[dict[str, Any]]:
    """The rows of these repositories, or of all. ``apart`` is the covered range beside the one with the
    origin. The columns ``run_...`` are NULL if nothing ran yet.
    """
    rows = conn.execute(_SQL["units"], _params(repo_ids)).fetchall()
    for row in rows:
        row["apart"] = from_multiranges(row.pop("apart_revs"), row.pop("apart_time"))
    return rows


def jobs(conn: Connection, repo_ids: Sequence[int] | None = None) -> list[dict[str, Any]]:
    """Number of jobs per (repository, job type, status). ``with_window`` counts those that read a window.
    ``retry_at`` is when the incremental one is retried, None if it does not wait.
    """
    return conn.execute(_JOBS, _params(repo_ids) | {"given_up": list(GIVEN_UP)}).fetchall()


def running(conn: Connection, repo_ids: Sequence[int] | None = None) -> list[dict[str, Any]]:
    """The jobs at work and their owners, the one that has been longest at it first."""
    return conn.execute(_SQL["running"], _params(repo_ids)).fetchall()


def _params(repo_ids: Sequence[int] | None) -> dict[str, Any]:
    return {"repo_ids": None if repo_ids is None else list(repo_ids)}
