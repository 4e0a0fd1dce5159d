"""The counts in the completeness statement: rows that differ, are set aside or were never read.

Belongs here: one grouped scan of each table, and one moment for all of them. Stored rows are counted in
:mod:`sync_pipeline.facts.stored_rows`; :mod:`sync_pipeline.reports.completeness` makes the statement.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sync_pipeline.core.model import BEGINNING
from sync_pipeline.database.pool import Connection
from sync_pipeline.database.queries import queries
from sync_pipeline.facts.job_types import for_each_job_type

_SQL = queries("completeness")


# Quarantined rows, and those among them that are neither stored in an older version nor known to be missing:
# no refs, no stored raws that could not be read, and no whole reviews, whose number of events is unknown.
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


@contextmanager
def one_moment(conn: Connection) -> Iterator[None]:
    """A transaction in which every query sees the rows of the same moment, and none can write."""
    with conn.transaction():
        conn.execute(_SQL["one_moment"])
        yield


def counts(conn: Connection) -> list[dict[str, Any]]:
    """Counts by (repo_id, job_type), where there are any, in rows with different columns: the open
    differences (``missing``, ``extra``, ``changed``); the ``quarantined`` rows and the ``unstored`` rows
    among them, which are neither stored nor among the missing ones; the details that are ``owed``."""
    rows = [*conn.execute(_SQL["differences"]), *conn.execute(_SQL["deferred"])]
    for job_type, query in _QUARANTINED.items():
        rows += conn.execute(query, {"job_type": str(job_type)})
    return rows


def assets(conn: Connection) -> list[dict[str, Any]]:
    """Every (repo_id, job_type): the ``windows`` that were never complete, the number of their ``revisions``,
    and ``verified_at``, when everything was last compared with the source.
    """
    return conn.execute(_SQL["assets"], {"beginning": BEGINNING}).fetchall()
