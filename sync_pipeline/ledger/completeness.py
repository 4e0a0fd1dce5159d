"""The counts in the completeness statement: rows that differ, are set aside or were never read.

Belongs here: one grouped scan of each table, and one moment for all of them. Stored rows are counted in
:mod:`sync_pipeline.facts.stored_rows`; :mod:`sync_pipeline.reports.completeness` makes the statement.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sync_pipeline.core.model import BEGINNING, JobType
from sync_pipeline.database.pool import Connection
from sync_pipeline.database.queries import queries
from sync_pipeline.database.rows import read_row
from sync_pipeline.facts.job_types import for_each_job_type

_SQL = queries("completeness")


# Counts quarantined rows, and those that are neither stored in an older version nor known to be missing.
# The second count is without refs, unreadable raws, and whole reviews, whose number of events is unknown.
_QUARANTINED = for_each_job_type("""
SELECT q.repo_id, q.job_type, count(*) AS quarantined,
       count(*) FILTER (
       WHERE {is_row}
         AND NOT EXISTS (SELECT FROM scm.discrepancies AS d
                          WHERE d.repo_id = q.repo_id AND d.job_type = q.job_type
                            AND d.natural_key = q.natural_key AND d.kind = 'missing'
                            AND d.resolved_at IS NULL)
         AND NOT EXISTS (SELECT FROM {table} AS t
                          WHERE t.repo_id = q.repo_id AND t.deleted_at IS NULL AND {named})) AS unstored
  FROM scm.quarantine AS q
 WHERE q.resolved_at IS NULL AND q.job_type = %(job_type)s
 GROUP BY q.repo_id, q.job_type
""")


@dataclass(frozen=True, slots=True)
class Deferred:
    """The details of an asset that were not read: ``failed`` ones could not be, ``planned`` ones wait for
    their turn. ``incomplete_from`` is the earliest update of a merge request that lacks a detail (UTC).
    ``undated``: the time of one is not known.
    """

    repo_id: int
    job_type: JobType
    failed: int
    planned: int
    incomplete_from: datetime | None
    undated: bool

    def complete_until(self, watermark: int | datetime | None) -> datetime | None:
        """The end of the time in which every updated merge request is complete, if everything before
        ``watermark`` is covered. None: there is no such time, or it is not known."""
        if not isinstance(watermark, datetime) or self.undated:
            return None
        return watermark if self.incomplete_from is None else min(watermark, self.incomplete_from)


@contextmanager
def one_moment(conn: Connection) -> Iterator[None]:
    """A transaction in which every query sees the rows of the same moment, and none can write."""
    with conn.transaction():
        conn.execute(_SQL["one_moment"])
        yield


def counts(conn: Connection) -> list[dict[str, Any]]:
    """Counts of each asset that has any, in rows with different columns.

    The open differences are ``missing``, ``extra`` and ``changed``. Of the ``quarantined`` rows, the
    ``unstored`` ones are neither stored nor among the missing rows.
    """
    rows = conn.execute(_SQL["differences"]).fetchall()
    for job_type, query in _QUARANTINED.items():
        rows += conn.execute(query, {"job_type": str(job_type)})
    return rows


def deferred(conn: Connection, repo_ids: Sequence[int] | None = None) -> list[Deferred]:
    """The details of stored rows that were not read, of each asset that has any."""
    params = {"repo_ids": None if repo_ids is None else list(repo_ids)}
    return [
        read_row(Deferred, row, job_type=JobType(row["job_type"]))
        for row in conn.execute(_SQL["deferred"], params)
    ]


def merge_requests(conn: Connection, repo_ids: Sequence[int]) -> dict[tuple[int, JobType], int]:
    """How many merge requests of these repositories were not read, about, for each job type that reads them.
    Without a repository of which none is stored: nothing is known of it."""
    rows = conn.execute(_SQL["merge_requests"], {"repo_ids": list(repo_ids)}).fetchall()
    return {
        (row["repo_id"], job_type): row[job_type]
        for row in rows
        for job_type in (JobType.MERGE_REQUESTS, JobType.REVIEWS)
    }


def paces(conn: Connection, instances: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Of each of these servers the ``rate`` in requests per second, and ``calls_per_fetch``, the requests
    that a planned fetch took lately. None where it is not known."""
    rows = conn.execute(_SQL["paces"], {"instances": list(instances)}).fetchall()
    return {row["instance"]: row for row in rows}


def assets(conn: Connection) -> list[dict[str, Any]]:
    """Every (repo_id, job_type): the ``windows`` that were never complete, the number of their ``revisions``,
    and ``verified_at``, when everything was last compared with the source.
    """
    return conn.execute(_SQL["assets"], {"beginning": BEGINNING}).fetchall()
