"""Requests of people in the Dagster UI, as the ledger keeps them: ``scm.dagster_requests``.

Belongs here: which requests were taken over, and their jobs when Dagster is done with them. The jobs of a
request have the trigger ``ui`` and name the request in their reason. Does not belong here: reading Dagster's
records (:mod:`sync_pipeline.orchestration.ui_requests`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from sync_pipeline.model import JobRequest
from sync_pipeline.store.database import Connection
from sync_pipeline.store.windows import range_params

# Of these requests, and of all that are open: what this pool has taken over so far.
_KNOWN = """
SELECT request_id, kind, requested_at, actor, job_count, skipped_count, assets_done, complete, status,
       ended_at IS NOT NULL AS ended
  FROM scm.dagster_requests
 WHERE pool = %(pool)s AND (ended_at IS NULL OR request_id = ANY (%(request_ids)s))
"""

_PUT = """
INSERT INTO scm.dagster_requests
       (request_id, pool, kind, requested_at, actor, job_count, skipped_count, assets_done, complete, status,
        ended_at)
VALUES (%(request_id)s, %(pool)s, %(kind)s, %(requested_at)s, %(actor)s, %(job_count)s, %(skipped_count)s,
        %(assets_done)s, %(complete)s, %(status)s, CASE WHEN %(ended)s THEN clock_timestamp() END)
ON CONFLICT (request_id, pool) DO UPDATE
   SET job_count = EXCLUDED.job_count, skipped_count = EXCLUDED.skipped_count,
       assets_done = EXCLUDED.assets_done, complete = EXCLUDED.complete, status = EXCLUDED.status,
       ended_at = EXCLUDED.ended_at
"""

# Dagster makes runs for these jobs now, so the plan leaves them alone for a while.
_DISPATCHED = """
UPDATE scm.sync_jobs SET planned_at = clock_timestamp()
 WHERE job_id = ANY (%(job_ids)s) AND status = 'pending' AND planned_at IS NULL
"""

# Dagster does no more for them: the plan starts what waits.
_UNDISPATCH = """
UPDATE scm.sync_jobs SET planned_at = NULL
 WHERE trigger = 'ui' AND reason = %(reason)s AND status IN ('pending', 'failed')
"""

# What is left of a request that its runs have done, or that its person took back.
_GIVE_UP = """
UPDATE scm.sync_jobs
   SET status = 'dead', finished_at = now(), planned_at = NULL, updated_at = now(),
       last_error_code = %(code)s, last_error = %(error)s
 WHERE trigger = 'ui' AND reason = %(reason)s AND status IN ('pending', 'failed')
"""

# Whether completed jobs of a request hold all of a window; Dagster's runs may have cut it otherwise.
_IS_DONE = """
SELECT coalesce(range_agg(revs) @> %(revs)s::int8range, range_agg(period) @> %(period)s::tstzrange, FALSE)
       AS done
  FROM scm.sync_jobs
 WHERE repo_id = %(repo_id)s AND job_type = %(job_type)s AND mode = %(mode)s AND status = 'completed'
   AND trigger = 'ui' AND reason = %(reason)s
"""

# Jobs of people whose latest attempt ended with its run. A job that a person has dropped since, or whose
# repository was retired, has another error than that attempt. Only Dagster knows who ended the run.
_PUT_DOWN = """
SELECT j.job_id, j.dagster_run_id
  FROM scm.sync_jobs AS j
 WHERE j.status = 'dead' AND j.last_error_code = 'cancelled' AND j.trigger = 'ui'
   AND j.dagster_run_id IS NOT NULL AND NOT j.from_raw AND j.quarantine_ids IS NULL AND j.mode <> 'probe'
   AND j.finished_at > clock_timestamp() - %(lately)s
   AND EXISTS (
       SELECT FROM scm.sync_runs AS r
        WHERE r.job_id = j.job_id AND r.attempt = j.attempts AND r.status = 'interrupted'
          AND r.error = j.last_error)
   AND NOT EXISTS (
       SELECT FROM scm.dagster_requests AS q
        WHERE q.kind = 'backfill' AND q.status = 'CANCELED' AND j.reason = 'backfill ' || q.request_id)
 ORDER BY j.finished_at DESC
 LIMIT %(limit)s
"""

# No person stopped these jobs: they wait again and have an attempt left. Not so where the same work waits or
# was asked for again.
_REVIVE = """
UPDATE scm.sync_jobs AS j
   SET status = 'pending', finished_at = NULL, not_before = NULL, planned_at = NULL, updated_at = now(),
       max_attempts = greatest(max_attempts, attempts + 1)
 WHERE j.job_id = ANY (%(job_ids)s) AND j.status = 'dead' AND j.last_error_code = 'cancelled'
   AND NOT EXISTS (
       SELECT FROM scm.sync_jobs AS other
        WHERE other.repo_id = j.repo_id AND other.job_type = j.job_type AND other.mode = j.mode
          AND other.revs IS NOT DISTINCT FROM j.revs AND other.period IS NOT DISTINCT FROM j.period
          AND other.job_id <> j.job_id
          AND (other.created_at > j.created_at OR other.status IN ('pending', 'running', 'failed')))
"""


@dataclass(frozen=True, slots=True)
class Request:
    """A request that the ledger takes over. ``requested_at`` is Dagster's time (UTC), ``status`` Dagster's
    word. ``job_count`` jobs were made so far for its first ``assets_done`` assets; ``skipped_count`` of their
    partitions have none. With ``ended`` Dagster does no more for it."""

    request_id: str
    kind: str
    requested_at: datetime
    actor: str
    status: str
    job_count: int = 0
    skipped_count: int = 0
    assets_done: int = 0
    complete: bool = False
    ended: bool = False


def known(conn: Connection, pool: str, request_ids: Collection[str]) -> dict[str, Request]:
    """Those of ``request_ids`` that this pool knows, and all that it has open, by id."""
    rows = conn.execute(_KNOWN, {"pool": pool, "request_ids": list(request_ids)}).fetchall()
    return {row["request_id"]: Request(**row) for row in rows}


def put(conn: Connection, pool: str, request: Request) -> None:
    """Write down how far the ledger has taken a request over."""
    conn.execute(_PUT, asdict(request) | {"pool": pool})


def dispatched(conn: Connection, job_ids: Sequence[UUID]) -> None:
    """Leave these jobs to the runs that Dagster makes for them."""
    conn.execute(_DISPATCHED, {"job_ids": list(job_ids)})


def undispatch(conn: Connection, reason: str) -> int:
    """Let the plan start what waits of the request with this reason; returns how many jobs."""
    return conn.execute(_UNDISPATCH, {"reason": reason}).rowcount


def give_up(conn: Connection, reason: str, *, code: str, error: str) -> int:
    """End what waits of the request with this reason; returns how many jobs."""
    return conn.execute(_GIVE_UP, {"reason": reason, "code": code, "error": error}).rowcount


def is_done(conn: Connection, request: JobRequest) -> bool:
    """True if completed jobs of the same request hold all of its window."""
    params: dict[str, Any] = {
        "repo_id": request.repo_id,
        "job_type": str(request.job_type),
        "mode": str(request.mode),
        "reason": request.reason,
    }
    row = conn.execute(_IS_DONE, params | range_params(request.window)).fetchone()
    return row is not None and bool(row["done"])


def put_down(conn: Connection, lately: timedelta, limit: int) -> dict[UUID, str]:
    """Jobs of people that ended with their run, newest first, with the id of that Dagster run."""
    rows = conn.execute(_PUT_DOWN, {"lately": lately, "limit": limit})
    return {row["job_id"]: row["dagster_run_id"] for row in rows}


def revive(conn: Connection, job_ids: Collection[UUID]) -> int:
    """Let jobs wait again that no person stopped; returns how many."""
    return conn.execute(_REVIVE, {"job_ids": list(job_ids)}).rowcount
