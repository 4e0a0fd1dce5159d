"""Records of finished work that are older than they are kept: the queries that find and delete them.

Belongs here: jobs with their runs and batches, ended pauses, edges of circuit breakers, resolved differences
and deferred fetches.
Does not belong here: how long they are kept (:mod:`sync_pipeline.admin.retention`), and what Dagster
keeps.

Nothing is deleted that something else still needs. Events of watermarks stay for ever: coverage is rebuilt
from them. Facts, tombstones and quarantine are no records of work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from uuid import UUID

from sync_pipeline.database.pool import Connection
from sync_pipeline.database.queries import queries
from sync_pipeline.database.rows import only_row
from sync_pipeline.ledger.jobs import GIVEN_UP

_SQL = queries("retention")


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
    return [FinishedJob(**row) for row in conn.execute(_SQL["jobs"], params).fetchall()]


def count_finished(conn: Connection, age: float) -> tuple[int, int, int]:
    """How many such jobs there are, and of their runs and batches. Read row by row: there may be millions."""
    jobs = runs = batches = 0
    params = {"age": age, "limit": None, "given_up": list(GIVEN_UP)}
    with conn.transaction(), conn.cursor("finished") as found:
        for row in found.execute(_SQL["jobs"], params):
            jobs, runs, batches = jobs + 1, runs + row["runs"], batches + row["batches"]
    return jobs, runs, batches


def delete_jobs(conn: Connection, job_ids: Sequence[UUID]) -> tuple[int, int, int]:
    """Delete finished jobs with their runs and batches in one transaction; returns how many of each."""
    with conn.transaction():
        locked = conn.execute(_SQL["lock_jobs"], {"job_ids": list(job_ids)}).fetchall()
        params = {"job_ids": [row["job_id"] for row in locked]}
        batches = conn.execute(_SQL["delete_batches"], params).rowcount
        runs = conn.execute(_SQL["delete_runs"], params).rowcount
        return conn.execute(_SQL["delete_jobs"], params).rowcount, runs, batches


def _rule(table: str, count: str, delete: str) -> Rule:
    def counted(conn: Connection, age: float) -> int:
        row = only_row(conn.execute(count, {"age": age}))
        return int(row["n"])

    def deleted(conn: Connection, age: float, limit: int) -> int:
        return conn.execute(delete, {"age": age, "limit": limit}).rowcount

    return Rule(table, counted, deleted)


EVENTS = (
    _rule("scm.pauses", _SQL["count_pauses"], _SQL["delete_pauses"]),
    _rule("scm.breaker_events", _SQL["count_edges"], _SQL["delete_edges"]),
    _rule("scm.discrepancies", _SQL["count_differences"], _SQL["delete_differences"]),
    _rule("scm.deferred_fetches", _SQL["count_fetches"], _SQL["delete_fetches"]),
)
"""Records of ended things."""
