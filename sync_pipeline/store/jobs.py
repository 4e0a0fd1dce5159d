"""The job ledger: which windows are to be synced, who works on them, how it ended.

Belongs here: the state machine of ``scm.sync_jobs`` and ``scm.sync_runs``, one statement per edge. Every
edge out of ``running`` needs the claim token, so an attempt that lost its claim can change nothing. What is
due, and how long to wait after a failure, is decided in :mod:`sync_pipeline.policy`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg

from sync_pipeline import __version__
from sync_pipeline.errors import ClaimLost, LeaseHeld
from sync_pipeline.model import (
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
from sync_pipeline.store import pauses, sessions
from sync_pipeline.store.database import Connection
from sync_pipeline.store.windows import from_ranges, multirange_params, range_params

_CLAIMS_LOCK = 0x5C3_0008

HISTORY_PRIORITY = 900
"""Priority of the history that a registration queues: after everything that somebody waits for."""

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
"""Condition on a job ``j``: it is dead and needs no person, because somebody gave it up or a later job of the
same window tells how it stands. ``given_up`` is :data:`GIVEN_UP`."""

# Makes the job unless an active one of the same (repository, job type, mode, window) is there.
_ENQUEUE = """
INSERT INTO scm.sync_jobs (repo_id, job_type, mode, revs, period, reread, from_raw, quarantine_ids, heals,
                           depth, priority, max_attempts, generation, trigger, actor, reason, config_hash,
                           code_version)
SELECT %(repo_id)s, %(job_type)s, %(mode)s, %(revs)s, %(period)s, %(reread)s, %(from_raw)s,
       %(quarantine_ids)s::bigint[], %(heals)s, %(depth)s, %(priority)s, %(max_attempts)s, w.generation,
       %(trigger)s, %(actor)s, %(reason)s, %(config_hash)s, %(code_version)s
  FROM scm.sync_watermarks AS w
 WHERE w.repo_id = %(repo_id)s AND w.job_type = %(job_type)s
ON CONFLICT (repo_id, job_type, mode, revs, period) WHERE status IN ('pending', 'running', 'failed')
DO NOTHING
RETURNING job_id
"""

# Merges the new request's priority and reread flag into the existing job. A running attempt has read its flag
# already, so the job runs once more after it. A person's request leaves an event with name and reason.
_JOIN = """
WITH joined AS (
    UPDATE scm.sync_jobs
       SET priority = least(priority, %(priority)s),
           reread = reread OR (%(reread)s AND status <> 'running'),
           -- An attempt that rereads may have passed what a person has just changed. The runs of one backfill
           -- are one request.
           reread_requested = status = 'running' AND (reread_requested OR (%(reread)s AND (
               NOT reread OR (%(trigger)s IN ('ui', 'ci', 'runner')
                              AND NOT (reason = %(reason)s AND starts_with(reason, 'backfill ')))))),
           updated_at = now()
     WHERE repo_id = %(repo_id)s AND job_type = %(job_type)s AND mode = %(mode)s
       AND revs IS NOT DISTINCT FROM %(revs)s::int8range
       AND period IS NOT DISTINCT FROM %(period)s::tstzrange
       AND from_raw = %(from_raw)s
       AND quarantine_ids IS NOT DISTINCT FROM %(quarantine_ids)s::bigint[]
       AND heals = %(heals)s
       AND depth IS NOT DISTINCT FROM %(depth)s
       AND status IN ('pending', 'running', 'failed')
    RETURNING job_id, repo_id, job_type, mode, revs, period, status, trigger, actor, reason
), noted AS (
    INSERT INTO scm.job_events (job_id, repo_id, job_type, mode, "window", action, old_status, new_status,
                                actor, reason)
    SELECT job_id, repo_id, job_type, mode, coalesce(revs::text, period::text), 'join', status, status,
           %(actor)s, left(%(trigger)s || ': ' || %(reason)s, 2000)
      FROM joined
     WHERE %(trigger)s IN ('ui', 'ci', 'runner')
       AND (trigger, actor, reason) IS DISTINCT FROM (%(trigger)s, %(actor)s, %(reason)s)
)
SELECT job_id FROM joined
"""

# Tells an asset that is not registered from a job of another kind that keeps a new one out.
_IS_REGISTERED = """
SELECT 1 FROM scm.sync_watermarks WHERE repo_id = %(repo_id)s AND job_type = %(job_type)s
"""

# A job that is to be cut, unless somebody has it: SKIP LOCKED, because a stopped process may hold the row.
_UNCUT = """
SELECT repo_id, job_type, mode, reread, priority, max_attempts, trigger, actor, reason, config_hash,
       created_at
  FROM scm.sync_jobs
 WHERE job_id = %(job_id)s AND period = %(period)s::tstzrange + %(rest)s::tstzrange AND NOT heals
   AND (status IN ('pending', 'failed') OR (status = 'running' AND claim_expires_at < clock_timestamp()))
   FOR UPDATE SKIP LOCKED
"""

# The job keeps one part. The age of the whole keeps the other part's place in the queue.
_SHORTEN = """
UPDATE scm.sync_jobs
   SET period = %(period)s, updated_at = now()
 WHERE job_id = %(job_id)s
"""
_SINCE = """
UPDATE scm.sync_jobs
   SET created_at = least(created_at, %(created_at)s)
 WHERE job_id = %(job_id)s
"""

# Both parts have jobs of their own already.
_SUPERSEDE = """
UPDATE scm.sync_jobs
   SET status = 'dead', claim_token = NULL, claim_expires_at = NULL, finished_at = now(), updated_at = now(),
       last_error_code = 'superseded', last_error = 'other jobs read its window in pieces'
 WHERE job_id = %(job_id)s
"""

# The claim: a waiting job, or one whose owner's claim ran out or whose owner is known to be gone. A crash
# costs an attempt. The attempt works under the watermark's generation of this moment: a reset before it
# changes nothing for it, a reset after it locks it out.
_CLAIM = """
UPDATE scm.sync_jobs
   SET status = 'running',
       reread = reread OR reread_requested,
       reread_requested = FALSE,
       generation = (SELECT w.generation FROM scm.sync_watermarks AS w
                      WHERE w.repo_id = sync_jobs.repo_id AND w.job_type = sync_jobs.job_type),
       claim_token = %(token)s,
       claim_expires_at = clock_timestamp() + make_interval(secs => %(length)s),
       claimed_by = %(worker)s,
       claimed_process = %(process)s,
       claimed_at = clock_timestamp(),
       attempts = attempts + 1,
       not_before = NULL,
       planned_at = NULL,
       dagster_run_id = %(dagster_run_id)s,
       config_hash = coalesce(%(config_hash)s, config_hash),
       updated_at = now()
 WHERE job_id = %(job_id)s
   AND (status IN ('pending', 'failed')
        OR (status = 'running' AND (claim_expires_at < clock_timestamp() OR claim_token = %(gone)s)))
   AND attempts < max_attempts
RETURNING *
"""

# One claim after the other, so that two cannot both take the last place.
_LOCK_CLAIMS = "SELECT pg_advisory_xact_lock(%(lock)s)"

# What else is at work; job types of one family are read together and are one.
_AT_WORK = """
SELECT count(DISTINCT (j.repo_id, t.family, j.mode, j.revs, j.period))::int AS at_work
  FROM scm.sync_jobs AS j
  JOIN scm.job_types AS t USING (job_type)
  JOIN scm.sync_jobs AS mine ON mine.job_id = %(job_id)s
  JOIN scm.job_types AS own ON own.job_type = mine.job_type
 WHERE j.status = 'running' AND j.mode <> 'probe' AND j.claim_expires_at > clock_timestamp()
   AND (j.repo_id, t.family, j.mode, j.revs, j.period)
       IS DISTINCT FROM (mine.repo_id, own.family, mine.mode, mine.revs, mine.period)
"""

# A job whose last allowed attempt died with its worker.
_BURY = """
UPDATE scm.sync_jobs
   SET status = 'dead', claim_token = NULL, claim_expires_at = NULL, finished_at = now(), updated_at = now(),
       last_error_code = 'worker_lost',
       last_error = 'the worker disappeared in attempt ' || attempts || ' of ' || max_attempts
 WHERE job_id = %(job_id)s AND attempts >= max_attempts
   AND (status IN ('pending', 'failed')
        OR (status = 'running' AND (claim_expires_at < clock_timestamp() OR claim_token = %(gone)s)))
RETURNING job_id
"""

# Whose attempt the claim is going to end: the lease that it may still hold is taken from it. SKIP LOCKED: an
# owner in the middle of a batch still has the job, and nobody hangs behind a stopped process.
_OWNER = "SELECT claim_token FROM scm.sync_jobs WHERE job_id = %(job_id)s FOR UPDATE SKIP LOCKED"

# Whose claim ran out, or whose process is gone, although a transaction of his still holds the row.
_OVERDUE = """
SELECT claim_token FROM scm.sync_jobs
 WHERE job_id = %(job_id)s AND status = 'running'
   AND (claim_expires_at < clock_timestamp() OR claim_token = %(gone)s)
"""

# Ends the attempt of a lost owner as the reaper judged; a live claim is only ended if its process is gone.
_END_LOST = """
UPDATE scm.sync_jobs
   SET status = CASE WHEN reread_requested AND %(status)s = 'completed' THEN 'pending' ELSE %(status)s END,
       reread = reread OR reread_requested,
       reread_requested = FALSE,
       claim_token = NULL,
       claim_expires_at = NULL,
       -- What is tried again has an attempt left.
       max_attempts = CASE WHEN %(status)s IN ('failed', 'pending') OR reread_requested
                           THEN greatest(max_attempts, attempts + 1) ELSE max_attempts END,
       not_before = CASE WHEN %(status)s = 'failed'
                         THEN clock_timestamp() + make_interval(secs => %(backoff)s) END,
       finished_at = CASE WHEN %(status)s = 'dead' OR (%(status)s = 'completed' AND NOT reread_requested)
                          THEN now() END,
       last_error_code = %(error_code)s,
       last_error = left(%(error)s, 2000),
       updated_at = now()
 WHERE job_id = %(job_id)s AND claim_token = %(token)s
   AND (claim_expires_at < clock_timestamp() OR %(process_gone)s)
"""

# A forced release raises the fence, so that the old holder can write no more.
_RELEASE_LEASE = """
UPDATE scm.sync_locks
   SET fence = fence + 1, locked_by = NULL, holder = NULL, expires_at = NULL, updated_at = now()
 WHERE holder = %(owner)s
"""

# Attempts that somebody else's claim ended: history must not show eternal runs.
_CLOSE_LOST_RUNS = """
UPDATE scm.sync_runs
   SET status = 'failed', finished_at = now(), error_code = 'worker_lost',
       error = 'the claim of this attempt ran out; a later attempt took the job over'
 WHERE job_id = %(job_id)s AND status = 'running'
"""

# Heartbeat of the owner.
_RENEW = """
UPDATE scm.sync_jobs
   SET claim_expires_at = clock_timestamp() + make_interval(secs => %(length)s)
 WHERE job_id = %(job_id)s AND claim_token = %(token)s AND claim_expires_at > clock_timestamp()
"""

# First statement of every writing transaction; the share lock holds a takeover back until it ends. The mark
# lets a later owner end the transaction of a stopped process (see sync_pipeline.store.sessions).
_GUARD = """
SELECT set_config('application_name', %(writer)s, TRUE) FROM scm.sync_jobs
 WHERE job_id = %(job_id)s AND claim_token = %(token)s AND claim_expires_at > clock_timestamp()
   FOR KEY SHARE
"""

# The owner ends its attempt: completed, failed (retried at not_before), dead, or back to pending. A reread
# that was asked for meanwhile makes a finished job wait for one more attempt.
_FINISH = """
UPDATE scm.sync_jobs
   SET status = CASE WHEN reread_requested AND %(status)s IN ('completed', 'dead') THEN 'pending'
                     ELSE %(status)s END,
       reread = reread OR reread_requested,
       reread_requested = FALSE,
       claim_token = NULL,
       claim_expires_at = NULL,
       max_attempts = max_attempts + greatest(%(refund)s, reread_requested::int),
       not_before = CASE WHEN %(status)s = 'failed'
                         THEN clock_timestamp() + make_interval(secs => %(backoff)s) END,
       finished_at = CASE WHEN %(status)s IN ('completed', 'dead') AND NOT reread_requested THEN now() END,
       last_error_code = %(error_code)s,
       last_error = left(%(error)s, 2000),
       updated_at = now()
 WHERE job_id = %(job_id)s AND claim_token = %(token)s
"""

# What is waited for when somebody else has the job.
_GET = """
SELECT * FROM scm.sync_jobs WHERE job_id = %(job_id)s
"""

# Jobs of a repository that is no longer synced.
_CANCEL_PENDING = """
UPDATE scm.sync_jobs
   SET status = 'dead', finished_at = now(), updated_at = now(),
       last_error_code = 'cancelled', last_error = left(%(reason)s, 2000)
 WHERE repo_id = %(repo_id)s AND status IN ('pending', 'failed')
"""

_START_RUN = """
INSERT INTO scm.sync_runs (job_id, attempt, repo_id, job_type, mode, dagster_run_id, worker,
                           watermark_rev_before, watermark_time_before, code_version, degradation)
SELECT j.job_id, j.attempts, j.repo_id, j.job_type, j.mode, j.dagster_run_id, j.claimed_by,
       w.watermark_rev, w.watermark_time, %(code_version)s,
       CASE WHEN j.decision #> '{sizes,reasons}' <> '[]' THEN j.decision -> 'sizes' END
  FROM scm.sync_jobs AS j
  JOIN scm.sync_watermarks AS w USING (repo_id, job_type)
 WHERE j.job_id = %(job_id)s
RETURNING run_id,
          (SELECT count(*)::int FROM scm.sync_runs AS s
            WHERE s.job_id = sync_runs.job_id AND s.status = 'failed') AS failures
"""

_FINISH_RUN = """
UPDATE scm.sync_runs AS r
   SET status = %(status)s, finished_at = clock_timestamp(), calls = %(calls)s, head_rev = %(head_rev)s,
       rate_limited = %(rate_limited)s, timeouts = %(timeouts)s, waited_seconds = %(waited)s,
       error_code = %(error_code)s, error = left(%(error)s, 2000),
       watermark_rev_after = w.watermark_rev, watermark_time_after = w.watermark_time
  FROM scm.sync_watermarks AS w
 WHERE r.run_id = %(run_id)s AND r.status = 'running'
   AND w.repo_id = r.repo_id AND w.job_type = r.job_type
"""

# The number of a batch is the order of observation, so it is taken before the facts are written.
_NEXT_BATCH = "SELECT nextval(pg_get_serial_sequence('scm.sync_batches', 'batch_id')) AS batch_id"

_ADD_BATCH = """
WITH counted AS (
    UPDATE scm.sync_runs
       SET batches = batches + 1, rows_read = rows_read + %(read)s, inserted = inserted + %(inserted)s,
           updated = updated + %(updated)s, unchanged = unchanged + %(unchanged)s,
           poorer = poorer + %(poorer)s, quarantined = quarantined + %(quarantined)s
     WHERE run_id = %(run_id)s
    RETURNING batches, repo_id, job_type
)
INSERT INTO scm.sync_batches (batch_id, run_id, batch_no, repo_id, job_type, fence, revs, period, covers,
                              rows_read, inserted, updated, unchanged, poorer, quarantined, owed, position,
                              first_key, last_key, read_time, calls, seconds)
OVERRIDING SYSTEM VALUE
SELECT %(batch_id)s, %(run_id)s, batches, repo_id, job_type, %(fence)s, %(revs)s, %(period)s, %(covers)s,
       %(read)s, %(inserted)s, %(updated)s, %(unchanged)s, %(poorer)s, %(quarantined)s, %(owed)s,
       left(%(position)s, 200), left(%(first_key)s, 200), left(%(last_key)s, 200), %(read_time)s,
       %(calls)s, %(seconds)s
  FROM counted
"""

# The latest attempt at a job, for whoever waited for it or reads its result.
_LATEST_RUN = """
SELECT r.*, extract(epoch FROM coalesce(r.finished_at, clock_timestamp()) - r.started_at)::float8 AS seconds
  FROM scm.sync_runs AS r
 WHERE r.job_id = %(job_id)s
 ORDER BY r.attempt DESC
 LIMIT 1
"""


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to work on a job. ``generation`` is that of the watermark when the job was claimed.
    ``failures`` is how many earlier attempts failed. ``share`` is the size of pieces as a part of the usual
    size, at most 1. ``step`` is how much time of a list is read at once at first, None without a limit."""

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
    """What somebody who did not get the job sees of it."""

    status: JobStatus
    claimed_by: str | None
    claim_expires_at: datetime | None
    claim_token: UUID | None
    claimed_process: str | None


def enqueue(conn: Connection, request: JobRequest, *, max_attempts: int = 3, config_hash: str = "") -> UUID:
    """Make the job that ``request`` asks for, or find the active one that is the same work.

    An active job takes over a smaller priority and the reread flag; one that is running already is then run
    once more. Raises LookupError if the asset is not registered, LeaseHeld while a job of another kind has
    the same window.
    """
    params = {
        "repo_id": request.repo_id,
        "job_type": str(request.job_type),
        "mode": str(request.mode),
        "reread": request.reread,
        "from_raw": request.from_raw,
        "quarantine_ids": sorted(request.quarantine) or None,
        "heals": request.only_differences,
        "depth": None if request.depth is None else str(request.depth),
        "priority": request.priority,
        "max_attempts": max_attempts,
        "trigger": str(request.trigger),
        "actor": request.actor,
        "reason": request.reason,
        "config_hash": config_hash,
        "code_version": __version__,
    } | range_params(request.window)
    # The found job may end between the two statements; then the next round makes a new one.
    for _ in range(5):
        row = conn.execute(_ENQUEUE, params).fetchone() or conn.execute(_JOIN, params).fetchone()
        if row is not None:
            return UUID(str(row["job_id"]))
    if conn.execute(_IS_REGISTERED, params).fetchone() is None:
        raise LookupError(f"repository {request.repo_id} has no {request.job_type}")
    raise LeaseHeld(
        f"another {request.mode} of the same window is under way that does other work; try again later"
    )


def cut(conn: Connection, job_id: UUID, piece: Window, rest: Window) -> UUID | None:
    """Leave ``piece`` of a waiting or abandoned job's time, and queue the ``rest`` as a job of its own.

    That is one transaction, so no part of the window is ever without a job. Returns the job of the piece:
    another one where that window had one already. None, and no change, where somebody has the job, its window
    is another one by now, or other work has one of the parts.
    """
    params = {"job_id": job_id, "rest": range_params(rest)["period"]} | range_params(piece)
    try:
        with conn.transaction():
            row = conn.execute(_UNCUT, params).fetchone()
            if row is None:
                return None
            kept = {"max_attempts": row["max_attempts"], "config_hash": row["config_hash"] or ""}
            left = enqueue(conn, _request_of(row, rest), **kept)
            conn.execute(_SINCE, {"job_id": left, "created_at": row["created_at"]})
            try:
                with conn.transaction():
                    conn.execute(_SHORTEN, params)
            except psycopg.errors.UniqueViolation:
                conn.execute(_SUPERSEDE, params)
                return enqueue(conn, _request_of(row, piece), **kept)
    except LeaseHeld:
        return None
    return job_id


def _request_of(row: dict[str, Any], window: Window) -> JobRequest:
    return JobRequest(
        repo_id=row["repo_id"],
        job_type=JobType(row["job_type"]),
        mode=Mode(row["mode"]),
        trigger=Trigger(row["trigger"]),
        actor=row["actor"],
        reason=row["reason"],
        window=window,
        reread=row["reread"],
        priority=row["priority"],
    )


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
    """Take the job for one attempt of ``length`` seconds, renewable; None if somebody else has it, if it is
    paused (see :func:`sync_pipeline.store.pauses.of_job`), or if ``max_running`` others are at work.

    Takes over a running job whose claim ran out, or whose claim is ``gone``: that of a process known to be
    dead. Closes the attempt it replaces, takes its lease from it, and buries a job whose attempts are used
    up (the caller then finds it dead). ``process`` tells the next one which process this is;
    ``config_hash`` names the settings of the attempt.
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
            conn.execute(_LOCK_CLAIMS, {"lock": _CLAIMS_LOCK})
            others = conn.execute(_AT_WORK, params).fetchone()
            assert others is not None
            if others["at_work"] >= max_running:
                return None
        owner = conn.execute(_OWNER, params).fetchone()
        if owner is None:
            _end_overdue_writer(conn, job_id, gone)
            return None
        if pauses.of_job(conn, job_id) is not None:
            return None
        row = conn.execute(_CLAIM, params).fetchone()
        if row is None and conn.execute(_BURY, params).fetchone() is None:
            return None
        conn.execute(_CLOSE_LOST_RUNS, params)
        if owner["claim_token"] is not None:
            conn.execute(_RELEASE_LEASE, {"owner": owner["claim_token"]})
        if row is None:
            return None
        run = conn.execute(_START_RUN, params).fetchone()
        assert run is not None
    sizes = (row["decision"] or {}).get("sizes") or {}
    step = sizes.get("window_seconds")
    return Claim(
        job_id=row["job_id"],
        token=token,
        run_id=run["run_id"],
        attempt=row["attempts"],
        max_attempts=row["max_attempts"],
        generation=row["generation"],
        window=from_ranges(row["revs"], row["period"]),
        reread=row["reread"],
        actor=row["actor"],
        reason=row["reason"],
        trigger=Trigger(row["trigger"]),
        failures=run["failures"],
        share=float(sizes.get("share", 1.0)),
        step=None if step is None else timedelta(seconds=step),
    )


def _end_overdue_writer(conn: Connection, job_id: UUID, gone: UUID | None) -> None:
    """End the batch of an owner who has no right to it any more; the job is free a moment later."""
    overdue = conn.execute(_OVERDUE, {"job_id": job_id, "gone": gone}).fetchone()
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
    """End the attempt of a lost owner as it was judged: its run is closed, its lease taken from it, and what
    it still writes is refused. ``backoff`` is in seconds from now. False if the job is somebody else's by
    now, or if the owner was in the middle of a batch: that is ended, and the job is free a moment later. A
    claim that has not run out is ended only where ``process_gone``."""
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
        if conn.execute(_OWNER, params).fetchone() is None:
            _end_overdue_writer(conn, job_id, token if process_gone else None)
            return False
        if conn.execute(_END_LOST, params).rowcount != 1:
            return False
        conn.execute(_CLOSE_LOST_RUNS, params)
        conn.execute(_RELEASE_LEASE, {"owner": token})
    return True


def renew(conn: Connection, claim: Claim, length: float) -> bool:
    """Keep the claim for another ``length`` seconds; False if it ran out or was taken over."""
    params = {"job_id": claim.job_id, "token": claim.token, "length": length}
    return conn.execute(_RENEW, params).rowcount == 1


def guard(conn: Connection, claim: Claim) -> None:
    """Check the claim at the start of a writing transaction, which is then known as that of the claim. Raises
    ClaimLost, which says to whom."""
    params = {"job_id": claim.job_id, "token": claim.token, "writer": sessions.name(claim.token)}
    if conn.execute(_GUARD, params).fetchone() is None:
        raise ClaimLost(f"{lost(conn, claim)}; nothing of this batch was written")


def lost(conn: Connection, claim: Claim) -> ClaimLost:
    """Why the claim is no longer good, and who has the job now."""
    now = conn.execute(_GET, {"job_id": claim.job_id}).fetchone()
    run = conn.execute(_LATEST_RUN, {"job_id": claim.job_id}).fetchone()
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
) -> bool:
    """End the attempt. ``pending`` gives the job back and allows one attempt more for it, and so does
    ``refund``. A lease that the attempt still has is taken from it. False if the claim was lost: the job then
    belongs to somebody else and is left alone."""
    params = {
        "job_id": claim.job_id,
        "token": claim.token,
        "run_id": claim.run_id,
        **asdict(traffic or Traffic()),
        "head_rev": head_rev,
        "error_code": error_code,
        "error": error,
        "backoff": backoff,
        "refund": 1 if refund or job_status is JobStatus.PENDING else 0,
    }
    with conn.transaction():
        owned = conn.execute(_FINISH, params | {"status": str(job_status)}).rowcount == 1
        if owned:
            conn.execute(_FINISH_RUN, params | {"status": str(run_status)})
            # Usually it was given back long ago; not if the database was away at that moment.
            conn.execute(_RELEASE_LEASE, {"owner": claim.token})
    return owned


def next_batch(conn: Connection) -> int:
    """The number of the batch that is about to be written."""
    row = conn.execute(_NEXT_BATCH).fetchone()
    assert row is not None
    return int(row["batch_id"])


def add_batch(
    conn: Connection,
    claim: Claim,
    *,
    batch_id: int,
    fence: int,
    window: Window,
    covers: bool,
    counts: Counts,
    owed: int = 0,
    evidence: Evidence | None = None,
    calls: int = 0,
    seconds: float = 0.0,
) -> None:
    """Write the ledger row of a batch and add its counts to the run, in the batch's own transaction.
    ``calls`` and ``seconds`` are those since the batch before."""
    read = evidence.read if evidence is not None else ()
    conn.execute(
        _ADD_BATCH,
        {
            "batch_id": batch_id,
            "run_id": claim.run_id,
            "fence": fence,
            "covers": covers,
            "read": counts.read,
            "inserted": counts.inserted,
            "updated": counts.updated,
            "unchanged": counts.unchanged,
            "poorer": counts.poorer,
            "quarantined": counts.quarantined,
            "owed": owed,
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
    row = conn.execute(_GET, {"job_id": job_id}).fetchone()
    if row is None:
        raise ClaimLost(f"job {job_id} is not in the database any more (was that restored?); start it again")
    return row


def state(conn: Connection, job_id: UUID) -> JobState:
    """Who has the job now. Raises ClaimLost if there is no such job."""
    row = _get(conn, job_id)
    return JobState(
        JobStatus(row["status"]),
        row["claimed_by"],
        row["claim_expires_at"],
        row["claim_token"],
        row["claimed_process"],
    )


def report(conn: Connection, job_id: UUID) -> JobReport:
    """The job and its latest attempt as the ledger has them. Raises ClaimLost if there is no such job."""
    job = _get(conn, job_id)
    run: dict[str, Any] = conn.execute(_LATEST_RUN, {"job_id": job_id}).fetchone() or {}
    return JobReport(
        job_id=job_id,
        run_id=run.get("run_id"),
        repo_id=job["repo_id"],
        job_type=JobType(job["job_type"]),
        mode=Mode(job["mode"]),
        window=from_ranges(job["revs"], job["period"]),
        job_status=JobStatus(job["status"]),
        run_status=RunStatus(run.get("status", "failed")),
        counts=Counts(
            read=run.get("rows_read", 0),
            inserted=run.get("inserted", 0),
            updated=run.get("updated", 0),
            unchanged=run.get("unchanged", 0),
            poorer=run.get("poorer", 0),
            quarantined=run.get("quarantined", 0),
        ),
        traffic=Traffic(
            calls=run.get("calls", 0),
            rate_limited=run.get("rate_limited", 0),
            timeouts=run.get("timeouts", 0),
            waited=run.get("waited_seconds", 0.0),
        ),
        batches=run.get("batches", 0),
        seconds=run.get("seconds", 0.0),
        watermark_before=run.get("watermark_rev_before") or run.get("watermark_time_before"),
        watermark_after=run.get("watermark_rev_after") or run.get("watermark_time_after"),
        head=run.get("head_rev"),
        error_code=job["last_error_code"] or run.get("error_code"),
        error=job["last_error"] or run.get("error"),
    )


def cancel_pending(conn: Connection, repo_id: int, reason: str) -> int:
    """End every job of the repository that nobody works on; returns how many."""
    return conn.execute(_CANCEL_PENDING, {"repo_id": repo_id, "reason": reason}).rowcount
