"""Whether due work may start now.

Belongs here: pauses, rejected tokens, paused rate limits, breakers, error budgets and rests after time-outs,
in this fixed order. The first gate that refuses gives the reason. Each gate lets a probe through periodically
to test whether it can reopen, so nothing stays stopped by itself. Pure. Does not belong here: room
(:mod:`~sync_pipeline.policy.caps`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from sync_pipeline.core.job_types import FAMILY_OF
from sync_pipeline.core.model import BreakerScope, BreakerState, DecisionReason, JobType, Mode
from sync_pipeline.policy.backoff import wait_before_next_visit
from sync_pipeline.policy.breaker import Breaker
from sync_pipeline.policy.degradation import suggest
from sync_pipeline.policy.samples import RunOutcome, Sample
from sync_pipeline.policy.snapshot import AssetState, Decision, PlanningLimits, Snapshot

ActivityKey = tuple[int, str, Mode, object]
Key = tuple[int, JobType]

_OF_ALL_SERVERS = frozenset({BreakerScope.GLOBAL, BreakerScope.POOL})

AT_WORK = frozenset({DecisionReason.RUNNING, DecisionReason.IN_FLIGHT})
"""Reasons of work in progress."""

RUNS = 10
"""The newest runs that an error budget counts (seed 000, section 1.6)."""

_MIN_SAMPLES = 3
# Half-life of the weight: a failure of an hour ago is weak evidence.
_HALF_LIFE = timedelta(minutes=15)


def activity_key(decision: Decision) -> ActivityKey:
    """The key of the activity: merge requests and reviews of a project are read together and are one
    activity.
    """
    return decision.repo_id, str(FAMILY_OF[decision.job_type]), decision.mode, decision.window


def scopes_of(one: Decision | Sample) -> tuple[tuple[BreakerScope, str], ...]:
    """The scopes whose breakers apply to the asset."""
    return (
        (BreakerScope.GLOBAL, ""),
        (BreakerScope.INSTANCE, one.instance),
        (BreakerScope.TENANT, one.tenant),
        (BreakerScope.POOL, one.pool),
    )


def apply_gates(
    decisions: Sequence[Decision],
    snapshot: Snapshot,
    breakers: Mapping[tuple[BreakerScope, str], Breaker],
    samples: Mapping[Key, Sequence[Sample]],
    now: datetime,
) -> list[Decision]:
    """``decisions``, in the order to start them; those that may not start now have their gate as reason."""
    limits = snapshot.limits
    assets = {(u.repo_id, u.job_type): u for u in snapshot.assets}
    found = [
        _manual_gate(d, assets[d.repo_id, d.job_type], snapshot, now) if d.chosen else d for d in decisions
    ]
    for instance, refused_at in snapshot.refused.items():
        since = snapshot.refused_since.get(instance)
        troubled = None if since is None else refused_at - since
        wait = wait_before_next_visit(troubled, limits.sync_interval, limits.reprobe_interval)
        found = _credential(found, instance, refused_at + wait, now)
    found = [_rate_limit(d, snapshot, now) if d.chosen else d for d in found]
    found = _through_breakers(found, snapshot, breakers, samples, now)
    found = _through_budgets(found, samples, limits, now)
    return [_backoff_gate(d, samples, limits, now) if d.chosen else d for d in found]


def _refuse(
    decision: Decision, reason: DecisionReason, until: datetime | None = None, detail: str | None = None
) -> Decision:
    return replace(decision, chosen=False, reason=reason, until=until, detail=detail)


# Pauses by people -----------------------------------------------------------------------------------------


def _manual_gate(decision: Decision, asset: AssetState, snapshot: Snapshot, now: datetime) -> Decision:
    limits = snapshot.limits
    if not limits.switched_on or (limits.only and decision.job_type not in limits.only):
        return _refuse(decision, DecisionReason.SWITCHED_OFF)
    if not asset.in_pool:
        return _refuse(decision, DecisionReason.OTHER_POOL)
    pauses = [p for p in snapshot.pauses if p.holds(asset, now)]
    if not pauses:
        return decision
    # The pause that ends last counts.
    last = max(pauses, key=lambda p: (p.until is None, p.until or now))
    return _refuse(decision, DecisionReason.PAUSED, last.until, f"{last.reason} ({last.actor})")


# The server's rate limit and token ------------------------------------------------------------------------


def _credential(
    decisions: Sequence[Decision], instance: str, until: datetime, now: datetime
) -> list[Decision]:
    """Start nothing on an instance that rejects our token. From ``until`` on, start a single incremental that
    tests whether it still does.
    """
    mine = [d for d in decisions if d.instance == instance]
    busy = any(
        d.reason in AT_WORK or (d.reason is DecisionReason.WAITS_FOR_RETRY and d.mode is Mode.INCREMENTAL)
        for d in mine
    )
    probe: Decision | None = None
    if until <= now and not busy:
        # An existing job goes first: it may be the earlier probe, which got no response.
        live = sorted(
            (d for d in mine if d.chosen and d.mode is Mode.INCREMENTAL), key=lambda d: d.job_id is None
        )
        probe = live[0] if live else None
    return [
        d
        if d.instance != instance or not d.chosen
        else replace(d, reason=DecisionReason.REPROBE)
        if d is probe
        else _refuse(d, DecisionReason.CREDENTIAL, until if until > now else None)
        for d in decisions
    ]


def _rate_limit(decision: Decision, snapshot: Snapshot, now: datetime) -> Decision:
    bucket = snapshot.buckets.get(decision.instance)
    if bucket is None or bucket.paused_until is None or bucket.paused_until <= now:
        return decision
    return _refuse(decision, DecisionReason.RATE_LIMITED, bucket.paused_until)


# Evidence of the last runs --------------------------------------------------------------------------------


@dataclass
class _Allowance:
    """How much one breaker that is not closed still allows in this plan. With ``one_each`` it allows one of
    each server, so that one failing server does not use all probes of the breaker for everything.
    """

    left: int
    job_types: frozenset[JobType]
    until: datetime | None
    started: set[ActivityKey] = field(default_factory=set)
    one_each: bool = False
    instances: set[str] = field(default_factory=set)


def _through_breakers(
    decisions: Sequence[Decision],
    snapshot: Snapshot,
    breakers: Mapping[tuple[BreakerScope, str], Breaker],
    samples: Mapping[Key, Sequence[Sample]],
    now: datetime,
) -> list[Decision]:
    stopped = {key: b for key, b in breakers.items() if b.state is not BreakerState.CLOSED}
    if not stopped:
        return list(decisions)
    asked = [_asked(decision, stopped) for decision in decisions]
    may = [
        bool(asks)
        and _may_find_out(decision, stopped[asks[0]])
        and _rests_until(decision, samples, snapshot.limits, now) is None
        for decision, asks in zip(decisions, asked, strict=True)
    ]
    there: dict[tuple[BreakerScope, str], set[JobType]] = defaultdict(set)
    for decision, asks, does in zip(decisions, asked, may, strict=True):
        for key in asks if does else ():
            there[key].add(decision.job_type)
    allowances = {key: _allowance(b, decisions, there[key], snapshot, now) for key, b in stopped.items()}
    found = []
    for decision, asks, does in zip(decisions, asked, may, strict=True):
        if not asks:
            found.append(decision)
            continue
        first = stopped[asks[0]]
        is_open = first.state is BreakerState.OPEN
        decision = replace(decision, breaker=first.state)
        if not decision.chosen:
            found.append(decision)
            continue
        activity = activity_key(decision)
        if does and all(_lets(allowances[key], decision, activity) for key in asks):
            for key in asks:
                if activity not in allowances[key].started:
                    allowances[key].started.add(activity)
                    allowances[key].left -= 1
                    allowances[key].instances.add(decision.instance)
            found.append(
                replace(decision, reason=DecisionReason.OPEN_BACKFILL if is_open else DecisionReason.PROBE)
            )
            continue
        found.append(
            _refuse(
                decision,
                DecisionReason.BREAKER_OPEN if is_open else DecisionReason.HALF_OPEN,
                max((end for key in asks if (end := allowances[key].until)), default=None),
                f"{first.scope} {first.key}: {first.reason}".replace(" :", ":"),
            )
        )
    return found


def _asked(
    decision: Decision, stopped: Mapping[tuple[BreakerScope, str], Breaker]
) -> list[tuple[BreakerScope, str]]:
    """The breakers that have to allow ``decision``, all in the same state."""
    mine = [key for key in scopes_of(decision) if key in stopped]
    if are_open := [key for key in mine if stopped[key].state is BreakerState.OPEN]:
        return are_open
    # A probe of a failing server is no evidence about its tenant or about everything.
    instance = BreakerScope.INSTANCE, decision.instance
    return [instance] if instance in mine else mine


def _may_find_out(decision: Decision, breaker: Breaker) -> bool:
    """True if ``breaker`` allows some work of its mode."""
    wanted = Mode.BACKFILL if breaker.state is BreakerState.OPEN else Mode.INCREMENTAL
    return decision.chosen and decision.mode is wanted


def _lets(allowance: _Allowance, decision: Decision, key: ActivityKey) -> bool:
    if key in allowance.started:
        return True
    if allowance.one_each and decision.instance in allowance.instances:
        return False
    return allowance.left > 0 and (not allowance.job_types or decision.job_type in allowance.job_types)


def _allowance(
    breaker: Breaker,
    decisions: Sequence[Decision],
    there: Set[JobType],
    snapshot: Snapshot,
    now: datetime,
) -> _Allowance:
    """The allowance of ``breaker``; ``there`` are the job types that could probe it now."""
    limits = snapshot.limits
    mine = [d for d in decisions if (breaker.scope, breaker.key) in scopes_of(d)]
    at_work = {activity_key(d) for d in mine if d.reason in AT_WORK}
    if breaker.state is BreakerState.OPEN:
        assert breaker.opened_at is not None
        until = breaker.opened_at + limits.breaker.open_for
        # A little history continues: it is not urgent, and it shows how the server behaves.
        spacing = limits.open_backfill
        lately = [
            s.started_at
            for s in snapshot.samples
            if (breaker.scope, breaker.key) in scopes_of(s) and s.mode is Mode.BACKFILL
        ]
        begun = max([*lately, breaker.opened_at])
        free = spacing is not None and not at_work and now >= begun + spacing
        return _Allowance(int(free), frozenset(), until)
    left = min(limits.probes_per_scan, limits.breaker.half_open_max_requests - len(at_work))
    # If there are none of the job types for probes, any job type may probe.
    return _Allowance(left, limits.probe_job_types & there, None, one_each=breaker.scope in _OF_ALL_SERVERS)


def _through_budgets(
    decisions: Sequence[Decision],
    samples: Mapping[Key, Sequence[Sample]],
    limits: PlanningLimits,
    now: datetime,
) -> list[Decision]:
    """Pause assets that failed too often; after the pause a single run tests each."""
    busy = {(d.repo_id, d.job_type) for d in decisions if d.reason in AT_WORK}
    until: dict[Key, datetime | None] = {}
    probed: set[Key] = set()
    found = []
    for decision in decisions:
        key = decision.repo_id, decision.job_type
        if not decision.chosen or decision.reason is DecisionReason.PROBE:
            found.append(decision)
            continue
        if key not in until:
            until[key] = paused_until(
                samples.get(key, ()), now, threshold=limits.error_budget, pause=limits.budget_pause
            )
        end = until[key]
        if end is None:
            found.append(decision)
        elif end > now or key in busy or key in probed:
            found.append(_refuse(decision, DecisionReason.ERROR_BUDGET, end if end > now else None))
        else:
            probed.add(key)
            found.append(replace(decision, reason=DecisionReason.PROBE))
    return found


def _backoff_gate(
    decision: Decision, samples: Mapping[Key, Sequence[Sample]], limits: PlanningLimits, now: datetime
) -> Decision:
    until = _rests_until(decision, samples, limits, now)
    return decision if until is None else _refuse(decision, DecisionReason.DEGRADED, until)


def _rests_until(
    decision: Decision, samples: Mapping[Key, Sequence[Sample]], limits: PlanningLimits, now: datetime
) -> datetime | None:
    """The end of the rest after repeated time-outs, which grows each time; None if it may start."""
    mine = samples.get((decision.repo_id, decision.job_type), ())
    wait = suggest(mine, limits.degradation).wait if mine else 0.0
    if not wait:
        return None
    until = max(s.finished_at for s in mine) + timedelta(seconds=wait)
    return until if until > now else None


def by_unit(samples: Sequence[Sample]) -> Mapping[Key, Sequence[Sample]]:
    """The runs of each asset."""
    found: dict[Key, list[Sample]] = defaultdict(list)
    for sample in samples:
        found[sample.repo_id, sample.job_type].append(sample)
    return found


# The error budget of an asset -----------------------------------------------------------------------------
#
# An asset that fails too often is paused for a while. That never blocks for ever: after each pause one run
# tests whether the asset still fails, and the first success ends it.


def failure_rate(samples: Iterable[Sample], now: datetime) -> float:
    """Share of the newest runs that failed, from 0 to 1. A run's weight halves every quarter of an hour."""
    counted = _counted(samples)
    weights = [0.5 ** ((now - s.finished_at) / _HALF_LIFE) for s in counted]
    failed = sum(w for w, s in zip(weights, counted, strict=True) if s.outcome is RunOutcome.FAILURE)
    return failed / sum(weights) if counted else 0.0


def rate_limit_rate(samples: Iterable[Sample]) -> float:
    """Share of the newest runs with a 429, from 0 to 1."""
    counted = _counted(samples)
    return sum(s.is_rate_limited for s in counted) / len(counted) if counted else 0.0


def paused_until(
    samples: Iterable[Sample], now: datetime, *, threshold: float, pause: timedelta
) -> datetime | None:
    """The end of the pause of a used-up budget. It is in the past when a probe is due, and None while there
    is budget left.
    """
    counted = _counted(samples)
    if len(counted) < _MIN_SAMPLES or counted[-1].outcome is not RunOutcome.FAILURE:
        return None
    if failure_rate(counted, now) < threshold:
        return None
    return counted[-1].finished_at + pause


def _counted(samples: Iterable[Sample]) -> Sequence[Sample]:
    """The newest runs that are evidence, in the order of their end."""
    decisive = [s for s in samples if s.outcome is not RunOutcome.NEUTRAL]
    return sorted(decisive, key=lambda s: s.finished_at)[-RUNS:]
