"""Jobs as a person looks at them, and what he does to them: ``scm.job_events``.

Belongs here: the list with its filters, one job with its attempts, and the three edges that only a person
takes. Does not belong here: the edges of those who work (:mod:`sync_pipeline.ledger.jobs`) and of the reaper
(:mod:`sync_pipeline.ledger.reaping`), and which job may take which edge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import psycopg

from sync_pipeline.core.model import JobStatus, JobType, Mode
from sync_pipeline.database.pool import Connection
from sync_pipeline.database.queries import queries
from sync_pipeline.ledger import jobs, reaping

# Jobs with what a person needs to judge them. Without ``everything`` not what is done: completed, given up on
# purpose, or dead and followed by a later job of the same window.
_LIST = (
    """
SELECT j.job_id, j.repo_id, r.slug, r.instance, r.tenant, j.job_type, j.mode, j.revs, j.period, j.status,
       j.priority, j.attempts, j.max_attempts, j.created_at, j.updated_at, j.dispatched_at, j.not_before,
       j.claimed_at, j.claimed_by, j.claim_expires_at, j.claim_token, j.finished_at, j.trigger, j.actor,
       j.reason, j.last_error_code, j.last_error, j.decision, j.config_hash, j.dagster_run_id,
       extract(epoch FROM clock_timestamp()
               - CASE j.status WHEN 'running' THEN j.claimed_at WHEN 'dead' THEN j.finished_at
                               WHEN 'completed' THEN j.finished_at ELSE j.created_at END)::float8 AS age,
       r.lifecycle = 'retired' AS retired,
       j.from_raw OR j.quarantine_ids IS NOT NULL OR j.mode = 'probe' AS one_off,
       j.mode IN ('backfill', 'repair') AND j.quarantine_ids IS NULL
       AND NOT (j.reread OR j.only_differences OR j.only_deferred OR j.from_raw)
       AND NOT coalesce(w.covered_revs @> (j.revs * int8range(1, w.head_rev + 1)), w.covered_time @> j.period,
                        FALSE) AS missing
  FROM scm.sync_jobs AS j
  JOIN scm.repos AS r USING (repo_id)
  JOIN scm.sync_watermarks AS w USING (repo_id, job_type)
 WHERE (%(job_ids)s::uuid[] IS NULL OR j.job_id = ANY (%(job_ids)s))
   AND (%(statuses)s::text[] IS NULL OR j.status = ANY (%(statuses)s))
   AND (%(repo_id)s::bigint IS NULL OR j.repo_id = %(repo_id)s)
   AND (%(instance)s::text IS NULL OR r.instance = %(instance)s)
   AND (%(tenant)s::text IS NULL OR r.tenant = %(tenant)s)
   AND (%(job_type)s::text IS NULL OR j.job_type = %(job_type)s)
   AND (%(mode)s::text IS NULL OR j.mode = %(mode)s)
   AND (%(worker)s::text IS NULL OR (j.status = 'running' AND j.claimed_by = %(worker)s))
   AND (%(older)s::float8 IS NULL OR j.created_at < clock_timestamp() - make_interval(secs => %(older)s))
   AND (%(everything)s OR j.status <> 'completed' AND NOT """
    + jobs.SETTLED
    + """)
 ORDER BY array_position(ARRAY['running', 'dead', 'failed', 'pending', 'completed'], j.status), j.priority,
          j.created_at
 LIMIT %(limit)s
"""
)


_SQL = queries("job_actions")


@dataclass(frozen=True, slots=True)
class Filters:
    """Which jobs: all that are set have to hold. ``older`` is in seconds since the job was made, ``worker``
    the name of whoever works on it now; with ``everything`` also what is done."""

    job_ids: Sequence[UUID] | None = None
    statuses: Sequence[JobStatus] | None = None
    repo_id: int | None = None
    instance: str | None = None
    tenant: str | None = None
    job_type: JobType | None = None
    mode: Mode | None = None
    worker: str | None = None
    older: float | None = None
    everything: bool = False


@dataclass(frozen=True, slots=True)
class By:
    """Who does it, and why."""

    actor: str
    reason: str


def listed(conn: Connection, filters: Filters, limit: int) -> list[dict[str, Any]]:
    """The jobs of ``filters``, running ones first, then dead, failed and waiting ones, most urgent first.
    ``age`` is in seconds: since the claim, the end, or the making; ``missing`` says that the window of the
    job is not complete."""
    return conn.execute(
        _LIST,
        {
            **asdict(filters),
            "job_ids": None if filters.job_ids is None else list(filters.job_ids),
            "statuses": None if filters.statuses is None else [str(s) for s in filters.statuses],
            "given_up": list(jobs.GIVEN_UP),
            "limit": limit,
        },
    ).fetchall()


def attempts(conn: Connection, job_id: UUID) -> list[dict[str, Any]]:
    """The newest attempts at a job."""
    return conn.execute(_SQL["attempts"], {"job_id": job_id}).fetchall()


def events(conn: Connection, job_id: UUID) -> list[dict[str, Any]]:
    """Recent actions of people on a job."""
    return conn.execute(_SQL["events"], {"job_id": job_id}).fetchall()


def reset(conn: Connection, job_id: UUID, touched_at: datetime, old: JobStatus, by: By, attempts: int) -> str:
    """Let a dead or failed job be tried again at once, ``attempts`` times. Returns "" or why not: it changed
    since ``touched_at``, or another job does the same."""
    try:
        with conn.transaction():
            params = {"job_id": job_id, "touched_at": touched_at, "attempts": attempts}
            if conn.execute(_SQL["reset"], params).rowcount != 1:
                return "it changed meanwhile"
            _note(conn, job_id, "reset", old, JobStatus.PENDING, by)
    except psycopg.errors.UniqueViolation:
        return "another job of the same window waits or is at work"
    return ""


def drop(conn: Connection, job_id: UUID, touched_at: datetime, old: JobStatus, by: By) -> str:
    """Give a waiting job up. Returns "" or why not: it changed since ``touched_at``."""
    with conn.transaction():
        error = f"dropped by {by.actor}: {by.reason}"
        if not reaping.give_up(conn, job_id, touched_at, code="cancelled", error=error):
            return "it changed meanwhile"
        _note(conn, job_id, "drop", old, JobStatus.DEAD, by)
    return ""


def release(conn: Connection, job_id: UUID, token: UUID, by: By) -> bool:
    """Take a job from its worker, live or not. The job waits again, and later writes of the owner are
    refused. False if another process has it by now, or if the owner was in the middle of a batch. That batch
    is ended, and the job is free a moment later.
    """
    with conn.transaction():
        ended = jobs.end_lost(
            conn,
            job_id,
            token,
            status=JobStatus.PENDING,
            error_code="worker_lost",
            error=f"released by {by.actor}: {by.reason}",
            backoff=0.0,
            process_gone=True,
        )
        if ended:
            _note(conn, job_id, "release", JobStatus.RUNNING, JobStatus.PENDING, by)
    return ended


def _note(conn: Connection, job_id: UUID, action: str, old: JobStatus, new: JobStatus, by: By) -> None:
    params = {"job_id": job_id, "action": action, "old": str(old), "new": str(new)}
    conn.execute(_SQL["note"], params | {"actor": by.actor, "reason": by.reason})
