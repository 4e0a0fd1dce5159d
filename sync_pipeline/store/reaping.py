"""What nobody works on any more: the queries that find it, and the edges that end it.

Belongs here: jobs, runs, leases and wishes for leases whose owners are gone, and jobs that wait in vain.
Every change names what was seen, so what is somebody's again by then is left alone. The attempt of a lost
owner is ended by :func:`sync_pipeline.store.jobs.end_lost`; whether something is lost is decided in
:mod:`sync_pipeline.policy.reaping`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from sync_pipeline.model import JobType
from sync_pipeline.store import sessions
from sync_pipeline.store.database import Connection

_REAPER_LOCK = 0x5C3_0003
# Claims that are looked at for a dead process; those that ended longest ago come first.
_CLAIMS_LOOKED_AT = 1000

# Every claim, or those of one (repository, job type), with what its end depends on. A window counts as
# covered only for a job that was to cover it.
_RUNNING = """
SELECT j.job_id, j.claim_token AS token, j.repo_id, r.slug, j.job_type, j.mode, j.claimed_by,
       j.claimed_process, j.claimed_at, j.claim_expires_at AS expires_at, j.attempts, j.max_attempts,
       j.last_error_code, j.dagster_run_id, tried.failures, tried.got_on,
       coalesce(w.covered_revs @> (j.revs * int8range(1, w.head_rev + 1)), w.covered_time @> j.period, FALSE)
       AND j.mode IN ('backfill', 'repair') AND NOT (j.reread OR j.heals OR j.from_raw)
       AND j.quarantine_ids IS NULL AS covered
  FROM scm.sync_jobs AS j
  JOIN scm.repos AS r USING (repo_id)
  JOIN scm.sync_watermarks AS w USING (repo_id, job_type)
 CROSS JOIN LATERAL (
       SELECT count(*) FILTER (WHERE s.status = 'failed')::int AS failures,
              coalesce(bool_or(s.attempt = j.attempts AND s.inserted > 0), FALSE) AS got_on
         FROM scm.sync_runs AS s
        WHERE s.job_id = j.job_id) AS tried
 WHERE j.status = 'running'
   AND (%(repo_id)s::bigint IS NULL OR (j.repo_id = %(repo_id)s AND j.job_type = %(job_type)s))
 ORDER BY j.claim_expires_at
 LIMIT %(limit)s
"""

# Waiting jobs that may be given up. What only its asker can take up is needed by nobody else; what would
# leave a gap in the coverage is needed however old it is.
_WAITING = """
SELECT * FROM (
    SELECT j.job_id, j.repo_id, r.slug, j.job_type, j.mode, j.status, j.updated_at AS touched_at,
           r.lifecycle = 'retired' AND NOT j.from_raw AS retired,
           known.plain AND j.mode = 'backfill' AND known.complete AS covered,
           known.one_off,
           known.plain AND j.mode IN ('backfill', 'repair') AND NOT known.complete AS needed
      FROM scm.sync_jobs AS j
      JOIN scm.repos AS r USING (repo_id)
      JOIN scm.sync_watermarks AS w USING (repo_id, job_type)
     CROSS JOIN LATERAL (
           SELECT NOT (j.reread OR j.heals OR j.from_raw) AND j.quarantine_ids IS NULL AS plain,
                  j.from_raw OR j.quarantine_ids IS NOT NULL OR j.mode = 'probe' AS one_off,
                  coalesce(w.covered_revs @> (j.revs * int8range(1, w.head_rev + 1)),
                           w.covered_time @> j.period, FALSE) AS complete) AS known
     WHERE j.status IN ('pending', 'failed')
       AND j.updated_at < clock_timestamp() - make_interval(secs => %(grace)s)) AS waiting
 WHERE retired OR covered
    OR (one_off AND touched_at < clock_timestamp() - make_interval(secs => %(one_off_age)s))
    OR (NOT needed AND touched_at < clock_timestamp() - make_interval(secs => %(age)s))
 ORDER BY touched_at
 LIMIT %(limit)s
"""

# Gives a waiting job up, unless somebody touched it since it was looked at.
_GIVE_UP = """
UPDATE scm.sync_jobs
   SET status = 'dead', not_before = NULL, finished_at = now(), updated_at = now(),
       last_error_code = %(code)s, last_error = left(%(error)s, 2000)
 WHERE job_id = %(job_id)s AND status IN ('pending', 'failed') AND updated_at = %(touched_at)s
"""

# Runs that are open although their job has ended or is at another attempt.
_OPEN_RUNS = """
SELECT s.run_id, s.job_id, s.attempt, s.repo_id, r.slug, s.job_type, s.worker, s.started_at
  FROM scm.sync_runs AS s
  JOIN scm.sync_jobs AS j USING (job_id)
  JOIN scm.repos AS r ON r.repo_id = s.repo_id
 WHERE s.status = 'running' AND NOT (j.status = 'running' AND j.attempts = s.attempt)
 ORDER BY s.started_at
 LIMIT %(limit)s
"""

_CLOSE_RUN = """
UPDATE scm.sync_runs AS s
   SET status = 'failed', finished_at = clock_timestamp(), error_code = 'worker_lost',
       error = 'nobody works on this attempt any more'
  FROM scm.sync_jobs AS j
 WHERE s.run_id = %(run_id)s AND s.status = 'running'
   AND j.job_id = s.job_id AND NOT (j.status = 'running' AND j.attempts = s.attempt)
"""

# Leases that ended and were not given back.
_LEASES = """
SELECT l.lock_id, l.fence, l.holder, l.repo_id, r.slug, l.job_type, l.locked_by, l.expires_at
  FROM scm.sync_locks AS l
  JOIN scm.repos AS r USING (repo_id)
 WHERE l.expires_at < clock_timestamp()
 ORDER BY l.expires_at
 LIMIT %(limit)s
"""

# SKIP LOCKED: a writer in the middle of a batch still has it.
_LOCK_LEASE = """
SELECT 1 FROM scm.sync_locks
 WHERE lock_id = %(lock_id)s AND fence = %(fence)s AND expires_at < clock_timestamp()
   FOR UPDATE SKIP LOCKED
"""

# A forced release raises the fence, so that the old holder can write no more.
_RELEASE = """
UPDATE scm.sync_locks
   SET fence = fence + 1, locked_by = NULL, holder = NULL, expires_at = NULL, updated_at = now()
 WHERE lock_id = %(lock_id)s
"""

# The same lease, still there and still over.
_STILL_HELD = """
SELECT 1 FROM scm.sync_locks
 WHERE lock_id = %(lock_id)s AND fence = %(fence)s AND expires_at < clock_timestamp()
"""

# Wishes for a lease whose owners no longer ask.
_WAITERS = """
SELECT w.lock_id, w.waiter, w.who, w.expires_at, l.repo_id, r.slug, l.job_type
  FROM scm.sync_lock_waiters AS w
  JOIN scm.sync_locks AS l USING (lock_id)
  JOIN scm.repos AS r USING (repo_id)
 WHERE w.expires_at < clock_timestamp()
 ORDER BY w.expires_at
 LIMIT %(limit)s
"""

_FORGET = """
DELETE FROM scm.sync_lock_waiters
 WHERE lock_id = %(lock_id)s AND waiter = %(waiter)s AND expires_at = %(expires_at)s
"""

# What the ledger knows of Dagster runs: whether a claim of theirs is live, when an attempt of theirs last
# began or ended by itself, and when the claim of one was last taken from it.
_SIGNS = """
SELECT s.dagster_run_id,
       max(CASE WHEN s.error_code = 'worker_lost' THEN s.started_at
                ELSE greatest(s.started_at, s.finished_at) END) AS last_sign,
       max(s.finished_at) FILTER (WHERE s.error_code = 'worker_lost') AS lost_at,
       coalesce(bool_or(j.status = 'running' AND j.dagster_run_id = s.dagster_run_id
                        AND j.claim_expires_at > clock_timestamp()), FALSE) AS claims_live
  FROM scm.sync_runs AS s
  JOIN scm.sync_jobs AS j USING (job_id)
 WHERE s.dagster_run_id = ANY (%(run_ids)s)
 GROUP BY s.dagster_run_id
"""

# The lock ends with its transaction, so it also works behind a transaction pooler.
_TRY_LOCK = "SELECT pg_try_advisory_xact_lock(%(lock)s) AS locked"


def try_lock(conn: Connection) -> bool:
    """Be the only reaper until the caller's transaction ends; False if another one is at work."""
    row = conn.execute(_TRY_LOCK, {"lock": _REAPER_LOCK}).fetchone()
    return bool(row and row["locked"])


def running_jobs(
    conn: Connection, repo_id: int | None = None, job_type: JobType | None = None
) -> list[dict[str, Any]]:
    """Every claim, or those of one (repository, job type), the one that ends first at the start; at most
    1,000."""
    params = {"limit": _CLAIMS_LOOKED_AT, "repo_id": repo_id, "job_type": job_type}
    return conn.execute(_RUNNING, params).fetchall()


def waiting_jobs(
    conn: Connection, *, grace: float, one_off_age: float, age: float | None, limit: int
) -> list[dict[str, Any]]:
    """Waiting jobs that may be given up, the one that was left alone longest first. Ages are seconds since
    the row last changed; ``age`` is None where waiting jobs do not age."""
    longest = 1e11  # longer than anything has been there
    params = {
        "grace": grace,
        "one_off_age": one_off_age,
        "age": longest if age is None else age,
        "limit": limit,
    }
    return conn.execute(_WAITING, params).fetchall()


def give_up(conn: Connection, job_id: UUID, touched_at: datetime, *, code: str, error: str) -> bool:
    """Make a waiting job dead with this reason; False if it changed since ``touched_at``."""
    params = {"job_id": job_id, "touched_at": touched_at, "code": code, "error": error}
    return conn.execute(_GIVE_UP, params).rowcount == 1


def open_runs(conn: Connection, limit: int) -> list[dict[str, Any]]:
    """Open runs whose job has ended or is at another attempt, the oldest first."""
    return conn.execute(_OPEN_RUNS, {"limit": limit}).fetchall()


def close_run(conn: Connection, run_id: UUID) -> bool:
    """Close such a run; False if it is closed by now."""
    return conn.execute(_CLOSE_RUN, {"run_id": run_id}).rowcount == 1


def ended_leases(conn: Connection, limit: int) -> list[dict[str, Any]]:
    """Leases that ended and were not given back, the oldest first."""
    return conn.execute(_LEASES, {"limit": limit}).fetchall()


def release_lease(conn: Connection, lock_id: int, fence: int, holder: UUID) -> bool:
    """Free a lease that ended and raise its fence; False if it is somebody's again, or if a transaction of
    its holder had to be ended first: it is free a moment later."""
    params = {"lock_id": lock_id, "fence": fence}
    with conn.transaction():
        if conn.execute(_LOCK_LEASE, params).fetchone() is not None:
            conn.execute(_RELEASE, params)
            return True
    if conn.execute(_STILL_HELD, params).fetchone() is not None:
        sessions.end(conn, holder)
    return False


def ended_waiters(conn: Connection, limit: int) -> list[dict[str, Any]]:
    """Wishes for a lease whose owners no longer ask, the oldest first."""
    return conn.execute(_WAITERS, {"limit": limit}).fetchall()


def forget_waiter(conn: Connection, lock_id: int, waiter: UUID, expires_at: datetime) -> bool:
    """Take such a wish back; False if its owner asked again."""
    params = {"lock_id": lock_id, "waiter": waiter, "expires_at": expires_at}
    return conn.execute(_FORGET, params).rowcount == 1


def signs_of_life(conn: Connection, run_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
    """What the ledger knows of these Dagster runs: ``last_sign``, ``lost_at`` and ``claims_live``; nothing of
    those that never claimed a job."""
    rows = conn.execute(_SIGNS, {"run_ids": list(run_ids)}).fetchall()
    return {row["dagster_run_id"]: row for row in rows}
