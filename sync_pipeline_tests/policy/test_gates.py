"""What is due and may not start, and that each stop lets something find out whether it still has to hold."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from sync_pipeline.core.model import (
    BreakerScope,
    BreakerState,
    DecisionReason,
    JobStatus,
    JobType,
    Mode,
    RevisionWindow,
)
from sync_pipeline.policy.breaker import Breaker
from sync_pipeline.policy.degradation import suggest
from sync_pipeline.policy.planning import plan
from sync_pipeline.policy.snapshot import AssetState, BucketLevel, Decision, Pause, PlanningLimits, Snapshot
from sync_pipeline_tests.policy.builders import LIMITS, NOW, ago, asset, job, project, sample

DUE = project(1, visited_at=ago(minutes=6), tenant="team1")


def decide(*assets: AssetState, limits: PlanningLimits = LIMITS, **changes: Any) -> list[Decision]:
    jobs = changes.pop("jobs", ())
    return list(plan(Snapshot(assets, jobs, (), limits, **changes), NOW).decisions)


@pytest.mark.parametrize(
    "pause",
    [
        {},
        {"instance": "gitlab.example"},
        {"tenant": "team1"},
        {"repo_id": 1},
        {"repo_id": 1, "job_type": JobType.COMMITS},
        {"tenant": "team1", "until": NOW + timedelta(minutes=1)},
    ],
)
def test_a_pause_holds_back_what_it_names_and_says_until_when_and_by_whom(pause: dict[str, Any]) -> None:
    [decision] = decide(DUE, pauses=[Pause("upgrade", "ada", **pause)])
    assert (decision.reason, decision.chosen) == (DecisionReason.PAUSED, False)
    assert (decision.until, decision.detail) == (pause.get("until"), "upgrade (ada)")


@pytest.mark.parametrize(
    "pause",
    [
        {"instance": "other.example"},
        {"tenant": "team2"},
        {"repo_id": 2},
        {"job_type": JobType.REVIEWS},
        {"until": NOW},
    ],
)
def test_a_pause_holds_back_nothing_else_and_ends_by_itself(pause: dict[str, Any]) -> None:
    [decision] = decide(DUE, pauses=[Pause("upgrade", "ada", **pause)])
    assert decision.chosen


def test_nothing_starts_by_itself_where_it_is_switched_off_or_not_of_this_pool() -> None:
    [off] = decide(DUE, limits=replace(LIMITS, switched_on=False))
    [not_allowed] = decide(DUE, limits=replace(LIMITS, only=frozenset({JobType.REVISIONS})))
    [elsewhere] = decide(replace(DUE, in_pool=False))
    assert [d.reason for d in (off, not_allowed, elsewhere)] == [
        DecisionReason.SWITCHED_OFF,
        DecisionReason.SWITCHED_OFF,
        DecisionReason.OTHER_POOL,
    ]


def test_a_paused_rate_limit_holds_its_server_back_and_a_low_one_lets_others_go_first() -> None:
    other = replace(DUE, repo_id=2, instance="other.example", instance_slug="other_example")
    end = NOW + timedelta(seconds=30)
    held, free = sorted(
        decide(DUE, other, buckets={"gitlab.example": BucketLevel(paused_until=end)}), key=lambda d: d.repo_id
    )
    assert (held.reason, held.until, free.chosen) == (DecisionReason.RATE_LIMITED, end, True)
    low = decide(DUE, other, buckets={"gitlab.example": BucketLevel(level=0.1)})
    assert [d.repo_id for d in low if d.chosen] == [2, 1]


class TestABreaker:
    """Open it stops all but a little history, half open all but probes."""

    opened = Breaker(
        BreakerScope.INSTANCE,
        "gitlab.example",
        BreakerState.OPEN,
        ago(minutes=1),
        ago(minutes=1),
        reason="down",
    )
    half_open = replace(opened, state=BreakerState.HALF_OPEN, since=ago(seconds=1), opened_at=ago(minutes=6))
    assets = tuple(project(n, visited_at=ago(minutes=6), tenant="team1") for n in range(1, 9))
    elsewhere = project(9, instance="other.example", visited_at=ago(minutes=6))

    def test_that_is_open_stops_its_server_only(self) -> None:
        found = decide(*self.assets, self.elsewhere, breakers=[self.opened])
        assert [d.repo_id for d in found if d.chosen] == [9]
        held = [d for d in found if not d.chosen]
        assert {(d.reason, d.until, d.detail) for d in held} == {
            (DecisionReason.BREAKER_OPEN, NOW + timedelta(minutes=4), "instance gitlab.example: down")
        }

    def test_that_is_open_lets_a_little_history_on_in_small_pieces(self) -> None:
        old = replace(self.opened, opened_at=ago(minutes=11), since=ago(minutes=11))
        limits = replace(LIMITS, breaker=replace(LIMITS.breaker, open_for=timedelta(hours=1)))
        jobs = [job(n, n, job_type=JobType.COMMITS, window=RevisionWindow(n, n + 1)) for n in range(1, 4)]
        found = decide(*self.assets, limits=limits, breakers=[old], jobs=jobs)
        [chosen] = [d for d in found if d.chosen]
        assert (chosen.reason, chosen.mode) == (DecisionReason.OPEN_BACKFILL, Mode.BACKFILL)
        assert chosen.sizes is not None
        assert (chosen.sizes.batch, chosen.sizes.share) == (10, 0.1)
        # Not again before the interval, and not at all where the setting says so.
        lately = [sample(1, mode=Mode.BACKFILL, started_at=ago(minutes=9), finished_at=ago(minutes=8))]
        again = decide(*self.assets, limits=limits, breakers=[old], jobs=jobs, samples=lately)
        never = decide(*self.assets, limits=replace(limits, open_backfill=None), breakers=[old], jobs=jobs)
        assert not [d for d in (*again, *never) if d.chosen]

    def test_that_is_half_open_lets_few_probes_through(self) -> None:
        found = decide(*self.assets, breakers=[self.half_open])
        assert [d.reason for d in found if d.chosen] == [DecisionReason.PROBE] * LIMITS.probes_per_scan
        running = [
            replace(
                job(n, n, job_type=JobType.COMMITS, mode=Mode.INCREMENTAL, window=None),
                status=JobStatus.RUNNING,
                claim_expires_at=NOW + timedelta(minutes=5),
            )
            for n in (1, 2)
        ]
        assert (
            len([d for d in decide(*self.assets, breakers=[self.half_open], jobs=running) if d.chosen]) == 1
        )

    def test_that_is_half_open_prefers_the_probe_job_types_but_never_waits_for_what_is_not_there(
        self,
    ) -> None:
        limits = replace(LIMITS, probe_job_types=frozenset({JobType.COMMITS}))
        reviews = project(20, JobType.REVIEWS, visited_at=ago(minutes=9), tenant="team1")
        found = decide(*self.assets, reviews, limits=limits, breakers=[self.half_open])
        assert {d.job_type for d in found if d.chosen} == {JobType.COMMITS}
        svn = replace(self.half_open, key="local")
        found = decide(asset(visited_at=ago(minutes=6)), limits=limits, breakers=[svn])
        assert [d.reason for d in found] == [DecisionReason.PROBE]

    @pytest.mark.parametrize(
        "blocker", ["paused", "switched_off", "other_pool", "not_due", "resting", "breaker_open"]
    )
    def test_that_is_half_open_is_probed_by_others_where_the_probe_job_types_may_not_start(
        self, blocker: str
    ) -> None:
        limits = replace(LIMITS, probe_job_types=frozenset({JobType.COMMITS}))
        commits = [replace(u, tenant="team2") for u in self.assets]
        others = [replace(u, job_type=JobType.MERGE_REQUESTS, tenant="team1") for u in self.assets]
        breakers, facts = [self.half_open], dict[str, Any]()
        if blocker == "paused":
            facts["pauses"] = [Pause("broken", "ada", job_type=JobType.COMMITS)]
        elif blocker == "switched_off":
            limits = replace(limits, only=frozenset({JobType.MERGE_REQUESTS, JobType.REVIEWS}))
        elif blocker == "other_pool":
            commits = [replace(u, in_pool=False) for u in commits]
        elif blocker == "not_due":
            commits = [replace(u, visited_at=ago(minutes=1)) for u in commits]
        elif blocker == "resting":
            ends = [ago(seconds=n) for n in (4, 3, 2, 1)]
            facts["samples"] = [
                sample(u.repo_id, timeouts=1, started_at=ago(minutes=2), finished_at=end)
                for u in commits
                for end in ends
            ]
        else:
            # All of it is half open, and the server of the commits is down.
            commits = [replace(u, instance="down.example") for u in commits]
            breakers = [
                replace(self.half_open, scope=BreakerScope.GLOBAL, key=""),
                replace(self.opened, key="down.example"),
            ]
        found = decide(*commits, *others, limits=limits, breakers=breakers, **facts)
        chosen = [(d.job_type, d.reason) for d in found if d.chosen]
        probes = 1 if blocker == "breaker_open" else limits.probes_per_scan
        assert chosen == [(JobType.MERGE_REQUESTS, DecisionReason.PROBE)] * probes

    def test_of_everything_asks_different_servers(self) -> None:
        """One that is down, and most overdue, would keep all others stopped."""
        down = [replace(u, instance="down.example", visited_at=ago(hours=9)) for u in self.assets]
        well = [replace(u, repo_id=u.repo_id + 20) for u in self.assets]
        found = decide(*down, *well, breakers=[replace(self.half_open, scope=BreakerScope.GLOBAL, key="")])
        assert [d.instance for d in found if d.chosen] == ["down.example", "gitlab.example"]

    def test_of_any_scope_blocks(self) -> None:
        for scope, key in ((BreakerScope.GLOBAL, ""), (BreakerScope.TENANT, "team1")):
            found = decide(*self.assets, breakers=[replace(self.opened, scope=scope, key=key)])
            assert not [d for d in found if d.chosen]


def test_what_fails_too_often_is_left_alone_and_then_probed_by_one_run() -> None:
    failed = [sample(1, code="malformed", finished_at=ago(minutes=n)) for n in (1, 3, 5)]
    history = job(1, 1, job_type=JobType.COMMITS)
    blocked = decide(DUE, jobs=(history,), samples=failed)
    assert {(d.reason, d.until) for d in blocked} == {
        (DecisionReason.ERROR_BUDGET, NOW + timedelta(minutes=4))
    }
    old = [replace(s, finished_at=s.finished_at - timedelta(minutes=6)) for s in failed]
    probed = decide(DUE, jobs=(history,), samples=old)
    assert sorted(d.reason for d in probed) == [DecisionReason.ERROR_BUDGET, DecisionReason.PROBE]
    # The first success ends it.
    recovered = decide(DUE, jobs=(history,), samples=[*failed, sample(1, finished_at=ago(seconds=9))])
    assert all(d.chosen for d in recovered)


@pytest.mark.parametrize("code", ["watermark_set", "no_room", "database_busy", "database_down"])
def test_what_says_nothing_about_the_source_uses_no_error_budget(code: str) -> None:
    failed = [sample(1, code=code, finished_at=ago(minutes=n)) for n in (1, 3, 5)]
    assert all(d.chosen for d in decide(DUE, samples=failed))


def test_the_error_budget_of_one_job_type_is_no_matter_of_another() -> None:
    failed = [sample(1, code="malformed", finished_at=ago(minutes=n)) for n in (1, 3, 5)]
    found = decide(DUE, replace(DUE, job_type=JobType.MERGE_REQUESTS), samples=failed)
    assert {d.job_type for d in found if d.chosen} == {JobType.MERGE_REQUESTS}


def test_what_failed_or_was_slowed_down_goes_after_its_equals() -> None:
    assets = [replace(DUE, repo_id=n) for n in (1, 2, 3)]
    samples = [sample(1, rate_limited=3), sample(2, code="malformed"), sample(2), sample(2)]
    found = decide(*assets, samples=samples)
    assert [d.repo_id for d in found] == [3, 2, 1]


def test_time_outs_in_a_row_earn_a_rest_and_smaller_pieces() -> None:
    slow = [sample(1, timeouts=1, finished_at=ago(seconds=n)) for n in (4, 3, 2, 1)]
    [resting] = decide(DUE, samples=slow)
    assert (resting.reason, resting.until) == (DecisionReason.DEGRADED, NOW + timedelta(seconds=1))
    later = [replace(s, finished_at=s.finished_at - timedelta(minutes=2)) for s in slow]
    [smaller] = decide(DUE, samples=later)
    assert smaller.sizes is not None
    assert (smaller.sizes.batch, smaller.sizes.reasons) == (10, ("slow answers",))


def test_degradation_that_is_switched_off_leaves_sizes_and_times_as_usual() -> None:
    slow = [sample(1, timeouts=1, finished_at=ago(seconds=n)) for n in (4, 3, 2, 1)]
    limits = replace(LIMITS, degradation=replace(LIMITS.degradation, enabled=False))
    [decision] = decide(DUE, samples=slow, limits=limits)
    assert (decision.chosen, decision.sizes) == (True, suggest((), LIMITS.degradation))
