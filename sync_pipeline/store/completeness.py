"""The counts in the completeness statement: rows that differ, are set aside or were never read.

Belongs here: one grouped scan of each table, and one moment for all of them. Stored rows are counted in
:mod:`sync_pipeline.store.stored_rows`; :mod:`sync_pipeline.operations.completeness` makes the statement.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sync_pipeline.model import BEGINNING
from sync_pipeline.store.database import Connection
from sync_pipeline.store.job_types import for_each_job_type

# Open differences from the source. What is a member of a set, such as a branch or an approval, is no row of
# its own: what it belongs to is changed.
_DIFFERENCES = """
SELECT repo_id, job_type,
       count(*) FILTER (WHERE kind = 'missing' AND NOT of_a_set) AS missing,
       count(*) FILTER (WHERE kind = 'extra' AND NOT of_a_set) AS extra,
       count(*) FILTER (WHERE kind = 'changed' OR of_a_set) AS changed
  FROM (SELECT repo_id, job_type, kind,
               natural_key ~ '^((branch|tag):|[0-9]+:(approval|reviewer):)' AS of_a_set
          FROM scm.discrepancies
         WHERE resolved_at IS NULL) AS d
 GROUP BY repo_id, job_type
"""

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

# Details of stored rows that could not be read.
_OWED = """
SELECT repo_id, job_type, count(*) AS owed FROM scm.obligations WHERE resolved_at IS NULL
 GROUP BY repo_id, job_type
"""

# The windows of revisions up to HEAD, or of time up to the watermark, that were never complete, and when all
# stored rows were last compared with the source.
_ASSETS = """
SELECT w.repo_id, w.job_type, missing.windows, missing.revisions, s.round_ended_at AS verified_at
  FROM scm.sync_watermarks AS w
  LEFT JOIN scm.sweeps AS s USING (repo_id, job_type)
 CROSS JOIN LATERAL (
       SELECT count(*) AS windows, coalesce(sum(revisions), 0)::bigint AS revisions
         FROM (SELECT upper(revs) - lower(revs) AS revisions
                 FROM unnest(int8multirange(int8range(1, greatest(w.head_rev + 1, w.watermark_rev,
                                                                  w.origin_rev)))
                             - w.covered_revs) AS revs
                WHERE w.origin_rev IS NOT NULL
               UNION ALL
               SELECT 0
                 FROM unnest(tstzmultirange(tstzrange(%(beginning)s,
                                                      greatest(w.watermark_time, w.origin_time)))
                             - w.covered_time) AS period
                WHERE w.origin_time IS NOT NULL) AS pieces) AS missing
"""

_ONE_MOMENT = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"


@contextmanager
def one_moment(conn: Connection) -> Iterator[None]:
    """A transaction in which every query sees the rows of the same moment, and none can write."""
    with conn.transaction():
        conn.execute(_ONE_MOMENT)
        yield


def counts(conn: Connection) -> list[dict[str, Any]]:
    """Counts by (repo_id, job_type), where there are any, in rows with different columns: the open
    differences (``missing``, ``extra``, ``changed``); the ``quarantined`` rows and the ``unstored`` rows
    among them, which are neither stored nor among the missing ones; the details that are ``owed``."""
    rows = [*conn.execute(_DIFFERENCES), *conn.execute(_OWED)]
    for job_type, query in _QUARANTINED.items():
        rows += conn.execute(query, {"job_type": str(job_type)})
    return rows


def assets(conn: Connection) -> list[dict[str, Any]]:
    """Every (repo_id, job_type): the ``windows`` that were never complete, how many ``revisions`` these are,
    and ``verified_at``, when all of it was last compared with the source."""
    return conn.execute(_ASSETS, {"beginning": BEGINNING}).fetchall()
