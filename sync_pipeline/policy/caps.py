"""How much may start, and in which order.

Belongs here: the order between tenants, between live syncing, history and completion, and the caps. Each
refusal has its reason. Every cap is checked before anything is counted, so that a refusal uses up nothing.
Pure.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from sync_pipeline.core.model import DecisionReason, Mode
from sync_pipeline.policy.gates import AT_WORK, ActivityKey, activity_key
from sync_pipeline.policy.history import HISTORY_PRIORITY
from sync_pipeline.policy.snapshot import Caps, Decision, PlanningLimits, Usage

# The last of this many slots is history's, while live syncing wants all of them.
_SLOTS = 4
# Two completion jobs of a server, each with several requests in flight, use up its rate limit.
_COMPLETIONS_PER_INSTANCE = 2
# After this wait older history goes with the newest history of others, so that none waits for ever.
_PATIENCE = timedelta(days=30)
_NEVER = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class _Activity:
    """Decisions of assets that are read together, and so start together or not at all."""

    key: ActivityKey
    members: tuple[Decision, ...]

    @property
    def first(self) -> Decision:
        return self.members[0]

    @property
    def is_history(self) -> bool:
        return self.first.mode is not Mode.INCREMENTAL

    @property
    def is_completion(self) -> bool:
        return self.first.only_deferred


class _Ledger:
    """Running and queued activities, with those that this plan adds."""

    def __init__(self, caps: Caps, decisions: Iterable[Decision]) -> None:
        self.caps = caps
        self.started = 0
        self.running: set[ActivityKey] = set()
        self.queued: set[ActivityKey] = set()
        self.history = 0
        self.by_instance: Counter[str] = Counter()
        self.by_tenant: Counter[str] = Counter()
        self.history_by_instance: Counter[str] = Counter()
        self.completions: Counter[str] = Counter()
        # Servers with history at work, or with anything that found no room.
        self.busy: set[str] = set()
        for decision in decisions:
            if decision.reason in AT_WORK:
                key = activity_key(decision)
                if decision.reason is DecisionReason.RUNNING:
                    self.running.add(key)
                if key not in self.queued:
                    self._count(key, decision)

    def _count(self, key: ActivityKey, decision: Decision) -> None:
        self.queued.add(key)
        self.by_instance[decision.instance] += 1
        self.by_tenant[decision.tenant] += 1
        if decision.mode is not Mode.INCREMENTAL:
            self.history += 1
            self.history_by_instance[decision.instance] += 1
            if decision.only_deferred:
                self.completions[decision.instance] += 1
            else:
                self.busy.add(decision.instance)

    def refuses(self, activity: _Activity) -> DecisionReason | None:
        """The first cap that is reached, in the order of seed 000, section 1.6."""
        caps, decision = self.caps, activity.first
        if activity.is_completion:
            if decision.instance in self.busy:
                return DecisionReason.MORE_URGENT
            if self.completions[decision.instance] >= _COMPLETIONS_PER_INSTANCE:
                return DecisionReason.COMPLETION_CAP
        if len(self.running) >= caps.running:
            return DecisionReason.RUNNING_CAP
        if len(self.queued) >= caps.queued:
            return DecisionReason.QUEUE_FULL
        if self.started >= caps.per_scan:
            return DecisionReason.TICK_FULL
        if self.by_instance[decision.instance] >= caps.per_instance:
            return DecisionReason.INSTANCE_CAP
        if self.by_tenant[decision.tenant] >= caps.per_tenant:
            return DecisionReason.TENANT_CAP
        # History takes half at most, so that live syncing never waits for it.
        if activity.is_history and (
            self.history >= min(half(caps.queued), caps.history or caps.queued)
            or self.history_by_instance[decision.instance] >= half(caps.per_instance)
        ):
            return DecisionReason.HISTORY_CAP
        return None

    def reserve(self, activity: _Activity) -> None:
        self.started += 1
        self._count(activity.key, activity.first)

    def usage(self) -> Usage:
        return Usage(
            running=len(self.running),
            queued=len(self.queued) - self.started,
            started=self.started,
            by_instance=dict(self.by_instance),
            by_tenant=dict(self.by_tenant),
        )


class _FairQueue:
    """Activities by rank. With fairness, tenants come in the order of ``key``, a few activities of each per
    round.

    An activity without room costs its tenant nothing: the next one of the tenant comes, until
    :meth:`record_start` reports a start.
    """

    def __init__(
        self, activities: Iterable[_Activity], limits: PlanningLimits, key: Callable[[str], datetime | int]
    ) -> None:
        by_tenant: dict[str, deque[_Activity]] = defaultdict(deque)
        for activity in sorted(activities, key=lambda a: rank(a.first)):
            by_tenant[activity.first.tenant if limits.fair else ""].append(activity)
        # Sorting is stable: among equals the tenant with the most urgent activity comes first.
        tenants = sorted(by_tenant, key=key)
        self._queues = deque(by_tenant[tenant] for tenant in tenants)
        self._per_round = limits.per_round
        self._left = self._per_round

    def __bool__(self) -> bool:
        return any(self._queues)

    def take(self) -> _Activity:
        """The next activity."""
        while not self._queues[0]:
            self._queues.popleft()
            self._left = self._per_round
        return self._queues[0].popleft()

    def record_start(self) -> None:
        """Record that the activity taken last was started."""
        self._left -= 1
        if self._left <= 0:
            self._queues.rotate(-1)
            self._left = self._per_round


def half(cap: int) -> int:
    """The share of a cap for history."""
    return max(1, cap // 2)


def select(
    decisions: Sequence[Decision], limits: PlanningLimits, served: Mapping[str, datetime], now: datetime
) -> tuple[list[Decision], Usage]:
    """The decisions in the order to start them, chosen ones first. A decision without room has that reason.

    ``served`` is when live syncing of each tenant was last started: the tenant that waited longest goes
    first. The time of the plan draws whose history goes first, so that live syncing of a tenant costs it no
    history. Live syncing and history take turns as well, see :func:`_first_slot`. A decision without room
    uses up no turn.

    The newest history of all tenants goes before older history of any. Completion comes last. It starts only
    at servers where no history is at work and nothing waits for room.
    """
    activities: dict[ActivityKey, list[Decision]] = defaultdict(list)
    for decision in decisions:
        if decision.chosen:
            activities[activity_key(decision)].append(decision)
    wanted = [_Activity(key, tuple(sorted(members, key=rank))) for key, members in activities.items()]
    live = _FairQueue(
        [a for a in wanted if not a.is_history], limits, lambda tenant: served.get(tenant, _NEVER)
    )
    stages = [
        _FairQueue(some, limits, lambda tenant: _number(now, tenant))
        for some in _by_stage([a for a in wanted if a.is_history and not a.is_completion], now)
    ]
    completion = _FairQueue(
        [a for a in wanted if a.is_completion], limits, lambda tenant: _number(now, tenant)
    )
    ledger = _Ledger(limits.caps, decisions)
    chosen: list[Decision] = []
    refused: list[Decision] = []
    slot = _first_slot(now)
    while live or any(stages) or completion:
        history = next((stage for stage in stages if stage), completion)
        first, other = (history, live) if slot == _SLOTS - 1 and any(stages) else (live, history)
        queue = first or other
        activity = queue.take()
        reason = ledger.refuses(activity)
        if reason is None:
            ledger.reserve(activity)
            chosen += activity.members
            queue.record_start()
            slot = (slot + 1) % _SLOTS
        else:
            if not activity.is_completion:
                ledger.busy.add(activity.first.instance)
            refused += [replace(d, chosen=False, reason=reason) for d in activity.members]
    others = [d for d in decisions if not d.chosen]
    return [*chosen, *sorted([*refused, *others], key=rank)], ledger.usage()


def _by_stage(history: Sequence[_Activity], now: datetime) -> list[list[_Activity]]:
    """History in the order in which it is read. First comes the newest, with jobs of people and repairs, then
    older history, year by year. A job that waited for :data:`_PATIENCE` belongs to the first stage.
    """
    found: dict[int, list[_Activity]] = defaultdict(list)
    for activity in history:
        first = activity.first
        is_old = first.priority > HISTORY_PRIORITY and now - first.since < _PATIENCE
        found[first.priority if is_old else 0].append(activity)
    return [found[stage] for stage in sorted(found)]


def _first_slot(now: datetime) -> int:
    """The slot that a plan of this time begins with, from 0; the last slot is history's.

    If fewer slots are free at every plan, a plan that always began with slot 0 would never reach history.
    Running work does not show whose turn it is if there is a single slot. So the time of the plan decides:
    over many plans each slot is first equally often, whatever the time between two plans.
    """
    return _number(now) % _SLOTS


def _number(now: datetime, name: str = "") -> int:
    """A number for ``name``, drawn from the time of the plan: equal for every plan of this time."""
    return int.from_bytes(hashlib.sha256(f"{now.timestamp():.6f} {name}".encode()).digest()[:4])


def rank(decision: Decision) -> tuple[int, datetime, int, str, str]:
    """The position of a decision among those of its tenant. The order is total, so equal snapshots give equal
    plans.
    """
    return (
        decision.rank,
        decision.since,
        decision.repo_id,
        str(decision.job_type),
        f"{decision.mode} {decision.window}",
    )
