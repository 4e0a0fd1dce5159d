"""Which jobs to start now, for each asset, and why.

Belongs here: the pure decision over one snapshot, made of due rules, gates and caps in this order. Every job
and every asset gets a :class:`~sync_pipeline.policy.snapshot.Decision` with one reason, chosen or not, so
that each can be explained. Does not belong here: reading the snapshot, and grouping decisions into runs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from sync_pipeline.core.job_types import DECLARED, FAMILY_OF
from sync_pipeline.core.model import BreakerScope, BreakerState, DecisionReason, Mode, TimeWindow
from sync_pipeline.core.windows import newest_piece
from sync_pipeline.policy import caps, gates
from sync_pipeline.policy.breaker import Breaker, BreakerLimits, evaluate
from sync_pipeline.policy.degradation import Sizes, reduced, suggest
from sync_pipeline.policy.due import evaluate_asset, evaluate_completion, evaluate_job
from sync_pipeline.policy.gates import failure_rate, rate_limit_rate
from sync_pipeline.policy.history import COMPLETION_PRIORITY
from sync_pipeline.policy.samples import RunOutcome, Sample, rates_of_server
from sync_pipeline.policy.snapshot import (
    PRIORITY_OF_REASON,
    AssetState,
    Decision,
    InFlight,
    Job,
    Plan,
    PlanningLimits,
    Snapshot,
)

_DUE_JOBS = frozenset({DecisionReason.PENDING, DecisionReason.RETRY, DecisionReason.TAKEOVER})
# Only the clock delays these, so they may start now.
_BY_CLOCK = frozenset({DecisionReason.NOT_YET, DecisionReason.NOTHING_NEW})
# Adjustments of a priority (seed 000, section 1.6).
_FAILURES = 100
_RATE_LIMITS = 200
_PRONE = 50
_LOW_BUCKET = 200
_LOW_LEVEL = 0.2
# A job gains this much with every hour that it waits, so that none waits for ever behind newer ones.
_PER_HOUR = 10


def plan(snapshot: Snapshot, now: datetime) -> Plan:
    """Decide about every active job and every asset."""
    breakers = evaluate_breakers(snapshot, now)
    before = {(b.scope, b.key): b for b in snapshot.breakers}
    samples = gates.by_unit(_of_sources(snapshot.samples, breakers))
    due = [
        _ranked(_in_pieces(d, snapshot, now), snapshot, samples, now)
        for d in _with_companions(_due(snapshot, now))
    ]
    due.sort(key=caps.rank)
    through = gates.apply_gates(due, snapshot, breakers, samples, now)
    decisions, usage = caps.select(through, snapshot.limits, snapshot.served, now)
    sized = [_sized(d, samples, snapshot.limits) if d.chosen else d for d in decisions]
    changed = [b for key, b in breakers.items() if b != before.get(key, Breaker(*key))]
    return Plan(sized, usage, changed)


def evaluate_breakers(snapshot: Snapshot, now: datetime) -> Mapping[tuple[BreakerScope, str], Breaker]:
    """Each breaker that has evidence, in its state after it.

    A server that is down says nothing about tenants or about everything. So runs at a server with an open
    breaker do not count for the wider scopes. Runs of a pool with an open breaker do not count for servers.
    If breakers are switched off, none is returned and their stored state stays.
    """
    if not snapshot.limits.breaker.enabled:
        return {}
    known = {(b.scope, b.key): b for b in snapshot.breakers}
    limits = snapshot.limits.breaker
    found: dict[tuple[BreakerScope, str], Breaker] = {}

    def evaluate_scope(scope: BreakerScope, key: str, samples: Sequence[Sample]) -> Breaker:
        breaker = evaluate(known.get((scope, key), Breaker(scope, key)), samples, now, limits)
        found[scope, key] = breaker
        return breaker

    pools = {s.pool for s in snapshot.samples if s.pool}
    for pool in pools | {key for scope, key in known if scope is BreakerScope.POOL}:
        before = known.get((BreakerScope.POOL, pool), Breaker(BreakerScope.POOL, pool))
        evaluate_scope(BreakerScope.POOL, pool, _evidence_of_pool(before, snapshot.samples, limits, now))
    by_instance: dict[str, list[Sample]] = defaultdict(list)
    for sample in _of_sources(snapshot.samples, found):
        by_instance[sample.instance].append(sample)
    for instance in by_instance.keys() | {key for scope, key in known if scope is BreakerScope.INSTANCE}:
        evaluate_scope(BreakerScope.INSTANCE, instance, by_instance[instance])
    wider = [
        s
        for instance, samples in by_instance.items()
        if (breaker := found[BreakerScope.INSTANCE, instance]).state is BreakerState.CLOSED
        for s in samples
        if s.started_at >= breaker.since
    ]
    by_tenant: dict[str, list[Sample]] = defaultdict(list)
    for sample in wider:
        by_tenant[sample.tenant].append(sample)
    for tenant in by_tenant.keys() | {key for scope, key in known if scope is BreakerScope.TENANT}:
        evaluate_scope(BreakerScope.TENANT, tenant, by_tenant[tenant])
    everything = known.get((BreakerScope.GLOBAL, ""), Breaker(BreakerScope.GLOBAL, ""))
    evidence = _evidence_of_all(everything, by_instance, limits, now)
    if evidence or everything.state is not BreakerState.CLOSED:
        evaluate_scope(BreakerScope.GLOBAL, "", evidence)
    return found


def _of_sources(
    samples: Sequence[Sample], breakers: Mapping[tuple[BreakerScope, str], Breaker]
) -> Sequence[Sample]:
    """Runs that are evidence about their source: not those of a pool with an open breaker."""
    stopped_until = {
        key: None if breaker.state is not BreakerState.CLOSED else breaker.since
        for (scope, key), breaker in breakers.items()
        if scope is BreakerScope.POOL
    }
    return [
        s
        for s in samples
        if s.pool not in stopped_until
        or ((until := stopped_until[s.pool]) is not None and s.started_at >= until)
    ]


def _evidence_of_pool(
    breaker: Breaker, samples: Sequence[Sample], limits: BreakerLimits, now: datetime
) -> Sequence[Sample]:
    """Runs that are evidence about one worker pool, for example about its network.

    These are its runs at servers that work for other pools. While the breaker is not closed, all runs of the
    pool count, because its probes show whether servers respond to it.
    """
    mine = [s for s in samples if s.pool == breaker.key]
    if breaker.state is not BreakerState.CLOSED:
        return mine
    others: dict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        if sample.pool not in ("", breaker.key) and sample.finished_at > now - limits.window:
            others[sample.instance].append(sample)
    rates = {instance: rates_of_server(some) for instance, some in others.items()}
    well = {
        instance
        for instance, rate in rates.items()
        if rate.samples
        and rate.failure < limits.failure_rate_threshold
        and rate.rate_limit < limits.rate_limit_threshold
        and rate.timeout < limits.timeout_rate_threshold
    }
    return [s for s in mine if s.instance in well]


def _evidence_of_all(
    breaker: Breaker,
    by_instance: Mapping[str, Sequence[Sample]],
    limits: BreakerLimits,
    now: datetime,
) -> Sequence[Sample]:
    """Runs that are evidence about everything at once, for example about our own network. A working server
    proves that not everything fails.
    """
    by_repository = {
        instance: own
        for instance, samples in by_instance.items()
        if (
            own := [
                s
                for s in samples
                if s.started_at >= breaker.since
                and s.finished_at > now - limits.window
                and (s.is_answer or s.outcome_of_server is RunOutcome.FAILURE)
            ]
        )
    }
    if breaker.state is BreakerState.CLOSED:
        fail = all(
            rates_of_server(own).failure >= limits.failure_rate_threshold for own in by_repository.values()
        )
        return [s for own in by_repository.values() for s in own] if len(by_repository) > 1 and fail else ()
    every = [s for own in by_repository.values() for s in own]
    # One response proves it, whatever the others do; those have their own breakers.
    return [s for s in every if s.is_answer] or every


def _due(snapshot: Snapshot, now: datetime) -> list[Decision]:
    jobs: dict[gates.Key, list[Job]] = defaultdict(list)
    for job in snapshot.jobs:
        jobs[job.repo_id, job.job_type].append(job)
    in_flight: dict[gates.Key, list[InFlight]] = defaultdict(list)
    for run in snapshot.in_flight:
        for repo_id in run.repo_ids:
            in_flight[repo_id, run.job_type].append(run)
    found = []
    for asset in snapshot.assets:
        mine = jobs.get((asset.repo_id, asset.job_type), [])
        runs = in_flight.get((asset.repo_id, asset.job_type), [])
        found += [_decide_job(asset, job, runs, now, snapshot) for job in mine]
        if not any(job.mode is Mode.INCREMENTAL for job in mine):
            found.append(_decide_unit(asset, runs, now, snapshot))
        if asset.has_planned and not any(job.only_deferred for job in mine):
            found.append(_decide_completion(asset, runs, now, snapshot))
    return found


def _decide_job(
    asset: AssetState, job: Job, runs: Sequence[InFlight], now: datetime, snapshot: Snapshot
) -> Decision:
    reason, until = evaluate_job(asset, job, runs, now, snapshot.limits)
    return Decision(
        repo_id=job.repo_id,
        job_type=job.job_type,
        instance=asset.instance,
        instance_slug=asset.instance_slug,
        tenant=asset.tenant,
        mode=job.mode,
        window=job.window,
        job_id=job.job_id,
        attempts=job.attempts,
        priority=job.priority,
        chosen=reason in _DUE_JOBS,
        reason=reason,
        since=job.created_at,
        until=until,
        rank=job.priority,
        pool=snapshot.pool if asset.in_pool else "",
        only_deferred=job.only_deferred,
    )


def _decide_unit(asset: AssetState, runs: Sequence[InFlight], now: datetime, snapshot: Snapshot) -> Decision:
    reason, until = evaluate_asset(asset, runs, now, snapshot.limits)
    return Decision(
        repo_id=asset.repo_id,
        job_type=asset.job_type,
        instance=asset.instance,
        instance_slug=asset.instance_slug,
        tenant=asset.tenant,
        mode=Mode.INCREMENTAL,
        window=None,
        job_id=None,
        attempts=0,
        priority=PRIORITY_OF_REASON.get(reason, 100),
        chosen=reason in PRIORITY_OF_REASON,
        reason=reason,
        since=asset.visited_at or now,
        until=until,
        rank=PRIORITY_OF_REASON.get(reason, 100),
        pool=snapshot.pool if asset.in_pool else "",
    )


def _decide_completion(
    asset: AssetState, runs: Sequence[InFlight], now: datetime, snapshot: Snapshot
) -> Decision:
    reason, until = evaluate_completion(asset, runs, now, snapshot.limits)
    return Decision(
        repo_id=asset.repo_id,
        job_type=asset.job_type,
        instance=asset.instance,
        instance_slug=asset.instance_slug,
        tenant=asset.tenant,
        mode=Mode.REPAIR,
        window=None,
        job_id=None,
        attempts=0,
        priority=COMPLETION_PRIORITY,
        chosen=reason is DecisionReason.PLANNED_FETCHES,
        reason=reason,
        since=now,
        until=until,
        rank=COMPLETION_PRIORITY,
        pool=snapshot.pool if asset.in_pool else "",
        only_deferred=True,
    )


def _with_companions(decisions: Sequence[Decision]) -> list[Decision]:
    """Also choose the assets that are read together with a chosen one.

    Separate reads would fetch the same list twice, and the assets would never line up again.
    """
    chosen: dict[tuple[int, str], int] = {}
    for decision in decisions:
        if decision.chosen and decision.mode is Mode.INCREMENTAL:
            key = decision.repo_id, str(FAMILY_OF[decision.job_type])
            chosen[key] = min(decision.priority, chosen.get(key, decision.priority))
    return [
        replace(d, chosen=True, reason=DecisionReason.COALESCED, priority=chosen[key], until=None)
        if d.reason in _BY_CLOCK and (key := (d.repo_id, str(FAMILY_OF[d.job_type]))) in chosen
        else d
        for d in decisions
    ]


def _in_pieces(decision: Decision, snapshot: Snapshot, now: datetime) -> Decision:
    """Start a backfill job that is longer than the limit with its newest piece; the rest stays queued."""
    longest, beginning = snapshot.limits.longest_backfill, snapshot.history_start
    if (
        longest is None
        or beginning is None
        or not decision.chosen
        or decision.mode is not Mode.BACKFILL
        # A shorter window would read no less of the others.
        or not DECLARED[decision.job_type].by_time
        or not isinstance(decision.window, TimeWindow)
    ):
        return decision
    window, rest = newest_piece(decision.window, longest, beginning)
    return replace(decision, window=window, rest=rest)


def _ranked(
    decision: Decision, snapshot: Snapshot, samples: Mapping[gates.Key, Sequence[Sample]], now: datetime
) -> Decision:
    if not decision.chosen:
        return decision
    mine = samples.get((decision.repo_id, decision.job_type), ())
    failures, limited = failure_rate(mine, now), rate_limit_rate(mine)
    rank = decision.priority + round(_FAILURES * failures) + round(_RATE_LIMITS * limited)
    if limited >= snapshot.limits.slow_down:
        rank += _PRONE
    bucket = snapshot.buckets.get(decision.instance)
    if bucket is not None and bucket.level < _LOW_LEVEL:
        rank += _LOW_BUCKET
    rank -= int(_PER_HOUR * max(now - decision.since, timedelta()) / timedelta(hours=1))
    return replace(decision, rank=rank, failure_rate=failures, rate_limit_rate=limited)


def _sized(
    decision: Decision, samples: Mapping[gates.Key, Sequence[Sample]], limits: PlanningLimits
) -> Decision:
    sizes: Sizes = suggest(samples.get((decision.repo_id, decision.job_type), ()), limits.degradation)
    if decision.breaker is not BreakerState.CLOSED:
        sizes = reduced(
            sizes,
            batch=limits.degraded_batch,
            window=limits.degraded_window,
            limits=limits.degradation,
            reason=f"breaker {decision.breaker}",
        )
    return replace(decision, sizes=sizes)
