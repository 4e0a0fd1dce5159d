"""Records of finished work that are older than they are kept: the queries that find and delete them.

Belongs here: jobs with their runs and batches, ended pauses, edges of circuit breakers, resolved differences.
Does not belong here: how long they are kept (:mod:`sync_pipeline.operations.retention`), and what Dagster
keeps.

Nothing is deleted that something else still needs. Events of watermarks stay for ever: coverage is rebuilt
from them. Facts, tombstones and quarantine are no records of work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from uuid import UUID

from sync_pipeline.store.database import Connection
from sync_pipeline.store.jobs import GIVEN_UP

# Finished jobs that may go. These stay: the latest of each (repository, job type, mode), also if its latest
# attempt was at another one; a dead one whose window is still missing, because it needs a person; one whose
# batch says where a row in quarantine was read; and repairs while differences are open, which they count for.
_JOBS = """
WITH stays AS (
    (SELECT DISTINCT ON (repo_id, job_type, mode) job_id FROM scm.sync_jobs
      ORDER BY repo_id, job_type, mode, created_at DESC, job_id)
    UNION
    (SELECT DISTINCT ON (repo_id, job_type, mode) job_id FROM scm.sync_jobs
      WHERE status IN ('completed', 'dead')
      ORDER BY repo_id, job_type, mode, created_at DESC, job_id)
    UNION
    (SELECT DISTINCT ON (repo_id, job_type, mode) job_id FROM scm.sync_runs
      ORDER BY repo_id, job_type, mode, started_at DESC)
    UNION
    SELECT r.job_id
      FROM scm.quarantine AS q
      JOIN scm.sync_batches AS b USING (batch_id)
      JOIN scm.sync_runs AS r USING (run_id)
     WHERE q.resolved_at IS NULL
)
SELECT j.job_id, r.runs, r.batches
  FROM scm.sync_jobs AS j
  JOIN scm.sync_watermarks AS w USING (repo_id, job_type)
 CROSS JOIN LATERAL (
       SELECT count(*) AS runs, coalesce(sum(s.batches), 0)::bigint AS batches,
              coalesce(bool_or(s.status = 'running'), FALSE) AS open
         FROM scm.sync_runs AS s WHERE s.job_id = j.job_id) AS r
 WHERE j.status IN ('completed', 'dead')
   AND j.finished_at < clock_timestamp() - make_interval(secs => %(age)s)
   AND NOT r.open
   AND j.job_id NOT IN (SELECT job_id FROM stays)
   AND NOT (j.status = 'dead' AND coalesce(j.last_error_code, '') <> ALL (%(given_up)s)
            AND j.mode IN ('backfill', 'repair') AND j.quarantine_ids IS NULL AND NOT (j.from_raw OR j.heals)
            AND NOT coalesce(w.covered_revs @> (j.revs * int8range(1, w.head_rev + 1)),
                             w.covered_time @> j.period, FALSE))
   AND NOT (j.heals AND EXISTS (
           SELECT FROM scm.discrepancies AS d
            WHERE d.repo_id = j.repo_id AND d.job_type = j.job_type AND d.resolved_at IS NULL))
 ORDER BY j.finished_at, j.job_id
 LIMIT %(limit)s::bigint
"""

# Somebody may take a dead job up again; one that is looked at this moment has its turn the next time.
_LOCK_JOBS = """
SELECT job_id FROM scm.sync_jobs
 WHERE job_id = ANY (%(job_ids)s) AND status IN ('completed', 'dead')
   FOR UPDATE SKIP LOCKED
"""

_DELETE_BATCHES = """
DELETE FROM scm.sync_batches AS b USING scm.sync_runs AS r
 WHERE r.run_id = b.run_id AND r.job_id = ANY (%(job_ids)s)
"""

_DELETE_RUNS = "DELETE FROM scm.sync_runs WHERE job_id = ANY (%(job_ids)s)"

_DELETE_JOBS = "DELETE FROM scm.sync_jobs WHERE job_id = ANY (%(job_ids)s)"

# Pauses that somebody ended, or that ended by themselves.
_COUNT_PAUSES = """
SELECT count(*) AS n FROM scm.pauses
 WHERE least(ended_at, until) < clock_timestamp() - make_interval(secs => %(age)s)
"""
_DELETE_PAUSES = """
DELETE FROM scm.pauses
 WHERE pause_id IN (
       SELECT pause_id FROM scm.pauses
        WHERE least(ended_at, until) < clock_timestamp() - make_interval(secs => %(age)s)
        ORDER BY pause_id LIMIT %(limit)s)
"""

# Edges of circuit breakers; the latest of each says since when it is as it is.
_COUNT_EDGES = """
SELECT count(*) AS n FROM scm.breaker_events AS e
 WHERE created_at < clock_timestamp() - make_interval(secs => %(age)s)
   AND EXISTS (SELECT FROM scm.breaker_events AS later
                WHERE later.scope = e.scope AND later.key = e.key AND later.event_id > e.event_id)
"""
_DELETE_EDGES = """
DELETE FROM scm.breaker_events
 WHERE event_id IN (
       SELECT e.event_id FROM scm.breaker_events AS e
        WHERE created_at < clock_timestamp() - make_interval(secs => %(age)s)
          AND EXISTS (SELECT FROM scm.breaker_events AS later
                       WHERE later.scope = e.scope AND later.key = e.key AND later.event_id > e.event_id)
        ORDER BY e.event_id LIMIT %(limit)s)
"""

# Differences from a source that are no more.
_COUNT_DIFFERENCES = """
SELECT count(*) AS n FROM scm.discrepancies
 WHERE resolved_at < clock_timestamp() - make_interval(secs => %(age)s)
"""
_DELETE_DIFFERENCES = """
DELETE FROM scm.discrepancies
 WHERE discrepancy_id IN (
       SELECT discrepancy_id FROM scm.discrepancies
        WHERE resolved_at < clock_timestamp() - make_interval(secs => %(age)s)
        ORDER BY discrepancy_id LIMIT %(limit)s)
"""


@dataclass(frozen=True, slots=True)
class FinishedJob:
    """A job that may go, with the number of its runs and of their batches."""

    job_id: UUID
    runs: int
    batches: int


@dataclass(frozen=True, slots=True)
class Rule:
    """Rows of one table that go on their own. Ages are seconds."""

    table: str
    count: Callable[[Connection, float], int]
    delete: Callable[[Connection, float, int], int]


def finished_jobs(conn: Connection, age: float, limit: int) -> list[FinishedJob]:
    """Jobs that ended more than ``age`` seconds ago and may go, the oldest first."""
    params = {"age": age, "limit": limit, "given_up": list(GIVEN_UP)}
    return [FinishedJob(**row) for row in conn.execute(_JOBS, params).fetchall()]


def count_finished(conn: Connection, age: float) -> tuple[int, int, int]:
    """How many such jobs there are, and of their runs and batches. Read row by row: there may be millions."""
    jobs = runs = batches = 0
    params = {"age": age, "limit": None, "given_up": list(GIVEN_UP)}
    with conn.transaction(), conn.cursor("finished") as found:
        for row in found.execute(_JOBS, params):
            jobs, runs, batches = jobs + 1, runs + row["runs"], batches + row["batches"]
    return jobs, runs, batches


def delete_jobs(conn: Connection, job_ids: Sequence[UUID]) -> tuple[int, int, int]:
    """Delete finished jobs with their runs and batches in one transaction; returns how many of each."""
    with conn.transaction():
        locked = conn.execute(_LOCK_JOBS, {"job_ids": list(job_ids)}).fetchall()
        params = {"job_ids": [row["job_id"] for row in locked]}
        batches = conn.execute(_DELETE_BATCHES, params).rowcount
        runs = conn.execute(_DELETE_RUNS, params).rowcount
        return conn.execute(_DELETE_JOBS, params).rowcount, runs, batches


def _rule(table: str, count: str, delete: str) -> Rule:
    def counted(conn: Connection, age: float) -> int:
        row = conn.execute(count, {"age": age}).fetchone()
        assert row is not None
        return int(row["n"])

    def deleted(conn: Connection, age: float, limit: int) -> int:
        return conn.execute(delete, {"age": age, "limit": limit}).rowcount

    return Rule(table, counted, deleted)


EVENTS = (
    _rule("scm.pauses", _COUNT_PAUSES, _DELETE_PAUSES),
    _rule("scm.breaker_events", _COUNT_EDGES, _DELETE_EDGES),
    _rule("scm.discrepancies", _COUNT_DIFFERENCES, _DELETE_DIFFERENCES),
)
"""What tells of something that is over."""
