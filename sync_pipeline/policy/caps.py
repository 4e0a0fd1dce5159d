"""How much may be started, and who goes first.

Belongs here: the order between tenants, between live syncing and history, and the caps, each refusal with its
reason. Every cap is checked before anything is counted, so that a refusal uses up nothing. Pure.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice

from sync_pipeline.model import Mode
from sync_pipeline.policy.gates import AT_WORK, ActivityKey, activity_key
from sync_pipeline.policy.snapshot import Caps, Decision, Limits, Reason, Usage

# History gets every so manieth place while live syncing wants all of them.
_LIVE_TO_HISTORY = 3
_NEVER = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class _Activity:
    """What is read together, and so starts together or not at all."""

    key: ActivityKey
    members: tuple[Decision, ...]

    @property
    def first(self) -> Decision:
        return self.members[0]

    @property
    def is_history(self) -> bool:
        return self.first.mode is not Mode.INCREMENTAL


class _Ledger:
    """What is going on and what this plan adds."""

    def __init__(self, caps: Caps, decisions: Iterable[Decision]) -> None:
        self.caps = caps
        self.started = 0
        self.running: set[ActivityKey] = set()
        self.queued: set[ActivityKey] = set()
        self.history = 0
        self.by_instance: Counter[str] = Counter()
        self.by_tenant: Counter[str] = Counter()
        self.history_by_instance: Counter[str] = Counter()
        for decision in decisions:
            if decision.reason in AT_WORK:
                key = activity_key(decision)
                if decision.reason is Reason.RUNNING:
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

    def refuses(self, activity: _Activity) -> Reason | None:
        """The first cap that is reached, in the order of seed 000, section 1.6."""
        caps, decision = self.caps, activity.first
        if len(self.running) >= caps.running:
            return Reason.RUNNING_CAP
        if len(self.queued) >= caps.queued:
            return Reason.QUEUE_FULL
        if self.started >= caps.per_scan:
            return Reason.TICK_FULL
        if self.by_instance[decision.instance] >= caps.per_instance:
            return Reason.INSTANCE_CAP
        if self.by_tenant[decision.tenant] >= caps.per_tenant:
            return Reason.TENANT_CAP
        # History takes half at most, so that live syncing never waits for it.
        if activity.is_history and (
            self.history >= half(caps.queued)
            or self.history_by_instance[decision.instance] >= half(caps.per_instance)
        ):
            return Reason.HISTORY_CAP
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


def half(cap: int) -> int:
    """What history may take of a cap."""
    return max(1, cap // 2)


def select(
    decisions: Sequence[Decision], limits: Limits, served: Mapping[str, datetime]
) -> tuple[list[Decision], Usage]:
    """The decisions in the order to start them, chosen ones first; those for which there is no room say so.

    ``served`` is when something of each tenant was last started.
    """
    activities: dict[ActivityKey, list[Decision]] = defaultdict(list)
    for decision in decisions:
        if decision.chosen:
            activities[activity_key(decision)].append(decision)
    wanted = [_Activity(key, tuple(sorted(members, key=rank))) for key, members in activities.items()]
    ledger = _Ledger(limits.caps, decisions)
    chosen: list[Decision] = []
    refused: list[Decision] = []
    for activity in _in_turn(wanted, limits, served):
        reason = ledger.refuses(activity)
        if reason is None:
            ledger.reserve(activity)
            chosen += activity.members
        else:
            refused += [replace(d, chosen=False, reason=reason) for d in activity.members]
    others = [d for d in decisions if not d.chosen]
    return [*chosen, *sorted([*refused, *others], key=rank)], ledger.usage()


def rank(decision: Decision) -> tuple[int, datetime, int, str, str]:
    """Where a decision stands among those of its tenant; total, so that the same snapshot gives the same
    plan."""
    return (
        decision.rank,
        decision.since,
        decision.repo_id,
        str(decision.job_type),
        f"{decision.mode} {decision.window}",
    )


def _in_turn(
    activities: Sequence[_Activity], limits: Limits, served: Mapping[str, datetime]
) -> Iterable[_Activity]:
    """Live syncing and history, a few to one."""
    live = _fair([a for a in activities if not a.is_history], limits, served)
    history = _fair([a for a in activities if a.is_history], limits, served)
    while live or history:
        yield from live[:_LIVE_TO_HISTORY]
        yield from history[:1]
        live, history = live[_LIVE_TO_HISTORY:], history[1:]


def _fair(activities: Sequence[_Activity], limits: Limits, served: Mapping[str, datetime]) -> list[_Activity]:
    """By rank; with fairness by tenants in turn, a few of each in every round, the one first that has waited
    longest since something of it was started."""
    ordered = sorted(activities, key=lambda a: rank(a.first))
    if not limits.fair:
        return ordered
    by_tenant: dict[str, list[_Activity]] = defaultdict(list)
    for activity in ordered:
        by_tenant[activity.first.tenant].append(activity)
    # Sorting is stable: among equals the tenant with the most urgent activity comes first.
    tenants = sorted(by_tenant, key=lambda tenant: served.get(tenant, _NEVER))
    queues = [iter(by_tenant[tenant]) for tenant in tenants]
    found: list[_Activity] = []
    while len(found) < len(ordered):
        for queue in queues:
            found += islice(queue, limits.per_round)
    return found
