"""The job ledger: windows to sync, their owners, and their results.

Belongs here: the state machine of ``scm.sync_jobs`` and ``scm.sync_runs``, one statement per edge. Every edge
out of ``running`` needs the claim token, so an attempt that lost its claim can change nothing.
:mod:`sync_pipeline.policy` decides when a job is due and how long it waits after a failure.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg

from sync_pipeline import __version__
from sync_pipeline.core.errors import ClaimLost, LeaseHeld
from sync_pipeline.core.model import (
    Counts,
    Evidence,
    JobReport,
    JobRequest,
    JobStatus,
    JobType,
    Mode,
    RunStatus,
    Traffic,
    Trigger,
    Window,
)
from sync_pipeline.database.pool import Connection
from sync_pipeline.database.queries import queries
from sync_pipeline.database.ranges import from_ranges, multirange_params, range_params
from sync_pipeline.database.rows import only_row, only_value, read_row
from sync_pipeline.ledger import pauses, sessions

_CLAIMS_LOCK = 0x5C3_0008

HISTORY_PRIORITY = 900
"""Priority of the history that a registration queues: after everything that a person waits for."""

GIVEN_UP = ("cancelled", "superseded", "expired")
"""Codes of jobs that are dead and need no person: nothing is missing without them."""

SETTLED = """
(j.status = 'dead'
 AND (coalesce(j.last_error_code, '') = ANY (%(given_up)s)
      OR EXISTS (SELECT FROM scm.sync_jobs AS later
                  WHERE later.repo_id = j.repo_id AND later.job_type = j.job_type AND later.mode = j.mode
                    AND later.revs IS NOT DISTINCT FROM j.revs AND later.period IS NOT DISTINCT FROM j.period
                    AND later.created_at > j.created_at
                    AND (later.status <> 'dead'
                         OR coalesce(later.last_error_code, '') <> ALL (%(given_up)s)))))
"""
"""Condition on a job ``j``: it is dead and needs no person, because it was given up or a later job has the
same window. ``given_up`` is :data:`GIVEN_UP`.
"""


_SQL = queries("jobs")

_STORED_WITH_JOB = ("repo_id", "job_type", "mode", "trigger", "actor", "reason", "reread", "priority")


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to work on a job. ``generation`` is that of the watermark when the job was claimed.
    ``failures`` is how many earlier attempts failed. ``share`` is a factor on the chunk size, at most 1.
    ``step`` is the longest time span that one list request first asks for; None: no limit."""

    job_id: UUID
    token: UUID
    run_id: UUID
    attempt: int
    max_attempts: int
    generation: int
    window: Window | None
    reread: bool
    actor: str
    reason: str
    trigger: Trigger
    failures: int = 0
    share: float = 1.0
    step: timedelta | None = None


@dataclass(frozen=True, slots=True)
class JobState:
    """The state of a job for a process that did not get it."""

    status: JobStatus
    claimed_by: str | None
    claim_expires_at: datetime | None
    claim_token: UUID | None
    claimed_process: str | None


def enqueue(conn: Connection, request: JobRequest, *, max_attempts: int = 3, config_hash: str = "") -> UUID:
    """Make the job that ``request`` asks for, or find the active one that is the same work.

    An active job takes over the reread flag, and the priority if that is smaller (more urgent). If it is
    running, a reread makes it run once more. Raises LookupError if the asset is not registered, LeaseHeld
    while a job that does other work has the same window.
    """
    names = (*_STORED_WITH_JOB, "from_raw", "only_differences", "only_deferred", "depth")
    params = {name: getattr(request, name) for name in names} | range_params(request.window)
    params |= {
        "quarantine_ids": sorted(request.quarantine) or None,
        "max_attempts": max_attempts,
        "config_hash": config_hash,
        "code_version": __version__,
    }
    # The found job may end between the two statements; then the next round makes a new one.
    for _ in range(5):
        row = (
            conn.execute(_SQL["enqueue"], params).fetchone() or conn.execute(_SQL["join"], params).fetchone()
        )
        if row is not None:
            return UUID(str(row["job_id"]))
    if conn.execute(_SQL["is_registered"], params).fetchone() is None:
        raise LookupError(f"repository {request.repo_id} has no {request.job_type}")
    raise LeaseHeld(
        f"another {request.mode} of the same window is under way that does other work; try again later"
    )


def cut(conn: Connection, job_id: UUID, piece: Window, rest: Window) -> UUID | None:
    """Leave ``piece`` of a waiting or abandoned job's time, and queue the ``rest`` as a job of its own.

    That is one transaction, so no part of the window is ever without a job. Returns the id of the job of the
    piece: the id of an existing job if the window has one. Returns None if a process works on the job,
    if its window has changed, or if other work has one of the parts. Then nothing changes.
    """
    params = {"job_id": job_id, "rest": range_params(rest)["period"]} | range_params(piece)
    try:
        with conn.transaction():
            row = conn.execute(_SQL["lock_for_split"], params).fetchone()
            if row is None:
                return None
            kept = {"max_attempts": row["max_attempts"], "config_hash": row["config_hash"] or ""}
            left = enqueue(conn, _request_of(row, rest), **kept)
            conn.execute(_SQL["since"], {"job_id": left, "created_at": row["created_at"]})
            try:
                with conn.transaction():
                    conn.execute(_SQL["shorten"], params)
            except psycopg.errors.UniqueViolation:
                conn.execute(_SQL["supersede"], params)
                return enqueue(conn, _request_of(row, piece), **kept)
    except LeaseHeld:
        return None
    return job_id


def _request_of(row: dict[str, Any], window: Window) -> JobRequest:
    return read_row(JobRequest, {name: row[name] for name in _STORED_WITH_JOB}, window=window)


def claim(
    conn: Connection,
    job_id: UUID,
    *,
    worker: str,
    process: str,
    length: float,
    dagster_run_id: str | None,
    gone: UUID | None = None,
    max_running: int | None = None,
    config_hash: str | None = None,
) -> Claim | None:
    """Claim the job for one attempt of ``length`` seconds, renewable. None if another process has it, if it
    is paused (see :func:`sync_pipeline.ledger.pauses.of_job`), or if ``max_running`` others are at work.

    Takes over a running job whose claim ran out, or whose claim is ``gone``: the claim of a process known to
    be dead. Closes the attempt it replaces and releases its lease. Marks a job dead whose attempts are used
    up. ``process`` is stored so that later claimers can check whether it lives. ``config_hash`` names the
    settings of the attempt.
    """
    token = uuid4()
    params = {
        "job_id": job_id,
        "token": token,
        "worker": worker,
        "process": process,
        "gone": gone,
        "length": length,
        "dagster_run_id": dagster_run_id,
        "config_hash": config_hash,
        "code_version": __version__,
    }
    with conn.transaction():
        if max_running is not None:
            conn.execute(_SQL["lock_claims"], {"lock": _CLAIMS_LOCK})
            if only_value(conn.execute(_SQL["at_work"], params)) >= max_running:
                return None
        owner = conn.execute(_SQL["owner"], params).fetchone()
        if owner is None:
            _end_overdue_writer(conn, job_id, gone)
            return None
        if pauses.of_job(conn, job_id) is not None:
            return None
        row = conn.execute(_SQL["claim"], params).fetchone()
        if row is None and conn.execute(_SQL["give_up"], params).fetchone() is None:
            return None
        conn.execute(_SQL["close_lost_runs"], params)
        if owner["claim_token"] is not None:
            conn.execute(_SQL["release_lease"], {"owner": owner["claim_token"]})
        if row is None:
            return None
        run = only_row(conn.execute(_SQL["start_run"], params))
    sizes = (row["decision"] or {}).get("sizes") or {}
    step = sizes.get("window_seconds")
    return read_row(
        Claim,
        row | run,
        token=token,
        attempt=row["attempts"],
        window=from_ranges(row["revs"], row["period"]),
        share=float(sizes.get("share", 1.0)),
        step=None if step is None else timedelta(seconds=step),
    )


def _end_overdue_writer(conn: Connection, job_id: UUID, gone: UUID | None) -> None:
    """End the transaction of an owner that lost its claim; the job is free a moment later."""
    overdue = conn.execute(_SQL["overdue"], {"job_id": job_id, "gone": gone}).fetchone()
    if overdue is not None:
        sessions.end(conn, overdue["claim_token"])


def end_lost(
    conn: Connection,
    job_id: UUID,
    token: UUID,
    *,
    status: JobStatus,
    error_code: str | None,
    error: str | None,
    backoff: float,
    process_gone: bool,
) -> bool:
    """End the attempt of a lost owner as decided: its run is closed, its lease is released, and its later
    writes are refused. ``backoff`` is in seconds from now.

    False if another process has the job by now, or if the owner was in the middle of a batch. That batch is
    ended, and the job is free a moment later. A valid claim is ended only with ``process_gone``.
    """
    params = {
        "job_id": job_id,
        "token": token,
        "status": str(status),
        "error_code": error_code,
        "error": error,
        "backoff": backoff,
        "process_gone": process_gone,
    }
    with conn.transaction():
        if conn.execute(_SQL["owner"], params).fetchone() is None:
            _end_overdue_writer(conn, job_id, token if process_gone else None)
            return False
        if conn.execute(_SQL["end_lost"], params).rowcount != 1:
            return False
        conn.execute(_SQL["close_lost_runs"], params)
        conn.execute(_SQL["release_lease"], {"owner": token})
    return True


def renew(conn: Connection, claim: Claim, length: float) -> bool:
    """Keep the claim for another ``length`` seconds; False if it ran out or was taken over."""
    params = {"job_id": claim.job_id, "token": claim.token, "length": length}
    return conn.execute(_SQL["renew"], params).rowcount == 1


def guard(conn: Connection, claim: Claim) -> None:
    """Check the claim at the start of a writing transaction, and mark the transaction with the claim. Raises
    ClaimLost, which names the new owner."""
    params = {"job_id": claim.job_id, "token": claim.token, "writer": sessions.name(claim.token)}
    if conn.execute(_SQL["guard"], params).fetchone() is None:
        raise ClaimLost(f"{lost(conn, claim)}; nothing of this batch was written")


def lost(conn: Connection, claim: Claim) -> ClaimLost:
    """Why the claim is no longer good, and who has the job now."""
    now = conn.execute(_SQL["get"], {"job_id": claim.job_id}).fetchone()
    run = conn.execute(_SQL["latest_run"], {"job_id": claim.job_id}).fetchone()
    if now is None:
        why = "it is not in the database any more (was that restored?)"
    elif run is not None and run["attempt"] > claim.attempt:
        why = f"attempt {run['attempt']} of {run['worker']} took it over at {run['started_at']:%H:%M:%S} UTC"
    elif now["claim_token"] == claim.token:
        why = f"the claim ran out at {now['claim_expires_at']:%H:%M:%S} UTC before it was renewed"
    else:
        why = f"it was taken from it and is {now['status']}"
    return ClaimLost(f"attempt {claim.attempt} lost its claim on job {claim.job_id}: {why}")


def finish(
    conn: Connection,
    claim: Claim,
    *,
    job_status: JobStatus,
    run_status: RunStatus,
    traffic: Traffic | None = None,
    head_rev: int | None = None,
    error_code: str | None = None,
    error: str | None = None,
    backoff: float = 0.0,
    refund: bool = False,
    notice: str | None = None,
) -> bool:
    """End the attempt and release the lease that it still has. The status ``pending`` or ``refund`` gives the
    attempt back: the job may have one more. ``notice`` is why it read in another way than usual. False if the
    claim was lost: the job then belongs to another process and does not change."""
    params = {
        "job_id": claim.job_id,
        "token": claim.token,
        "run_id": claim.run_id,
        **asdict(traffic or Traffic()),
        "head_rev": head_rev,
        "error_code": error_code,
        "error": error,
        "notice": notice,
        "backoff": backoff,
        "refund": 1 if refund or job_status is JobStatus.PENDING else 0,
    }
    with conn.transaction():
        owned = conn.execute(_SQL["finish"], params | {"status": str(job_status)}).rowcount == 1
        if owned:
            conn.execute(_SQL["finish_run"], params | {"status": str(run_status)})
            # The attempt usually released it already, unless the database was unreachable at that moment.
            conn.execute(_SQL["release_lease"], {"owner": claim.token})
    return owned


def next_batch(conn: Connection) -> int:
    """The number of the batch that is about to be written."""
    return int(only_value(conn.execute(_SQL["next_batch"])))


def add_batch(
    conn: Connection,
    claim: Claim,
    *,
    batch_id: int,
    fence: int,
    window: Window,
    covers: bool,
    counts: Counts,
    deferred: int = 0,
    evidence: Evidence | None = None,
    calls: int = 0,
    seconds: float = 0.0,
) -> None:
    """Write the ledger row of a batch and add its counts to the run, in the batch's own transaction.
    ``calls`` and ``seconds`` are those since the batch before."""
    read = evidence.read if evidence is not None else ()
    conn.execute(
        _SQL["add_batch"],
        {
            "batch_id": batch_id,
            "run_id": claim.run_id,
            "fence": fence,
            "covers": covers,
            **asdict(counts),
            "deferred": deferred,
            "position": evidence and evidence.position,
            "first_key": evidence and evidence.first_key,
            "last_key": evidence and evidence.last_key,
            "read_time": multirange_params(*read)["period"] if read else None,
            "calls": calls,
            "seconds": seconds,
        }
        | range_params(window),
    )


def _get(conn: Connection, job_id: UUID) -> dict[str, Any]:
    row = conn.execute(_SQL["get"], {"job_id": job_id}).fetchone()
    if row is None:
        raise ClaimLost(f"job {job_id} is not in the database any more (was that restored?); start it again")
    return row


def state(conn: Connection, job_id: UUID) -> JobState:
    """Who has the job now. Raises ClaimLost if there is no such job."""
    return read_row(JobState, _get(conn, job_id))


def report(conn: Connection, job_id: UUID) -> JobReport:
    """The job and its latest attempt as the ledger has them. Raises ClaimLost if there is no such job."""
    job = _get(conn, job_id)
    run: dict[str, Any] = conn.execute(_SQL["latest_run"], {"job_id": job_id}).fetchone() or {}
    return JobReport(
        job_id=job_id,
        run_id=run.get("run_id"),
        repo_id=job["repo_id"],
        job_type=JobType(job["job_type"]),
        mode=Mode(job["mode"]),
        window=from_ranges(job["revs"], job["period"]),
        job_status=JobStatus(job["status"]),
        run_status=RunStatus(run.get("status", "failed")),
        counts=read_row(Counts, run, read=run.get("rows_read", 0)),
        traffic=read_row(Traffic, run, waited=run.get("waited_seconds", 0.0)),
        batches=run.get("batches", 0),
        seconds=run.get("seconds", 0.0),
        watermark_before=run.get("watermark_rev_before") or run.get("watermark_time_before"),
        watermark_after=run.get("watermark_rev_after") or run.get("watermark_time_after"),
        head=run.get("head_rev"),
        error_code=job["last_error_code"] or run.get("error_code"),
        error=job["last_error"] or run.get("error"),
    )


def cancel_pending(conn: Connection, repo_id: int, reason: str) -> int:
    """End every waiting job of the repository; returns how many."""
    return conn.execute(_SQL["cancel_pending"], {"repo_id": repo_id, "reason": reason}).rowcount
