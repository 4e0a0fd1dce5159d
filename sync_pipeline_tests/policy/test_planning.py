"""What is started when, and that every refusal has a reason."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sync_pipeline.core.model import (
    Access,
    DecisionReason,
    JobStatus,
    JobType,
    Lifecycle,
    Mode,
    RevisionWindow,
    TimeWindow,
)
from sync_pipeline.policy.planning import plan
from sync_pipeline.policy.snapshot import AssetState, Decision, InFlight, Job, Snapshot
from sync_pipeline_tests.policy.builders import BLOCK, LIMITS, NOW, ago, asset, job, project


def decide(
    *assets: AssetState, jobs: tuple[Job, ...] = (), runs: tuple[InFlight, ...] = ()
) -> list[Decision]:
    return list(plan(Snapshot(assets, jobs, runs, LIMITS), NOW).decisions)


@pytest.mark.parametrize(
    ("changes", "reason", "chosen"),
    [
        ({"visited_at": None}, DecisionReason.NEVER_VISITED, True),
        ({}, DecisionReason.NOT_YET, False),
        ({"visited_at": ago(minutes=6)}, DecisionReason.INTERVAL, True),
        ({"hint_head": 11, "hint_at": NOW}, DecisionReason.HINT, True),
        ({"hint_head": 10, "hint_at": NOW}, DecisionReason.NOTHING_NEW, False),
        ({"hint_head": 10, "hint_at": NOW, "visited_at": ago(minutes=20)}, DecisionReason.NOTHING_NEW, False),
        ({"hint_head": 10, "hint_at": NOW, "visited_at": ago(minutes=31)}, DecisionReason.INTERVAL, True),
        ({"hint_head": 9, "hint_at": NOW}, DecisionReason.HINT, True),
        ({"hint_head": 11, "hint_at": ago(minutes=2)}, DecisionReason.NOT_YET, False),
        ({"hint_head": 11, "hint_at": NOW, "hint_failed": True}, DecisionReason.NOT_YET, False),
        (
            {"hint_head": 10, "hint_at": ago(minutes=6), "visited_at": ago(minutes=7)},
            DecisionReason.INTERVAL,
            True,
        ),
        ({"watermark": None, "hint_head": 3, "hint_at": NOW, "head": None}, DecisionReason.HINT, True),
        ({"lifecycle": Lifecycle.RETIRED, "visited_at": None}, DecisionReason.RETIRED, False),
        ({"access": Access.REPLACED, "visited_at": ago(days=9)}, DecisionReason.REPLACED, False),
        ({"access": Access.DENIED, "visited_at": ago(minutes=59)}, DecisionReason.NO_ACCESS, False),
        ({"access": Access.DENIED, "visited_at": ago(minutes=61)}, DecisionReason.REPROBE, True),
        ({"access": Access.GONE, "visited_at": ago(minutes=61)}, DecisionReason.REPROBE, True),
        ({"access": Access.GONE, "hint_head": 99, "hint_at": NOW}, DecisionReason.NO_ACCESS, False),
        ({"dead_at": ago(minutes=30), "visited_at": ago(days=1)}, DecisionReason.DEAD, False),
        ({"dead_at": ago(minutes=61), "visited_at": ago(days=1)}, DecisionReason.REPROBE, True),
        # What did not work for a moment is looked at again at the usual time, then in steps that double.
        ({"dead_at": ago(minutes=4), "dead_since": ago(minutes=4)}, DecisionReason.DEAD, False),
        ({"dead_at": ago(minutes=6), "dead_since": ago(minutes=6)}, DecisionReason.REPROBE, True),
        ({"dead_at": ago(minutes=19), "dead_since": ago(minutes=39)}, DecisionReason.DEAD, False),
        ({"dead_at": ago(minutes=21), "dead_since": ago(minutes=41)}, DecisionReason.REPROBE, True),
        ({"dead_at": ago(minutes=59), "dead_since": ago(days=9)}, DecisionReason.DEAD, False),
        (
            {"access": Access.DENIED, "visited_at": ago(minutes=6), "access_since": ago(minutes=6)},
            DecisionReason.REPROBE,
            True,
        ),
        (
            {"access": Access.DENIED, "visited_at": ago(minutes=9), "access_since": ago(minutes=20)},
            DecisionReason.NO_ACCESS,
            False,
        ),
    ],
)
def test_a_repository_is_due_by_interval_or_hint_and_paused_by_its_access(
    changes: dict[str, Any], reason: DecisionReason, chosen: bool
) -> None:
    [decision] = decide(asset(**changes))
    assert (decision.reason, decision.chosen, decision.mode) == (reason, chosen, Mode.INCREMENTAL)


@pytest.mark.parametrize(
    ("changes", "reason", "chosen"),
    [
        ({}, DecisionReason.PENDING, True),
        ({"not_before": NOW + timedelta(seconds=1)}, DecisionReason.WAITS_FOR_RETRY, False),
        ({"status": JobStatus.FAILED, "not_before": NOW}, DecisionReason.RETRY, True),
        (
            {"status": JobStatus.FAILED, "not_before": NOW + timedelta(1)},
            DecisionReason.WAITS_FOR_RETRY,
            False,
        ),
        (
            {"status": JobStatus.RUNNING, "claim_expires_at": NOW + timedelta(seconds=9)},
            DecisionReason.RUNNING,
            False,
        ),
        ({"status": JobStatus.RUNNING, "claim_expires_at": ago(seconds=1)}, DecisionReason.TAKEOVER, True),
    ],
)
def test_a_job_runs_when_it_waits_may_be_retried_or_lost_its_worker(
    changes: dict[str, Any], reason: DecisionReason, chosen: bool
) -> None:
    found = decide(asset(), jobs=(job(**changes),))
    decision = next(d for d in found if d.mode is Mode.BACKFILL)
    assert (decision.reason, decision.chosen) == (reason, chosen)


def test_a_repository_with_an_active_incremental_gets_no_second_one() -> None:
    waiting = job(mode=Mode.INCREMENTAL, window=None)
    [decision] = decide(asset(visited_at=None), jobs=(waiting,))
    assert decision.job_id == waiting.job_id


@pytest.mark.parametrize(
    "changes", [{"lifecycle": Lifecycle.RETIRED}, {"access": Access.REPLACED}, {"access": Access.DENIED}]
)
def test_history_waits_while_the_repository_is_paused(changes: dict[str, Any]) -> None:
    assert not [d for d in decide(asset(**changes), jobs=(job(),)) if d.chosen]


def test_a_dead_incremental_does_not_stop_history() -> None:
    found = decide(asset(dead_at=ago(minutes=1)), jobs=(job(),))
    assert [d.reason for d in found if d.chosen] == [DecisionReason.PENDING]


def test_what_a_waiting_run_will_do_is_not_started_again() -> None:
    ones = frozenset({1})
    wide = InFlight(ones, JobType.REVISIONS, Mode.BACKFILL, RevisionWindow(1, 2001))
    live = InFlight(ones, JobType.REVISIONS, Mode.INCREMENTAL, None)
    outside = job(2, window=RevisionWindow(2001, 3001))
    found = decide(asset(visited_at=None), jobs=(job(), outside), runs=(wide, live))
    assert [d.job_id for d in found if d.chosen] == [outside.job_id]
    assert [d.reason for d in found if not d.chosen] == [DecisionReason.IN_FLIGHT, DecisionReason.IN_FLIGHT]


def test_the_smaller_priority_goes_first_and_the_tick_is_capped_with_a_reason() -> None:
    jobs = tuple(job(n, n, priority=1000 - n, window=BLOCK) for n in range(1, 151))
    assets = [asset(n) for n in range(1, 151)]
    found = plan(Snapshot(assets, jobs, (), LIMITS), NOW).decisions
    chosen = [d for d in found if d.chosen]
    assert [d.priority for d in chosen] == list(range(850, 950))
    assert sum(d.reason is DecisionReason.TICK_FULL for d in found) == 50


def test_every_job_and_every_repository_is_explained_once() -> None:
    found = decide(asset(1), asset(2, lifecycle=Lifecycle.RETIRED), jobs=(job(1), job(2, window=None)))
    assert len(found) == 4
    assert all(isinstance(d.reason, DecisionReason) for d in found)


def test_a_decision_against_says_until_when() -> None:
    [decision] = decide(asset())
    assert decision.until == ago(minutes=1) + LIMITS.sync_interval


# GitLab -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, DecisionReason.NOT_YET),
        ({"hint_activity_at": ago(minutes=1), "hint_at": NOW}, DecisionReason.HINT),
        # The same time as at the visit is nothing new, and a hint from before the visit says nothing.
        ({"hint_activity_at": ago(days=1), "hint_at": NOW}, DecisionReason.NOTHING_NEW),
        ({"hint_activity_at": ago(minutes=1), "hint_at": ago(minutes=2)}, DecisionReason.NOT_YET),
        # What never succeeded is not hurried by hints; the ledger retries it.
        ({"hint_activity_at": NOW, "hint_at": NOW, "activity_at": None}, DecisionReason.NOT_YET),
        # The server shows activity once an hour: what was active lately may have been so again.
        (
            {"hint_activity_at": ago(minutes=50), "hint_at": NOW, "activity_at": ago(minutes=50)},
            DecisionReason.NOT_YET,
        ),
        (
            {"hint_activity_at": ago(minutes=63), "hint_at": NOW, "activity_at": ago(minutes=63)},
            DecisionReason.NOTHING_NEW,
        ),
        ({"visited_at": ago(minutes=6)}, DecisionReason.INTERVAL),
        # A listing of its root that went further back than the watermark would have shown it.
        (
            {"visited_at": ago(minutes=6), "listed_at": NOW, "listed_down_to": ago(hours=2)},
            DecisionReason.NOTHING_NEW,
        ),
        ({"visited_at": ago(minutes=6), "listed_at": NOW}, DecisionReason.NOTHING_NEW),
        (
            {"visited_at": ago(minutes=6), "listed_at": NOW, "listed_down_to": ago(hours=1)},
            DecisionReason.INTERVAL,
        ),
        ({"visited_at": ago(minutes=6), "listed_at": ago(minutes=31)}, DecisionReason.INTERVAL),
        ({"visited_at": ago(minutes=31), "listed_at": NOW}, DecisionReason.INTERVAL),
        ({"access": Access.ARCHIVED, "visited_at": ago(minutes=6)}, DecisionReason.INTERVAL),
        ({"access": Access.MOVED, "visited_at": ago(minutes=6)}, DecisionReason.INTERVAL),
        ({"access": Access.DISABLED, "visited_at": ago(minutes=6)}, DecisionReason.NO_ACCESS),
        ({"access": Access.DISABLED, "visited_at": ago(minutes=61)}, DecisionReason.REPROBE),
        ({"visited_at": None, "configured": False}, DecisionReason.NOT_CONFIGURED),
    ],
)
def test_a_project_is_due_by_interval_or_activity_and_waits_while_its_root_is_quiet(
    changes: dict[str, Any], reason: DecisionReason
) -> None:
    [decision] = decide(project(**changes))
    assert decision.reason is reason


def test_merge_requests_and_reviews_stay_in_step() -> None:
    late = project(1, JobType.MERGE_REQUESTS, visited_at=ago(minutes=6))
    soon = project(1, JobType.REVIEWS, visited_at=ago(minutes=4))
    other = project(1, JobType.COMMITS)
    found = {d.job_type: d for d in decide(late, soon, other)}
    assert found[JobType.REVIEWS].reason is DecisionReason.COALESCED
    assert found[JobType.REVIEWS].priority == found[JobType.MERGE_REQUESTS].priority
    assert {job_type for job_type, d in found.items() if d.chosen} == {
        JobType.MERGE_REQUESTS,
        JobType.REVIEWS,
    }
    # What is paused for a reason of its own stays so.
    paused = replace(soon, access=Access.DENIED)
    assert [d.job_type for d in decide(late, paused) if d.chosen] == [JobType.MERGE_REQUESTS]


def test_windows_of_time_in_a_waiting_run_are_not_started_again() -> None:
    year = TimeWindow(datetime(2024, 1, 1, tzinfo=UTC), datetime(2025, 1, 1, tzinfo=UTC))
    before = TimeWindow(datetime(1900, 1, 1, tzinfo=UTC), datetime(2024, 1, 1, tzinfo=UTC))
    jobs = (
        job(1, window=year, job_type=JobType.REVIEWS),
        job(2, window=before, job_type=JobType.REVIEWS),
    )
    run = InFlight(frozenset({1}), JobType.REVIEWS, Mode.BACKFILL, year)
    found = {d.job_id: d.reason for d in decide(project(1, JobType.REVIEWS), jobs=jobs, runs=(run,))}
    assert (found[jobs[0].job_id], found[jobs[1].job_id]) == (
        DecisionReason.IN_FLIGHT,
        DecisionReason.PENDING,
    )


class TestARefusedToken:
    """Nothing is started on the instance but one incremental an hour later."""

    assets = (
        *(project(n, visited_at=ago(minutes=6)) for n in range(1, 6)),
        project(6, JobType.MERGE_REQUESTS, visited_at=ago(minutes=6)),
        project(6, JobType.REVIEWS, visited_at=ago(minutes=6)),
        project(7, instance="elsewhere.example", visited_at=ago(minutes=6)),
    )
    history = job(1, 1, job_type=JobType.COMMITS)

    def decide(
        self, refused: timedelta, *, jobs: tuple[Job, ...] = (), runs: tuple[InFlight, ...] = ()
    ) -> list[Decision]:
        refused_at = {"gitlab.example": NOW - refused}
        return list(
            plan(Snapshot(self.assets, (self.history, *jobs), runs, LIMITS, refused_at), NOW).decisions
        )

    def test_starts_nothing_on_its_instance(self) -> None:
        found = self.decide(timedelta(minutes=59))
        assert [d.repo_id for d in found if d.chosen] == [7]
        held = [d for d in found if d.reason is DecisionReason.CREDENTIAL]
        assert len(held) == 8
        assert {d.until for d in held} == {NOW + timedelta(minutes=1)}

    def test_is_tried_by_one_incremental_after_an_hour(self) -> None:
        found = self.decide(timedelta(hours=1))
        tried = [d for d in found if d.chosen and d.instance == "gitlab.example"]
        assert [(d.reason, d.mode) for d in tried] == [(DecisionReason.REPROBE, Mode.INCREMENTAL)]

    @pytest.mark.parametrize(("first", "last", "tried"), [(6, 6, 1), (4, 4, 0), (30, 14, 0), (30, 16, 1)])
    def test_that_was_refused_for_a_moment_is_tried_soon(self, first: int, last: int, tried: int) -> None:
        instance = "gitlab.example"
        last_at, first_at = {instance: ago(minutes=last)}, {instance: ago(minutes=first)}
        snapshot = Snapshot(self.assets, (), (), LIMITS, last_at, refused_since=first_at)
        found = plan(snapshot, NOW).decisions
        assert sum(d.chosen and d.instance == instance for d in found) == tried

    def test_is_not_tried_twice_at_once(self) -> None:
        one = frozenset({3})
        flying = InFlight(one, JobType.COMMITS, Mode.INCREMENTAL, None)
        running = job(2, 3, job_type=JobType.COMMITS, mode=Mode.INCREMENTAL, window=None)
        running = replace(running, status=JobStatus.RUNNING, claim_expires_at=NOW + timedelta(minutes=5))
        waits = replace(
            running, status=JobStatus.FAILED, claim_expires_at=None, not_before=NOW + timedelta(1)
        )
        for jobs, runs in (((), (flying,)), ((running,), ()), ((waits,), ())):
            found = self.decide(timedelta(hours=2), jobs=jobs, runs=runs)
            assert [d.repo_id for d in found if d.chosen] == [7]

    def test_is_tried_by_the_probe_that_got_no_answer(self) -> None:
        again = job(2, 3, job_type=JobType.COMMITS, mode=Mode.INCREMENTAL, window=None)
        again = replace(again, status=JobStatus.FAILED, not_before=NOW, priority=500)
        found = self.decide(timedelta(hours=2), jobs=(again,))
        assert [d.job_id for d in found if d.chosen and d.instance == "gitlab.example"] == [again.job_id]


class TestALongBackfill:
    """It starts in pieces, the newest one first."""

    whole = TimeWindow(ago(days=30), ago(days=2))
    piece = TimeWindow(ago(days=9), ago(days=2))
    rest = TimeWindow(ago(days=30), ago(days=9))
    limits = replace(LIMITS, longest_backfill=timedelta(days=7))

    def decide(self, window: TimeWindow, job_type: JobType, **changes: Any) -> Decision:
        waiting = job(job_type=job_type, window=window, **changes.pop("job", {}))
        changes.setdefault("history_start", ago(days=900))
        snapshot = Snapshot((project(1, job_type),), (waiting,), (), self.limits, **changes)
        [found] = [d for d in plan(snapshot, NOW).decisions if d.mode is waiting.mode]
        assert found.chosen
        return found

    @pytest.mark.parametrize("job_type", [JobType.MERGE_REQUESTS, JobType.REVIEWS])
    def test_that_is_read_by_time_is_cut(self, job_type: JobType) -> None:
        found = self.decide(self.whole, job_type)
        assert (found.window, found.rest) == (self.piece, self.rest)
        lost = {"status": JobStatus.RUNNING, "claim_expires_at": ago(seconds=1)}
        assert self.decide(self.whole, job_type, job=lost).rest == self.rest

    def test_that_fits_or_is_of_commits_or_a_repair_stays_whole(self) -> None:
        assert self.decide(self.piece, JobType.REVIEWS).rest is None
        assert self.decide(self.whole, JobType.COMMITS).rest is None
        assert self.decide(self.whole, JobType.REVIEWS, job={"mode": Mode.REPAIR}).rest is None

    @pytest.mark.parametrize("oldest_fact", [ago(days=8), None])
    def test_that_reaches_back_before_all_facts_is_not_cut_there(self, oldest_fact: datetime | None) -> None:
        found = self.decide(self.whole, JobType.REVIEWS, history_start=oldest_fact)
        assert (found.window, found.rest) == (self.whole, None)
