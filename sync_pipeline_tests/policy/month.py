"""A month of unattended work on a fake clock: the real policy, a made-up fleet, servers that have bad days.

Belongs here: the world around the policy (repositories, servers, workers, their accidents), what is watched
at every instant, and the plot of ``docs/`` (``python -m sync_pipeline_tests.policy.month <file>``). Does not
belong here: any rule; those are the policy's.
"""

from __future__ import annotations

import heapq
import random
import sys
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from uuid import UUID

from sync_pipeline.core.model import (
    Access,
    BreakerScope,
    BreakerState,
    JobStatus,
    JobType,
    Lifecycle,
    Mode,
    RevisionWindow,
    RunStatus,
    Window,
)
from sync_pipeline.policy.backoff import seconds_until_retry
from sync_pipeline.policy.breaker import Breaker
from sync_pipeline.policy.gates import AT_WORK
from sync_pipeline.policy.planning import plan
from sync_pipeline.policy.samples import Sample
from sync_pipeline.policy.snapshot import (
    MAY_NOT_START,
    NO_ROOM,
    AssetState,
    Caps,
    Decision,
    InFlight,
    Job,
    PlanningLimits,
    Snapshot,
)
from sync_pipeline_tests.policy.builders import LIMITS

BEGINNING = datetime(2026, 3, 1, tzinfo=UTC)
MONTH = timedelta(days=30)
TICK = timedelta(minutes=15)
_CLAIM = timedelta(minutes=5)
_LOOKBACK = timedelta(hours=1)

INSTANCES = ("git.example", "code.example", "svn.example")
TENANTS = {f"tenant{n}": size for n, size in enumerate((90, 45, 25, 15, 10, 6, 4, 3, 1, 1), start=1)}
"""Repositories of each tenant."""

CAPS = Caps(running=12, queued=24, per_scan=24, per_instance=12, per_tenant=8)
MONTH_LIMITS: PlanningLimits = replace(
    LIMITS,
    sync_interval=timedelta(hours=4),
    quiet_interval=timedelta(hours=4),
    caps=CAPS,
)


@dataclass(frozen=True, slots=True)
class Weather:
    """What a server does for a while: ``kind`` is ``down``, ``limits`` (429) or ``slow``."""

    instance: str
    kind: str
    start: timedelta
    length: timedelta

    def holds(self, instance: str, moment: datetime) -> bool:
        return self.instance == instance and self.start <= moment - BEGINNING < self.start + self.length


WEATHER = (
    Weather("git.example", "down", timedelta(days=3), timedelta(hours=9)),
    Weather("code.example", "limits", timedelta(days=6), timedelta(hours=12)),
    Weather("svn.example", "slow", timedelta(days=9), timedelta(days=1)),
    Weather("git.example", "limits", timedelta(days=13), timedelta(hours=30)),
    Weather("code.example", "down", timedelta(days=17), timedelta(days=2)),
    Weather("svn.example", "down", timedelta(days=17), timedelta(hours=20)),
    Weather("git.example", "slow", timedelta(days=22), timedelta(hours=18)),
    Weather("svn.example", "down", timedelta(days=25), timedelta(minutes=40)),
)


@dataclass
class Seen:
    """What was watched. ``idle`` is the longest time for which something of a tenant was held back for want
    of room only, while nothing of it was at work; ``late`` is by instance how old its least fresh repository
    was, at every tick."""

    moments: list[datetime] = field(default_factory=list)
    running: list[int] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)
    held: list[int] = field(default_factory=list)
    history: list[int] = field(default_factory=list)
    late: dict[str, list[timedelta]] = field(default_factory=lambda: {i: [] for i in INSTANCES})
    states: dict[str, list[BreakerState]] = field(default_factory=lambda: {i: [] for i in INSTANCES})
    idle: dict[str, timedelta] = field(default_factory=lambda: dict.fromkeys(TENANTS, timedelta()))
    started: int = 0
    crashes: int = 0
    by_tenant: Counter[str] = field(default_factory=Counter)
    most: Counter[str] = field(default_factory=Counter)


class Month:
    """The month; ``run`` goes through it and returns what was seen. Raises AssertionError at the very instant
    in which a cap is broken or something is started that is under way."""

    def __init__(self, seed: int = 1) -> None:
        self.random = random.Random(seed)
        self.seen = Seen()
        self.now = BEGINNING
        self.assets: dict[int, AssetState] = {}
        self.jobs: dict[UUID, Job] = {}
        self.samples: deque[Sample] = deque()
        self.breakers: dict[tuple[BreakerScope, str], Breaker] = {}
        self.served: dict[str, datetime] = {}
        self.queue: deque[Decision] = deque()
        self.at_work: dict[UUID, Decision] = {}
        self.events: list[tuple[datetime, int, Decision, datetime, str | None, bool]] = []
        self._ids = count(1)
        self._waits: dict[str, datetime] = {}
        for tenant, repositories in TENANTS.items():
            for _ in range(repositories):
                self._register(len(self.assets) + 1, tenant)

    def _register(self, repo_id: int, tenant: str) -> None:
        instance = INSTANCES[repo_id % len(INSTANCES)]
        self.assets[repo_id] = AssetState(
            repo_id=repo_id,
            job_type=JobType.REVISIONS if instance.startswith("svn") else JobType.COMMITS,
            instance=instance,
            instance_slug=instance.replace(".", "_"),
            lifecycle=Lifecycle.ACTIVE,
            access=Access.OK,
            visited_at=None,
            watermark=1,
            head=None,
            hint_head=None,
            hint_at=None,
            hint_failed=False,
            dead_at=None,
            tenant=tenant,
        )
        for block in range(self.random.choice((0, 1, 1, 2))):
            self._job(repo_id, Mode.BACKFILL, RevisionWindow(1000 * block + 1, 1000 * block + 1001), 900)

    def _job(self, repo_id: int, mode: Mode, window: Window | None, priority: int) -> Job:
        job = Job(
            job_id=UUID(int=next(self._ids)),
            repo_id=repo_id,
            job_type=self.assets[repo_id].job_type,
            mode=mode,
            window=window,
            status=JobStatus.PENDING,
            priority=priority,
            attempts=0,
            not_before=None,
            claim_expires_at=None,
            created_at=self.now,
        )
        self.jobs[job.job_id] = job
        return job

    def run(self) -> Seen:
        """Every tick of the scheduler, and what the workers do between two of them."""
        while self.now < BEGINNING + MONTH:
            self._plan()
            self._work(self.now + TICK)
        return self.seen

    # The scheduler -------------------------------------------------------------------------------------

    def _plan(self) -> None:
        while self.samples and self.samples[0].finished_at < self.now - _LOOKBACK:
            self.samples.popleft()
        found = plan(
            Snapshot(
                assets=list(self.assets.values()),
                jobs=list(self.jobs.values()),
                in_flight=[
                    InFlight(frozenset({d.repo_id}), d.job_type, d.mode, d.window) for d in self.queue
                ],
                limits=MONTH_LIMITS,
                breakers=list(self.breakers.values()),
                samples=list(self.samples),
                served=self.served,
            ),
            self.now,
        )
        for breaker in found.breakers:
            self.breakers[breaker.scope, breaker.key] = breaker
        for decision in found.decisions:
            if not decision.chosen:
                break
            self._start(decision)
        self._watch(found.decisions)

    def _start(self, decision: Decision) -> None:
        job_id = decision.job_id
        if job_id is None:
            same = [j for j in self.jobs.values() if (j.repo_id, j.mode) == (decision.repo_id, decision.mode)]
            assert not same, "a second job of the same work"
            job_id = self._job(decision.repo_id, decision.mode, None, decision.priority).job_id
        assert job_id not in self.at_work, "under way already"
        assert all(d.job_id != job_id for d in self.queue), "waits in a run already"
        self.queue.append(replace(decision, job_id=job_id))
        if decision.mode is Mode.INCREMENTAL:
            self.served[decision.tenant] = self.now
        self.seen.started += 1
        self.seen.by_tenant[decision.tenant] += 1

    # The workers ---------------------------------------------------------------------------------------

    def _work(self, until: datetime) -> None:
        self._fill()
        while self.events and self.events[0][0] <= until:
            self.now, _, decision, started, code, crashed = heapq.heappop(self.events)
            self._finish(decision, started, code, crashed)
            self._fill()
        self.now = until

    def _fill(self) -> None:
        while self.queue and len(self.at_work) < CAPS.running:
            decision = self.queue.popleft()
            assert decision.job_id is not None
            job = self.jobs[decision.job_id]
            self.jobs[job.job_id] = replace(
                job,
                status=JobStatus.RUNNING,
                attempts=job.attempts + 1,
                claim_expires_at=self.now + timedelta(hours=12),
                not_before=None,
            )
            self.at_work[job.job_id] = decision
            seconds, code = self._fate(decision)
            crashed = self.random.random() < 0.002
            end = self.now + timedelta(seconds=seconds)
            heapq.heappush(self.events, (end, next(self._ids), decision, self.now, code, crashed))
        self._check()

    def _fate(self, decision: Decision) -> tuple[float, str | None]:
        """How long a run takes and how it fails, if it does."""
        seconds = self.random.uniform(5, 40) * (3 if decision.mode is Mode.BACKFILL else 1)
        kind = next((w.kind for w in WEATHER if w.holds(decision.instance, self.now)), None)
        if kind == "down":
            return 60.0, self.random.choice(("connection", "timeout"))
        if kind == "limits":
            return seconds, "rate_limit" if self.random.random() < 0.7 else None
        if kind == "slow":
            return min(seconds * 8, 240.0), "timeout" if self.random.random() < 0.15 else None
        return seconds, "server_error" if self.random.random() < 0.005 else None

    def _finish(self, decision: Decision, started: datetime, code: str | None, crashed: bool) -> None:
        assert decision.job_id is not None
        job, asset = self.jobs[decision.job_id], self.assets[decision.repo_id]
        del self.at_work[job.job_id]
        if crashed:
            self.seen.crashes += 1
            self.jobs[job.job_id] = replace(job, claim_expires_at=self.now + _CLAIM)
            return
        self.samples.append(
            Sample(
                repo_id=asset.repo_id,
                job_type=asset.job_type,
                instance=asset.instance,
                tenant=asset.tenant,
                mode=decision.mode,
                started_at=started,
                finished_at=self.now,
                status=RunStatus.FAILED if code else RunStatus.COMPLETED,
                code=code,
                requests=10,
                rate_limited=8 if code == "rate_limit" else 0,
                timeouts=3 if code == "timeout" else 0,
            )
        )
        if code is None:
            del self.jobs[job.job_id]
            if decision.mode is Mode.INCREMENTAL:
                self.assets[asset.repo_id] = replace(asset, visited_at=self.now)
            return
        wait = timedelta(seconds=seconds_until_retry(code, job.attempts))
        self.jobs[job.job_id] = replace(
            job, status=JobStatus.FAILED, claim_expires_at=None, not_before=self.now + wait
        )

    # What is watched -----------------------------------------------------------------------------------

    def _check(self) -> None:
        """The caps, at this very instant."""
        going = [*self.queue, *self.at_work.values()]
        by_instance, by_tenant = Counter(d.instance for d in going), Counter(d.tenant for d in going)
        most = self.seen.most
        for name, used, cap in (
            ("running", len(self.at_work), CAPS.running),
            ("queued", len(going), CAPS.queued),
            ("instance", max(by_instance.values(), default=0), CAPS.per_instance),
            ("tenant", max(by_tenant.values(), default=0), CAPS.per_tenant),
        ):
            assert used <= cap, f"{used} of {name}, and the cap is {cap}"
            most[name] = max(most[name], used)

    def _watch(self, decisions: Sequence[Decision]) -> None:
        seen, now = self.seen, self.now
        no_room = {d.tenant for d in decisions if d.reason in NO_ROOM}
        busy = {d.tenant for d in decisions if d.chosen or d.reason in AT_WORK}
        for tenant in TENANTS:
            if tenant in no_room - busy:
                since = self._waits.setdefault(tenant, now)
                seen.idle[tenant] = max(seen.idle[tenant], now - since)
            else:
                self._waits.pop(tenant, None)
        seen.moments.append(now)
        seen.running.append(len(self.at_work))
        seen.waiting.append(sum(d.reason in NO_ROOM for d in decisions))
        seen.held.append(sum(d.reason in MAY_NOT_START for d in decisions))
        seen.history.append(sum(j.mode is Mode.BACKFILL for j in self.jobs.values()))
        for instance in INSTANCES:
            oldest = min(u.visited_at or BEGINNING for u in self.assets.values() if u.instance == instance)
            seen.late[instance].append(now - oldest)
            breaker = self.breakers.get((BreakerScope.INSTANCE, instance))
            seen.states[instance].append(breaker.state if breaker else BreakerState.CLOSED)


def draw(seen: Seen, path: Path) -> None:
    """The month as a plot."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    colours: Mapping[str, str] = dict(zip(INSTANCES, ("tab:blue", "tab:orange", "tab:green"), strict=True))
    days = [(moment - BEGINNING) / timedelta(days=1) for moment in seen.moments]
    figure, (late, states, work, history) = pyplot.subplots(
        4, 1, figsize=(11, 9), sharex=True, height_ratios=(3, 1, 2, 1.5), layout="constrained"
    )
    for instance, colour in colours.items():
        hours = [age / timedelta(hours=1) for age in seen.late[instance]]
        late.plot(days, hours, color=colour, linewidth=1, label=instance)
    for weather in WEATHER:
        start = weather.start / timedelta(days=1)
        end = (weather.start + weather.length) / timedelta(days=1)
        late.axvspan(start, end, color=colours[weather.instance], alpha=0.15)
        late.annotate(weather.kind, (start, 0.97), xycoords=("data", "axes fraction"), fontsize=8, va="top")
    late.set_ylabel("least fresh repository\n(hours)")
    late.legend(loc="upper right", fontsize=8)
    for row, (instance, colour) in enumerate(colours.items()):
        found = seen.states[instance]
        for state, height in ((BreakerState.OPEN, 0.8), (BreakerState.HALF_OPEN, 0.4)):
            here = [day for day, s in zip(days, found, strict=True) if s is state]
            states.vlines(here, row, row + height, color=colour, linewidth=0.4)
    states.set_yticks([0.5, 1.5, 2.5], INSTANCES, fontsize=8)
    states.set_ylim(0, len(INSTANCES))
    states.set_ylabel("breaker:\nopen high,\nhalf open low")
    work.plot(days, seen.waiting, color="tab:red", linewidth=0.8, label="due, no room")
    work.plot(days, seen.held, color="tab:purple", linewidth=0.8, label="due, held back")
    work.plot(days, seen.running, color="black", linewidth=0.6, label="at work")
    work.set_ylabel("activities")
    work.legend(loc="upper right", fontsize=8)
    history.plot(days, seen.history, color="tab:gray")
    history.set_ylabel("history\nstill to read")
    history.set_xlabel("day")
    figure.suptitle("A month unattended: 200 repositories, 3 servers, 10 tenants (simulated)")
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    draw(Month().run(), Path(sys.argv[1]))
