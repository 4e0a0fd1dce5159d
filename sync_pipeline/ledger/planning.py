"""Reads what the plan needs, stores hints, and holds the locks that make two planners harmless.

Belongs here: the snapshot queries over catalog, coverage, hints and ledger, the results of a plan, and the
jobs of one planned run. Also ``scm.change_hints``, and how far the changes sensor listed a discovery root.
Does not belong here: any decision (:mod:`sync_pipeline.policy`).
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from sync_pipeline.core.model import JobRequest, Mode, Window
from sync_pipeline.database.pool import Connection
from sync_pipeline.database.queries import queries
from sync_pipeline.database.ranges import from_ranges, range_params
from sync_pipeline.database.rows import mark_of, only_row, only_value, read_row

_SCHEDULER_LOCK = 0x5C3_0001
_BLOCKS_LOCK = 0x5C3_0002
_RESYNC_LOCK = 0x5C3_0007
# A plan looks at about so many waiting jobs; a long backlog must not make ticks slow. They are shared out
# evenly, at least one to each that has any, so that the backlog of one hides no other.
_MAX_JOBS_READ = 4000
_MAX_SAMPLES_READ = 20_000


_SQL = queries("planning")


@dataclass(frozen=True, slots=True)
class PlanningRows:
    """The rows of one plan. ``now`` is the database's clock. ``units`` have the columns of the first query
    above, with ``watermark`` instead of the two columns. ``jobs`` have those of the second, with ``window``
    instead of the two ranges. ``samples`` and ``buckets`` have those of their queries. ``served`` is by
    tenant. ``history_start`` is the day of the oldest fact, None while there is none.
    """

    now: datetime
    assets: Sequence[dict[str, Any]]
    jobs: Sequence[dict[str, Any]]
    samples: Sequence[dict[str, Any]]
    buckets: Sequence[dict[str, Any]]
    served: Mapping[str, datetime]
    history_start: date | None


def snapshot(conn: Connection, *, sample_seconds: float, newest: int, burst: float) -> PlanningRows:
    """The input of a plan, read in one snapshot.

    It has the runs that finished in the last ``sample_seconds``: the ``newest`` of each server and tenant,
    and those with failures. Rate limits are relative to a full ``burst``.
    """
    with conn.transaction():
        now = only_row(conn.execute(_SQL["now"]))
        assets = conn.execute(_SQL["units"]).fetchall()
        jobs = conn.execute(_SQL["jobs"], {"jobs_looked_at": _MAX_JOBS_READ}).fetchall()
        looked_at = {
            "seconds": sample_seconds,
            "newest": newest,
            "samples_looked_at": _MAX_SAMPLES_READ,
        }
        samples = conn.execute(_SQL["samples"], looked_at).fetchall()
        buckets = conn.execute(_SQL["buckets"], {"burst": burst}).fetchall()
        served = {row["tenant"]: row["served_at"] for row in conn.execute(_SQL["served"]).fetchall()}
    for asset in assets:
        asset["watermark"] = mark_of(asset, "watermark")
    for job in jobs:
        job["window"] = from_ranges(job["revs"], job["period"])
    return PlanningRows(now["now"], assets, jobs, samples, buckets, served, now["history_start"])


def serve(conn: Connection, tenants: Collection[str]) -> None:
    """Write down that live syncing of each of these tenants was started now."""
    conn.execute(_SQL["record_served"], {"tenants": sorted(tenants)})


def decided(conn: Connection, decisions: Mapping[UUID, Mapping[str, Any]], *, dispatched: bool) -> None:
    """Keep with each job why it was started; ``dispatched`` where workers take it from the ledger."""
    params = {
        "job_ids": list(decisions),
        "decisions": [Jsonb(decision) for decision in decisions.values()],
        "dispatched": dispatched,
    }
    conn.execute(_SQL["decided"], params)


def waiting_requests(
    conn: Connection,
    *,
    repo_ids: Sequence[int],
    mode: Mode,
    window: Window | None,
    dispatch: str = "",
    dagster_run_id: str | None = None,
) -> list[JobRequest]:
    """The waiting or abandoned jobs of these repositories inside ``window``, as requests by their ids, most
    urgent first. With ``dispatch`` only those that a plan dispatched under this name."""
    params = {"repo_ids": list(repo_ids), "mode": str(mode), "dispatch": dispatch} | range_params(window)
    return [_request(row, dagster_run_id) for row in conn.execute(_SQL["waiting"], params).fetchall()]


def dispatched_requests(
    conn: Connection,
    *,
    instances: Sequence[str],
    tenants: Sequence[str],
    job_types: Sequence[str],
    gitlabs: Sequence[str],
    limit: int,
) -> list[JobRequest]:
    """The jobs that a plan dispatched and no worker has claimed yet, as requests by their ids, most urgent
    first. Only jobs of these servers, tenants and job types, if any are given. Of GitLab only those of
    ``gitlabs``, for which the worker has a token.
    """
    params = {
        "instances": list(instances),
        "tenants": list(tenants),
        "job_types": [str(job_type) for job_type in job_types],
        "gitlabs": list(gitlabs),
        "limit": limit,
    }
    return [_request(row, None) for row in conn.execute(_SQL["dispatched"], params).fetchall()]


def others_wait(conn: Connection, instance: str, seconds: float) -> bool:
    """True if a job of the server, other than a completion job, could run and has waited for ``seconds``."""
    return bool(only_value(conn.execute(_SQL["others_wait"], {"instance": instance, "seconds": seconds})))


def undispatch(conn: Connection, job_ids: Sequence[UUID]) -> None:
    """Dispatch these jobs no longer; a later plan may."""
    conn.execute(_SQL["undispatch"], {"job_ids": list(job_ids)})


def undispatch_blocked(conn: Connection, scope: str, key: str) -> None:
    """Dispatch unclaimed jobs no longer: those of a server (scope ``instance``), a tenant, a pool or all
    (``global``)."""
    conn.execute(_SQL["undispatch_blocked"], {"scope": scope, "key": key})


def unregister_pool(conn: Connection, pool: str) -> None:
    """Dispatch unclaimed jobs of the workers of ``pool`` no longer."""
    conn.execute(_SQL["unregister_pool"], {"pool": pool})


def _request(row: Mapping[str, Any], dagster_run_id: str | None) -> JobRequest:
    window = from_ranges(row["revs"], row["period"])
    return read_row(JobRequest, row, window=window, dagster_run_id=dagster_run_id)


def record_hint(
    conn: Connection,
    repo_id: int,
    *,
    head_rev: int | None,
    error_code: str | None = None,
    error: str | None = None,
) -> None:
    """Write down what a quick look at a repository showed."""
    conn.execute(
        _SQL["hint"], {"repo_id": repo_id, "head_rev": head_rev, "error_code": error_code, "error": error}
    )


def record_activity(conn: Connection, instance: str, activity: Mapping[int, datetime]) -> int:
    """Write down the last activity of projects, by their number at the server ``instance``; returns how many
    of them are in the catalog."""
    params = {
        "instance": instance,
        "project_ids": list(activity),
        "activity": list(activity.values()),
    }
    return conn.execute(_SQL["activity"], params).rowcount


def record_listing(conn: Connection, root_id: int, down_to: datetime | None) -> None:
    """Record that the newest activity of a root was listed, back to ``down_to`` in the server's time; None if
    the listing was the whole root.
    """
    conn.execute(_SQL["listed"], {"root_id": root_id, "down_to": down_to})


def try_lock_scheduler(conn: Connection, patience: float = 0.0) -> bool:
    """Be the only scheduler until the caller's transaction ends; False if another one is at work, also after
    ``patience`` seconds."""
    deadline = time.monotonic() + patience
    while True:
        row = conn.execute(_SQL["try_lock"], {"lock": _SCHEDULER_LOCK}).fetchone()
        if row and row["locked"]:
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.1)


def lock_blocks(conn: Connection) -> None:
    """Be the only one who appends revision blocks until the caller's transaction ends."""
    conn.execute(_SQL["lock"], {"lock": _BLOCKS_LOCK})


def resync_assets(conn: Connection, reason: str, look_back: float) -> list[dict[str, Any]]:
    """The rows of every asset that may be read again, with its ``watermark``. They cover the runs of the last
    ``look_back`` seconds, and a day more."""
    rows = conn.execute(_SQL["resync_units"], {"reason": reason, "look_back": look_back}).fetchall()
    return [row | {"watermark": mark_of(row, "watermark")} for row in rows]


def lock_resync(conn: Connection) -> None:
    """Be the only one who decides what is read again until the caller's transaction ends."""
    conn.execute(_SQL["lock_resync"], {"lock": _RESYNC_LOCK})
