"""Read the ledger, make a plan, and write the jobs that it starts to the ledger.

Belongs here: the step between the stored facts and the pure policy, for both planners: the sensor of a code
location, and ``scm-sync scheduler``. Does not belong here: any rule (:mod:`sync_pipeline.policy`), and
starting runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, time, timedelta
from typing import Any
from uuid import UUID

from sync_pipeline.core.formatting import counted
from sync_pipeline.core.model import (
    BreakerState,
    JobRequest,
    JobType,
    Kind,
    Mode,
    Trigger,
)
from sync_pipeline.database import migrations
from sync_pipeline.database.pool import Connection, Database
from sync_pipeline.database.rows import read_row
from sync_pipeline.ledger import breakers, heartbeats, jobs, pauses
from sync_pipeline.ledger import planning as store
from sync_pipeline.ledger.pools import DEFAULT_POOL
from sync_pipeline.policy.breaker import Breaker, BreakerLimits
from sync_pipeline.policy.degradation import DegradationLimits
from sync_pipeline.policy.planning import plan
from sync_pipeline.policy.samples import Rates, Sample
from sync_pipeline.policy.snapshot import (
    MAY_NOT_START,
    NO_ROOM,
    AssetState,
    BucketLevel,
    Caps,
    Decision,
    InFlight,
    Job,
    Pause,
    Plan,
    PlanningLimits,
    Snapshot,
)
from sync_pipeline.scheduling import credentials
from sync_pipeline.scheduling.credentials import Credentials
from sync_pipeline.settings import Settings
from sync_pipeline.sync import configuration
from sync_pipeline.sync.readers import Readers

ACTOR = "scheduler"
"""The actor of jobs that the plan starts."""

LOOP = "scheduler_loop"
"""Name of the heartbeat of ``scm-sync scheduler``."""

WORKER = "worker"
"""Name of the heartbeat of the workers of the default pool."""

_REPROBE = timedelta(hours=1)
# Dispatched jobs wait this long for a worker that is being started, for example by cron.
_TO_BE_TAKEN = timedelta(minutes=1)
# Seconds that a pool waits for the scheduler of another pool, which plans other work.
_PATIENCE = 2.0
# An error budget looks further back than a breaker with a short window.
_MIN_LOOKBACK = 3600.0
# Newest runs to read for each run that counts, because some runs are no evidence.
_FOR_ONE_THAT_COUNTS = 5


def limits_of(settings: Settings) -> PlanningLimits:
    """The limits of the policy, by the settings."""
    return PlanningLimits(
        sync_interval=timedelta(seconds=settings.scheduler.sync_interval_seconds),
        # Hints that show nothing new are no proof. So a visit comes well before the asset is stale.
        quiet_interval=timedelta(
            seconds=max(settings.scheduler.sync_interval_seconds, settings.scheduler.stale_after_seconds / 2)
        ),
        reprobe_interval=_REPROBE,
        caps=Caps(
            running=settings.scheduler.max_running,
            queued=settings.scheduler.global_concurrency,
            per_scan=settings.scheduler.max_enqueue_per_scan,
            per_instance=settings.scheduler.per_instance_concurrency,
            per_tenant=settings.scheduler.per_tenant_concurrency,
            history=settings.scheduler.backfill_max_concurrent_jobs,
        ),
        error_budget=settings.scheduler.error_budget_threshold,
        budget_pause=timedelta(seconds=settings.scheduler.pause_duration_seconds),
        slow_down=settings.scheduler.rate_limit_threshold,
        fair=settings.scheduler.enable_tenant_fairness,
        per_round=settings.scheduler.tenant_fairness_max_per_round,
        breaker=read_row(
            BreakerLimits,
            settings.breaker.model_dump(),
            alpha=settings.breaker.smoothing_alpha if settings.breaker.enable_smoothing else 1.0,
            window=timedelta(minutes=settings.breaker.window_minutes),
            open_for=timedelta(seconds=settings.breaker.open_duration_seconds),
        ),
        degradation=read_row(DegradationLimits, settings.degradation.model_dump()),
        open_backfill=timedelta(seconds=settings.breaker.backfill_interval_seconds)
        if settings.breaker.backfill_only_mode
        else None,
        probes_per_scan=settings.breaker.probe_budget_per_interval,
        probe_job_types=frozenset(JobType(name) for name in settings.breaker.probe_job_types_allowlist),
        degraded_batch=settings.breaker.degraded_batch_size,
        degraded_window=settings.breaker.degraded_forward_window_seconds,
        only=frozenset(JobType(name) for name in settings.scheduler.mvp_job_type_allowlist)
        if settings.scheduler.mvp_mode_enabled
        else frozenset(),
        switched_on=settings.scheduler.enabled,
        longest_backfill=timedelta(hours=settings.scheduler.max_backfill_window_hours),
    )


def read_plan(
    conn: Connection,
    settings: Settings,
    in_flight: Sequence[InFlight],
    tokens: Credentials,
    loaded: Collection[int] | None = None,
) -> tuple[Plan, datetime]:
    """The plan for due work by the database's clock, and that time. Reads only.

    ``in_flight`` are the Dagster runs that the ledger does not know. ``loaded`` are the repositories that the
    caller can start; None: all.
    """
    limits = limits_of(settings)
    lookback = max(settings.breaker.window_minutes * 60, _MIN_LOOKBACK)
    rows = store.snapshot(
        conn,
        sample_seconds=lookback,
        newest=_FOR_ONE_THAT_COUNTS * settings.breaker.window_count,
        burst=float(settings.rate_limit.burst),
    )
    workers = {one.name for one in heartbeats.read(conn) if one.every is not None and not one.silent}
    found = plan(
        Snapshot(
            assets=[_unit(row, tokens, settings, loaded) for row in rows.assets],
            jobs=[_job(row, workers, rows.now) for row in rows.jobs],
            in_flight=in_flight,
            limits=limits,
            refused={instance: stop.last_seen_at for instance, stop in tokens.stopped.items()},
            refused_since={instance: stop.stopped_at for instance, stop in tokens.stopped.items()},
            pauses=[read_row(Pause, row) for row in pauses.active(conn)],
            breakers=[_breaker(row) for row in breakers.read(conn)],
            samples=[read_row(Sample, row) for row in rows.samples],
            served=rows.served,
            buckets={
                row["instance"]: BucketLevel(level=row["level"], paused_until=row["paused_until"])
                for row in rows.buckets
            },
            pool=settings.worker.pool,
            history_start=None
            if rows.history_start is None
            else datetime.combine(rows.history_start, time.min, tzinfo=UTC),
        ),
        rows.now,
    )
    return found, rows.now


@dataclass(frozen=True, slots=True)
class Round:
    """One round of planning: ``started`` was dispatched to the workers, unless ``dry_run``. ``skipped`` is
    the reason why there is no plan; None: there is one. ``now`` is the database's clock."""

    dry_run: bool
    plan: Plan | None
    now: datetime | None
    started: Sequence[Decision]
    skipped: str | None = None

    def summary(self) -> str:
        """The round in one line."""
        if self.plan is None:
            return str(self.skipped)
        done = "would be dispatched" if self.dry_run else "dispatched"
        return f"{counted(len(self.started), 'job')} {done}; {blockers_text(self.plan)}"


def dispatch(database: Database, settings: Settings, *, dry_run: bool = False) -> Round:
    """Plan, and dispatch the chosen jobs to the workers, which poll the ledger. Other schedulers may run
    beside it: only one plans at a time, and a job has one owner."""
    with database.connection() as conn, conn.transaction():
        migrations.require_current(conn)
        patience = 0.0 if settings.worker.pool == DEFAULT_POOL else _PATIENCE
        # A dry run needs no lock.
        if not dry_run and not store.try_lock_scheduler(conn, patience):
            return Round(dry_run, None, None, (), "another scheduler is at work")
        tokens = credentials.in_force(conn, Readers(settings))
        plan, now = read_plan(conn, settings, (), tokens)
        started = [d for d in plan.decisions if d.chosen]
        if not dry_run:
            record(conn, plan, started, settings, now, trigger=Trigger.WORKER, dispatched=True)
    return Round(dry_run, plan, now, started)


def blockers_text(plan: Plan) -> str:
    """The reasons why due jobs were not started, with their counts, in one line."""
    due = Counter(str(d.reason) for d in plan.decisions if d.reason in NO_ROOM | MAY_NOT_START)
    if not due:
        return f"nothing else is due among {len(plan.decisions)}"
    return "held back: " + ", ".join(f"{count} {reason}" for reason, count in sorted(due.items()))


def document(found: Round, settings: Settings, names: Mapping[int, str]) -> dict[str, Any]:
    """A round as the document of ``--json``: every decision with its reason. ``names`` are the
    specifications of the repositories."""
    if found.plan is None:
        return {"dry_run": found.dry_run, "skipped": found.skipped, "started": 0, "decisions": []}
    assert found.now is not None
    return {
        "dry_run": found.dry_run,
        "skipped": None,
        "now": found.now,
        "pool": settings.worker.pool,
        "started": len(found.started),
        "running": found.plan.usage.running,
        "queued": found.plan.usage.queued,
        "caps": asdict(limits_of(settings).caps),
        "breakers": [
            {"scope": str(b.scope), "key": b.key, "state": str(b.state), "reason": b.reason}
            for b in found.plan.breakers
        ],
        "decisions": [
            {
                "repo": names.get(d.repo_id, str(d.repo_id)),
                "job": str(d.job_type),
                "mode": str(d.mode),
                "window": None if d.window is None else str(d.window),
                "rest": None if d.rest is None else str(d.rest),
                "job_id": None if d.job_id is None else str(d.job_id),
                "only_deferred": d.only_deferred,
                "chosen": d.chosen,
                "reason": str(d.reason),
                "detail": d.detail,
                "since": d.since,
                "until": d.until,
                "priority": d.priority,
                "rank": d.rank,
                "instance": d.instance,
                "tenant": d.tenant,
                "failure_rate": round(d.failure_rate, 4),
                "rate_limit_rate": round(d.rate_limit_rate, 4),
                "breaker": str(d.breaker),
            }
            for d in found.plan.decisions
        ],
    }


def serves(settings: Settings, instance: str, tenant: str, job_type: JobType) -> bool:
    """True if the worker pool of these settings accepts jobs of this server, tenant and job type."""
    return all(
        not allowed or value in allowed
        for allowed, value in (
            (settings.worker.instance_allowlist, instance),
            (settings.worker.tenant_allowlist, tenant),
            (settings.worker.job_type_allowlist, str(job_type)),
        )
    )


def record(
    conn: Connection,
    plan: Plan,
    started: Iterable[Decision],
    settings: Settings,
    now: datetime,
    *,
    trigger: Trigger,
    dispatched: bool = False,
) -> None:
    """Record the results of a plan: new jobs, the reason and the error budget of each job, the breakers, and
    the served tenants. ``dispatched``: workers take the jobs from the ledger. Call it in the transaction of
    the plan.
    """
    for breaker in plan.breakers:
        breakers.save(conn, _breaker_row(breaker), actor=ACTOR)
        if breaker.state is BreakerState.OPEN:
            store.undispatch_blocked(conn, str(breaker.scope), breaker.key)
    decisions: dict[UUID, Mapping[str, Any]] = {}
    tenants = set()
    config_hash = configuration.keep(conn, settings)
    for decision in started:
        job_id: UUID | None
        if decision.job_id and decision.window and decision.rest:
            job_id = jobs.cut(conn, decision.job_id, decision.window, decision.rest)
            if job_id is None:
                continue  # Another process works on it, its window changed, or other work has a part of it.
        else:
            job_id = decision.job_id or jobs.enqueue(
                conn,
                JobRequest(
                    repo_id=decision.repo_id,
                    job_type=decision.job_type,
                    mode=decision.mode,
                    trigger=trigger,
                    actor=ACTOR,
                    reason=str(decision.reason),
                    priority=decision.priority,
                    only_deferred=decision.only_deferred,
                ),
                max_attempts=settings.jobs.max_attempts,
                config_hash=config_hash,
            )
        decisions[job_id] = explained(decision, plan, settings, now)
        if decision.mode is Mode.INCREMENTAL:
            tenants.add(decision.tenant)
    if decisions:
        store.decided(conn, decisions, dispatched=dispatched)
        store.serve(conn, tenants)


def explained(decision: Decision, plan: Plan, settings: Settings, now: datetime) -> dict[str, Any]:
    """Everything that led to a decision, as it is stored with the job."""
    sizes = decision.sizes
    return {
        "reason": str(decision.reason),
        "dispatch": decision.dispatch,
        **({} if decision.rest is None else {"rest": str(decision.rest)}),
        "dispatched_at": now.isoformat(),
        "instance": decision.instance,
        "tenant": decision.tenant,
        "pool": settings.worker.pool,
        "priority": decision.priority,
        "rank": decision.rank,
        "waiting_since": decision.since.isoformat(),
        "failure_rate": round(decision.failure_rate, 4),
        "rate_limit_rate": round(decision.rate_limit_rate, 4),
        "breaker": str(decision.breaker),
        "sizes": None
        if sizes is None
        else {
            "share": round(sizes.share, 4),
            "batch": sizes.batch,
            "window_seconds": sizes.window,
            "diff_mode": str(sizes.diff_mode),
            "reasons": list(sizes.reasons),
        },
        "budget": {
            "running": plan.usage.running,
            "queued": plan.usage.queued,
            "started": plan.usage.started,
            "instance": plan.usage.by_instance.get(decision.instance, 0),
            "tenant": plan.usage.by_tenant.get(decision.tenant, 0),
            "caps": asdict(limits_of(settings).caps),
        },
    }


def _unit(
    row: Mapping[str, Any], tokens: Credentials, settings: Settings, loaded: Collection[int] | None
) -> AssetState:
    job_type = JobType(row["job_type"])
    return read_row(
        AssetState,
        row,
        configured=row["kind"] == Kind.SVN or tokens.has_token(row["instance"]),
        # A repository that was registered a moment ago is not loaded yet.
        in_pool=(loaded is None or row["repo_id"] in loaded)
        and serves(settings, row["instance"], row["tenant"], job_type),
    )


def _job(row: Mapping[str, Any], workers: Collection[str], now: datetime) -> Job:
    """A job of the snapshot. If no worker of its pool lives, it counts as not dispatched, because otherwise
    no process would do it."""
    pool, at = row["pool"] or DEFAULT_POOL, row["dispatched_at"]
    if at and at < now - _TO_BE_TAKEN and heartbeats.named(WORKER, pool) not in workers:
        at = None
    return read_row(Job, row, dispatched_at=at)


def _breaker(row: breakers.BreakerRow) -> Breaker:
    rates = Rates(row.failure_rate, row.rate_limit_rate, row.timeout_rate, row.samples)
    return read_row(Breaker, row, rates=rates, successes=row.half_open_successes)


def _breaker_row(breaker: Breaker) -> breakers.BreakerRow:
    return read_row(
        breakers.BreakerRow,
        breaker,
        failure_rate=breaker.rates.failure,
        rate_limit_rate=breaker.rates.rate_limit,
        timeout_rate=breaker.rates.timeout,
        samples=breaker.rates.samples,
        half_open_successes=breaker.successes,
    )
