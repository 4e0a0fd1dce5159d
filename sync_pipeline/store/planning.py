"""What the plan is made from, the hints that feed it, and the locks that make two planners harmless.

Belongs here: the snapshot queries over catalog, coverage, hints and ledger, what a plan leaves behind, the
jobs of one planned run, ``scm.sync_hints``, and what the changes sensor listed of a discovery root. Does not
belong here: any decision; that is :mod:`sync_pipeline.policy`.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from sync_pipeline.model import JobRequest, JobType, Mode, Trigger, Window
from sync_pipeline.store.database import Connection
from sync_pipeline.store.windows import from_ranges, range_params

_SCHEDULER_LOCK = 0x5C3_0001
_BLOCKS_LOCK = 0x5C3_0002
# A plan looks at about so many waiting jobs; a long backlog must not make ticks slow. They are shared out
# evenly, at least one to each that has any, so that the backlog of one hides nobody else's.
_JOBS_LOOKED_AT = 4000
_SAMPLES_LOOKED_AT = 20_000

# Every (repository, job type) with its coverage, its hint, and whether its latest incremental job is dead,
# and since when. A job that ended because of a refused token is not counted: the stop of the token holds it
# back.
_UNITS = """
SELECT w.repo_id, w.job_type, r.kind, r.instance, r.instance_slug, r.tenant, r.lifecycle, w.access,
       w.visited_at, w.watermark_rev, w.watermark_time, w.head_rev AS head, w.activity_at,
       h.head_rev AS hint_head, h.activity_at AS hint_activity_at, h.observed_at AS hint_at,
       h.error_code IS NOT NULL AS hint_failed, d.listed_at, d.listed_down_to,
       w.access_since,
       CASE WHEN latest.is_dead THEN latest.finished_at END AS dead_at,
       CASE WHEN latest.is_dead THEN (
            SELECT min(j.finished_at)
              FROM scm.sync_jobs AS j
             WHERE j.repo_id = w.repo_id AND j.job_type = w.job_type AND j.mode = 'incremental'
               AND j.status = 'dead' AND (w.visited_at IS NULL OR j.finished_at > w.visited_at)
       ) END AS dead_since
  FROM scm.sync_watermarks AS w
  JOIN scm.repos AS r USING (repo_id)
  LEFT JOIN scm.sync_hints AS h USING (repo_id)
  LEFT JOIN scm.discovery_roots AS d ON d.root_id = r.root_id AND d.lifecycle = 'active'
  LEFT JOIN LATERAL (
       SELECT j.finished_at,
              j.status = 'dead'
              AND coalesce(j.last_error_code, '') NOT IN ('cancelled', 'credential', 'scope', 'superseded',
                                                          'expired') AS is_dead
         FROM scm.sync_jobs AS j
        WHERE j.repo_id = w.repo_id AND j.job_type = w.job_type AND j.mode = 'incremental'
        ORDER BY j.created_at DESC
        LIMIT 1) AS latest ON TRUE
 ORDER BY w.repo_id, w.job_type
"""

# Active jobs of the plan: every incremental and every running one, and of each (repository, job type) with a
# backlog the most urgent of the others that need not wait for their next attempt. Not those of one person's
# command: started from here, they would read their window at the source. Each part asks an index, because the
# backlog of a large fleet is long.
_JOBS = """
WITH backlog AS (
    SELECT w.repo_id, w.job_type
      FROM scm.sync_watermarks AS w
     CROSS JOIN LATERAL (
           SELECT 1
             FROM scm.sync_jobs AS j
            WHERE j.repo_id = w.repo_id AND j.job_type = w.job_type AND j.status IN ('pending', 'failed')
              AND j.mode NOT IN ('incremental', 'probe') AND NOT j.from_raw AND j.quarantine_ids IS NULL
            LIMIT 1) AS any_job
), share AS (
    SELECT greatest(1, %(jobs_looked_at)s / greatest(count(*), 1)) AS jobs FROM backlog
), found AS (
    SELECT j.*
      FROM scm.sync_jobs AS j
     WHERE j.status = 'running' AND j.mode <> 'probe' AND NOT j.from_raw AND j.quarantine_ids IS NULL
    UNION ALL
    SELECT j.*
      FROM scm.sync_watermarks AS w
      JOIN scm.sync_jobs AS j USING (repo_id, job_type)
     WHERE j.status IN ('pending', 'failed') AND j.mode = 'incremental'
    UNION ALL
    SELECT j.*
      FROM backlog AS b
     CROSS JOIN LATERAL (
           SELECT j.*
             FROM scm.sync_jobs AS j
            WHERE j.repo_id = b.repo_id AND j.job_type = b.job_type AND j.status IN ('pending', 'failed')
              AND j.mode NOT IN ('incremental', 'probe') AND NOT j.from_raw AND j.quarantine_ids IS NULL
              AND (j.not_before IS NULL OR j.not_before <= now())
            ORDER BY j.priority, j.created_at
            LIMIT (SELECT jobs FROM share)) AS j
)
SELECT job_id, repo_id, job_type, mode, revs, period, status, priority, attempts, not_before,
       claim_expires_at, created_at, planned_at AS dispatched_at, decision ->> 'pool' AS pool
  FROM found
"""

# Runs that finished lately: what sources did to us. The newest of each server and tenant, and all of what had
# trouble; the rest of a healthy fleet says nothing more. Comparisons are no syncing.
_SAMPLES = """
WITH lately AS (
    SELECT s.job_id, s.repo_id, s.job_type, r.instance, r.tenant, s.mode, s.started_at, s.finished_at,
           s.status, s.error_code AS code, s.calls AS requests, s.rate_limited, s.timeouts,
           row_number() OVER (PARTITION BY r.instance ORDER BY s.finished_at DESC) AS of_instance,
           row_number() OVER (PARTITION BY r.tenant ORDER BY s.finished_at DESC) AS of_tenant,
           bool_or(s.status = 'failed' OR s.rate_limited > 0 OR s.timeouts > 0)
               OVER (PARTITION BY s.repo_id, s.job_type) AS had_trouble
      FROM scm.sync_runs AS s
      JOIN scm.repos AS r USING (repo_id)
     WHERE s.status <> 'running' AND s.mode <> 'probe'
       AND s.finished_at > now() - make_interval(secs => %(seconds)s)
)
SELECT l.repo_id, l.job_type, l.instance, l.tenant, l.mode, l.started_at, l.finished_at, l.status, l.code,
       l.requests, l.rate_limited, l.timeouts, coalesce(j.decision ->> 'pool', '') AS pool
  FROM lately AS l
  JOIN scm.sync_jobs AS j USING (job_id)
 WHERE of_instance <= %(newest)s OR of_tenant <= %(newest)s OR had_trouble
 ORDER BY l.finished_at DESC
 LIMIT %(samples_looked_at)s
"""

# When live syncing of each tenant was last started, and that some was.
_SERVED = "SELECT tenant, served_at FROM scm.tenants_served"
_SERVE = """
INSERT INTO scm.tenants_served AS t (tenant, served_at)
SELECT tenant, now() FROM unnest(%(tenants)s::text[]) AS served (tenant)
ON CONFLICT (tenant) DO UPDATE SET served_at = EXCLUDED.served_at
"""

# What is left of the burst of each server's shared rate limit, from 0 to 1, and whether it is paused. The
# burst of an SVN server is another one, so only its pause counts.
_BUCKETS = """
SELECT b.instance, max(b.paused_until) AS paused_until,
       coalesce(min(left_over.share) FILTER (WHERE b.endpoint_class = 'all'), 1)::float8 AS level
  FROM scm.sync_rate_limits AS b
 CROSS JOIN LATERAL (
       SELECT greatest(0, least(1, (b.tokens + b.rate * extract(epoch FROM clock_timestamp() - b.refilled_at))
                                   / %(burst)s)) AS share) AS left_over
 WHERE b.endpoint_class IN ('all', 'svn')
 GROUP BY b.instance
"""

# Why each job was started, kept with it. ``dispatched``: to the workers that ask the ledger.
_DECIDED = """
UPDATE scm.sync_jobs AS j
   SET decision = d.decision,
       planned_at = CASE WHEN %(dispatched)s THEN clock_timestamp() ELSE j.planned_at END
  FROM unnest(%(job_ids)s::uuid[], %(decisions)s::jsonb[]) AS d (job_id, decision)
 WHERE j.job_id = d.job_id
"""

# The clock of the plan: leases, claims and visits are all written in the database's time. And the day of the
# oldest fact, NULL while there is none.
_NOW = "SELECT now() AS now, (SELECT history_start FROM scm.deployment) AS history_start"

# The jobs of a planned run: waiting or abandoned, inside the window of the run. Where the run names its
# dispatch, only those that the plan dispatched with it.
_WAITING = """
SELECT job_id, repo_id, job_type, mode, revs, period, reread, heals, priority, trigger, actor, reason
  FROM scm.sync_jobs
 WHERE repo_id = ANY (%(repo_ids)s) AND mode = %(mode)s AND NOT from_raw AND quarantine_ids IS NULL
   AND (%(dispatch)s = '' OR decision ->> 'dispatch' = %(dispatch)s)
   AND (mode = 'incremental' OR revs <@ %(revs)s::int8range OR period <@ %(period)s::tstzrange)
   AND (status = 'pending'
        OR (status = 'failed' AND (not_before IS NULL OR not_before <= now()))
        OR (status = 'running' AND claim_expires_at < now()))
 ORDER BY priority, created_at, lower(revs), lower(period)
"""

# What a plan dispatched to the workers, for a pool that takes some of it, in the order of the plan.
_DISPATCHED = """
SELECT j.job_id, j.repo_id, j.job_type, j.mode, j.revs, j.period, j.reread, j.heals, j.priority, j.trigger,
       j.actor, j.reason
  FROM scm.sync_jobs AS j
  JOIN scm.repos AS r USING (repo_id)
 WHERE j.planned_at IS NOT NULL AND NOT j.from_raw AND j.quarantine_ids IS NULL AND j.mode <> 'probe'
   AND (j.status = 'pending'
        OR (j.status = 'failed' AND (j.not_before IS NULL OR j.not_before <= now()))
        OR (j.status = 'running' AND j.claim_expires_at < now()))
   AND (%(instances)s::text[] = '{}' OR r.instance = ANY (%(instances)s))
   AND (%(tenants)s::text[] = '{}' OR r.tenant = ANY (%(tenants)s))
   AND (%(job_types)s::text[] = '{}' OR j.job_type = ANY (%(job_types)s))
   AND (r.kind <> 'gitlab' OR r.instance = ANY (%(gitlabs)s))
 ORDER BY j.planned_at, (j.decision ->> 'rank')::int, j.created_at
 LIMIT %(limit)s
"""

# What a worker could not do now.
_UNDISPATCH = """
UPDATE scm.sync_jobs
   SET planned_at = NULL
 WHERE job_id = ANY (%(job_ids)s) AND status IN ('pending', 'failed') AND planned_at IS NOT NULL
"""

# Dispatched jobs of a place that is stopped now, which no worker has claimed yet.
_UNDISPATCH_BLOCKED = """
UPDATE scm.sync_jobs AS j
   SET planned_at = NULL
  FROM scm.repos AS r
 WHERE r.repo_id = j.repo_id AND j.planned_at IS NOT NULL AND j.status IN ('pending', 'failed')
   AND (%(scope)s = 'global' OR (%(scope)s = 'instance' AND r.instance = %(key)s)
        OR (%(scope)s = 'tenant' AND r.tenant = %(key)s)
        OR (%(scope)s = 'pool' AND j.decision ->> 'pool' = %(key)s))
"""

# What the workers of a pool leave when the last one goes.
_UNREGISTER_POOL = """
UPDATE scm.sync_jobs
   SET planned_at = NULL
 WHERE planned_at IS NOT NULL AND status IN ('pending', 'failed') AND decision ->> 'pool' = %(pool)s
"""

# What the changes sensor saw. A failed look keeps the last HEAD that was seen.
_HINT = """
INSERT INTO scm.sync_hints AS h (repo_id, head_rev, error_code, error, failures, observed_at)
VALUES (%(repo_id)s, %(head_rev)s, %(error_code)s, left(%(error)s, 2000),
        (%(error_code)s::text IS NOT NULL)::int, clock_timestamp())
ON CONFLICT (repo_id) DO UPDATE
   SET head_rev = coalesce(EXCLUDED.head_rev, h.head_rev),
       error_code = EXCLUDED.error_code,
       error = EXCLUDED.error,
       failures = CASE WHEN EXCLUDED.error_code IS NULL THEN 0 ELSE h.failures + 1 END,
       observed_at = EXCLUDED.observed_at
"""

# The same for a page of GitLab projects; those that are not in the catalog, or retired, are passed over.
_ACTIVITY = """
INSERT INTO scm.sync_hints AS h (repo_id, activity_at, observed_at)
SELECT r.repo_id, seen.activity_at, clock_timestamp()
  FROM unnest(%(project_ids)s::bigint[], %(activity)s::timestamptz[]) AS seen (project_id, activity_at)
  JOIN scm.repos AS r
    ON r.kind = 'gitlab' AND r.instance = %(instance)s AND r.project_id = seen.project_id
   AND r.lifecycle = 'active'
ON CONFLICT (repo_id) DO UPDATE
   SET activity_at = EXCLUDED.activity_at, error_code = NULL, error = NULL, failures = 0,
       observed_at = EXCLUDED.observed_at
"""

# How far back in time the sensor's listing of a root went: what is not in it was not active since.
_LISTED = """
UPDATE scm.discovery_roots
   SET listed_at = clock_timestamp(), listed_down_to = %(down_to)s
 WHERE root_id = %(root_id)s
"""

# The scheduler's lock ends with its transaction, so it also works behind a transaction pooler.
_TRY_LOCK = "SELECT pg_try_advisory_xact_lock(%(lock)s) AS locked"
_LOCK = "SELECT pg_advisory_xact_lock(%(lock)s)"


@dataclass(frozen=True, slots=True)
class PlanningRows:
    """The rows of one plan. ``now`` is the database's clock. ``units`` have the columns of the first query
    above, with ``watermark`` in place of the two; ``jobs`` those of the second, with ``window`` in place of
    the two ranges; ``samples`` and ``buckets`` those of their queries. ``served`` is by tenant.
    ``history_start`` is the day of the oldest fact, None while there is none."""

    now: datetime
    assets: Sequence[dict[str, Any]]
    jobs: Sequence[dict[str, Any]]
    samples: Sequence[dict[str, Any]]
    buckets: Sequence[dict[str, Any]]
    served: Mapping[str, datetime]
    history_start: date | None


def snapshot(conn: Connection, *, sample_seconds: float, newest: int, burst: float) -> PlanningRows:
    """Everything that a plan needs to know, read at one moment: runs that finished in the last
    ``sample_seconds`` (the ``newest`` of each server and tenant, and those of what had trouble), rate limits
    against a full ``burst``."""
    with conn.transaction():
        now = conn.execute(_NOW).fetchone()
        assert now is not None
        assets = conn.execute(_UNITS).fetchall()
        jobs = conn.execute(_JOBS, {"jobs_looked_at": _JOBS_LOOKED_AT}).fetchall()
        looked_at = {
            "seconds": sample_seconds,
            "newest": newest,
            "samples_looked_at": _SAMPLES_LOOKED_AT,
        }
        samples = conn.execute(_SAMPLES, looked_at).fetchall()
        buckets = conn.execute(_BUCKETS, {"burst": burst}).fetchall()
        served = {row["tenant"]: row["served_at"] for row in conn.execute(_SERVED).fetchall()}
    for asset in assets:
        revision, moment = asset.pop("watermark_rev"), asset.pop("watermark_time")
        asset["watermark"] = moment if revision is None else revision
    for job in jobs:
        job["window"] = from_ranges(job.pop("revs"), job.pop("period"))
    return PlanningRows(now["now"], assets, jobs, samples, buckets, served, now["history_start"])


def serve(conn: Connection, tenants: Collection[str]) -> None:
    """Write down that live syncing of each of these tenants was started now."""
    conn.execute(_SERVE, {"tenants": sorted(tenants)})


def decided(conn: Connection, decisions: Mapping[UUID, Mapping[str, Any]], *, dispatched: bool) -> None:
    """Keep with each job why it was started; ``dispatched`` where workers take it from the ledger."""
    params = {
        "job_ids": list(decisions),
        "decisions": [Jsonb(decision) for decision in decisions.values()],
        "dispatched": dispatched,
    }
    conn.execute(_DECIDED, params)


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
    return [_request(row, dagster_run_id) for row in conn.execute(_WAITING, params).fetchall()]


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
    first. Only jobs of these servers, tenants and job types, where any are given, and of no GitLab but
    ``gitlabs``: those that the worker has a token for."""
    params = {
        "instances": list(instances),
        "tenants": list(tenants),
        "job_types": [str(job_type) for job_type in job_types],
        "gitlabs": list(gitlabs),
        "limit": limit,
    }
    return [_request(row, None) for row in conn.execute(_DISPATCHED, params).fetchall()]


def undispatch(conn: Connection, job_ids: Sequence[UUID]) -> None:
    """Dispatch these jobs no longer; a later plan may."""
    conn.execute(_UNDISPATCH, {"job_ids": list(job_ids)})


def undispatch_blocked(conn: Connection, scope: str, key: str) -> None:
    """Dispatch unclaimed jobs no longer: those of a server (scope ``instance``), a tenant, a pool or all
    (``global``)."""
    conn.execute(_UNDISPATCH_BLOCKED, {"scope": scope, "key": key})


def unregister_pool(conn: Connection, pool: str) -> None:
    """Dispatch unclaimed jobs of the workers of ``pool`` no longer."""
    conn.execute(_UNREGISTER_POOL, {"pool": pool})


def _request(row: Mapping[str, Any], dagster_run_id: str | None) -> JobRequest:
    return JobRequest(
        repo_id=row["repo_id"],
        job_type=JobType(row["job_type"]),
        mode=Mode(row["mode"]),
        trigger=Trigger(row["trigger"]),
        actor=row["actor"],
        reason=row["reason"],
        window=from_ranges(row["revs"], row["period"]),
        job_id=row["job_id"],
        dagster_run_id=dagster_run_id,
        reread=row["reread"],
        only_differences=row["heals"],
        priority=row["priority"],
    )


def record_hint(
    conn: Connection,
    repo_id: int,
    *,
    head_rev: int | None,
    error_code: str | None = None,
    error: str | None = None,
) -> None:
    """Write down what a quick look at a repository showed."""
    conn.execute(_HINT, {"repo_id": repo_id, "head_rev": head_rev, "error_code": error_code, "error": error})


def record_activity(conn: Connection, instance: str, activity: Mapping[int, datetime]) -> int:
    """Write down the last activity of projects, by their number at the server ``instance``; returns how many
    of them are in the catalog."""
    params = {
        "instance": instance,
        "project_ids": list(activity),
        "activity": list(activity.values()),
    }
    return conn.execute(_ACTIVITY, params).rowcount


def record_listing(conn: Connection, root_id: int, down_to: datetime | None) -> None:
    """Write down that the newest activity of a root was listed, back to ``down_to`` in the server's time;
    None if the listing was the whole root."""
    conn.execute(_LISTED, {"root_id": root_id, "down_to": down_to})


def try_lock_scheduler(conn: Connection, patience: float = 0.0) -> bool:
    """Be the only scheduler until the caller's transaction ends; False if another one is at work, also after
    ``patience`` seconds."""
    deadline = time.monotonic() + patience
    while True:
        row = conn.execute(_TRY_LOCK, {"lock": _SCHEDULER_LOCK}).fetchone()
        if row and row["locked"]:
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.1)


def lock_blocks(conn: Connection) -> None:
    """Be the only one who appends revision blocks until the caller's transaction ends."""
    conn.execute(_LOCK, {"lock": _BLOCKS_LOCK})
