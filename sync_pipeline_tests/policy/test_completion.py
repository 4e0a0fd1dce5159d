"""Completion jobs: when the planned fetches of an asset are read, and what goes first."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from sync_pipeline.core.model import (
    Access,
    BreakerScope,
    BreakerState,
    DecisionReason,
    JobStatus,
    JobType,
    Mode,
    TimeWindow,
)
from sync_pipeline.policy.breaker import Breaker
from sync_pipeline.policy.history import COMPLETION_PRIORITY, HISTORY_PRIORITY
from sync_pipeline.policy.planning import plan
from sync_pipeline.policy.snapshot import (
    AssetState,
    BucketLevel,
    Caps,
    Decision,
    InFlight,
    Job,
    Pause,
    Snapshot,
)
from sync_pipeline_tests.policy.builders import LIMITS, NOW, ago, job, project

MRS, REVIEWS = JobType.MERGE_REQUESTS, JobType.REVIEWS
OLD = TimeWindow(ago(days=900), ago(days=600))
NEW = TimeWindow(ago(days=80), ago(days=30))


def usable(repo_id: int = 1, job_type: JobType = REVIEWS, **changes: Any) -> AssetState:
    """An asset that is up to date and has planned fetches."""
    return project(repo_id, job_type, **({"has_planned": True} | changes))


def history(number: int, repo_id: int, **changes: Any) -> Job:
    settled: dict[str, Any] = {"job_type": MRS, "window": NEW, "priority": HISTORY_PRIORITY}
    return job(number, repo_id, **(settled | changes))


def decisions(assets: list[AssetState], jobs: list[Job] | None = None, **changes: Any) -> list[Decision]:
    limits = replace(LIMITS, **changes.pop("limits", {}))
    found = plan(Snapshot(assets, jobs or [], changes.pop("runs", ()), limits, **changes), NOW)
    return list(found.decisions)


def completion(found: list[Decision]) -> dict[tuple[int, JobType], DecisionReason]:
    return {(d.repo_id, d.job_type): d.reason for d in found if d.only_deferred}


def test_planned_fetches_are_read_when_nothing_else_is_to_do() -> None:
    found = decisions([usable(), project(2)])
    [chosen] = [d for d in found if d.chosen]
    assert (chosen.mode, chosen.window, chosen.job_id) == (Mode.REPAIR, None, None)
    assert (chosen.reason, chosen.priority) == (DecisionReason.PLANNED_FETCHES, COMPLETION_PRIORITY)
    assert completion(decisions([project(1)])) == {}


def test_merge_requests_and_reviews_of_one_repository_are_completed_together() -> None:
    found = decisions([usable(1, MRS), usable(1, REVIEWS)], limits={"caps": Caps(9, 9, 1, 9, 9)})
    assert {(d.job_type, d.chosen) for d in found if d.only_deferred} == {(MRS, True), (REVIEWS, True)}


def test_an_active_completion_job_is_not_made_a_second_time() -> None:
    waiting = job(1, job_type=REVIEWS, mode=Mode.REPAIR, window=None, only_deferred=True)
    found = [d for d in decisions([usable()], [waiting]) if d.only_deferred]
    assert [(d.job_id, d.reason) for d in found] == [(waiting.job_id, DecisionReason.PENDING)]
    at_work = InFlight(frozenset({1}), REVIEWS, Mode.REPAIR, None)
    assert completion(decisions([usable()], runs=[at_work])) == {(1, REVIEWS): DecisionReason.IN_FLIGHT}


@pytest.mark.parametrize("status", [JobStatus.PENDING, JobStatus.RUNNING])
def test_history_of_the_same_server_goes_first_whether_it_waits_or_runs(status: JobStatus) -> None:
    expires = NOW + timedelta(minutes=5) if status is JobStatus.RUNNING else None
    busy = history(1, 2, status=status, claim_expires_at=expires)
    assets = [usable(1), project(2, MRS), usable(3, instance="other.example")]
    assert completion(decisions(assets, [busy])) == {
        (1, REVIEWS): DecisionReason.MORE_URGENT,
        (3, REVIEWS): DecisionReason.PLANNED_FETCHES,
    }


def test_live_syncing_that_found_no_room_goes_first() -> None:
    due = [project(n, visited_at=ago(hours=1), tenant="t") for n in (2, 3)]
    found = decisions([usable(1, tenant="u"), *due], limits={"caps": Caps(9, 9, 9, 9, 1)})
    assert completion(found) == {(1, REVIEWS): DecisionReason.MORE_URGENT}
    # With room for all, completion starts beside them.
    assert completion(decisions([usable(1, tenant="u"), *due])) == {
        (1, REVIEWS): DecisionReason.PLANNED_FETCHES
    }


def test_history_that_may_not_start_holds_no_completion_back() -> None:
    pause = Pause("audit", "me", repo_id=2)
    found = decisions([usable(1), project(2, MRS)], [history(1, 2)], pauses=[pause])
    assert completion(found) == {(1, REVIEWS): DecisionReason.PLANNED_FETCHES}


def test_two_completions_of_a_server_are_at_work_at_most() -> None:
    found = decisions([usable(n) for n in (1, 2, 3)] + [usable(4, instance="other.example")])
    reasons = sorted(completion(found).values())
    assert reasons == [DecisionReason.COMPLETION_CAP] + 3 * [DecisionReason.PLANNED_FETCHES]


@pytest.mark.parametrize("state", [BreakerState.OPEN, BreakerState.HALF_OPEN])
def test_a_server_in_trouble_is_not_asked_for_planned_fetches(state: BreakerState) -> None:
    breaker = Breaker(
        BreakerScope.INSTANCE, "gitlab.example", state=state, since=ago(minutes=1), opened_at=ago(minutes=1)
    )
    assert completion(decisions([usable()], breakers=[breaker])) == {
        (1, REVIEWS): DecisionReason("breaker_open" if state is BreakerState.OPEN else "half_open")
    }
    paused = {"gitlab.example": BucketLevel(paused_until=NOW + timedelta(minutes=1))}
    assert completion(decisions([usable()], buckets=paused)) == {(1, REVIEWS): DecisionReason.RATE_LIMITED}
    assert completion(decisions([usable()], pauses=[Pause("x", "me")])) == {
        (1, REVIEWS): DecisionReason.PAUSED
    }
    refused = {"gitlab.example": ago(minutes=1)}
    assert completion(decisions([usable()], refused=refused)) == {(1, REVIEWS): DecisionReason.CREDENTIAL}


def test_a_completion_that_did_not_get_on_rests_for_a_while() -> None:
    found = decisions([usable(completion_stuck_at=ago(minutes=10))])
    [rests] = [d for d in found if d.only_deferred]
    assert (rests.reason, rests.until) == (DecisionReason.NOT_YET, NOW + timedelta(minutes=50))
    again = decisions([usable(completion_stuck_at=ago(minutes=61))])
    assert completion(again) == {(1, REVIEWS): DecisionReason.PLANNED_FETCHES}
    assert completion(decisions([usable(access=Access.DENIED)])) == {(1, REVIEWS): DecisionReason.NO_ACCESS}


def test_the_newest_history_of_all_tenants_goes_before_older_history_of_any() -> None:
    """Tenants take turns inside a stage, and not between two of them."""
    assets = [project(n, MRS, tenant=f"t{n}") for n in (1, 2, 3)]
    jobs = [
        history(1, 1, window=OLD, priority=HISTORY_PRIORITY + 2, created_at=ago(days=9)),
        history(2, 2, window=NEW),
        history(3, 3, window=OLD, priority=HISTORY_PRIORITY + 3, created_at=ago(days=8)),
        history(4, 3, window=NEW),
        history(5, 1, window=NEW),
    ]
    found = decisions(assets, jobs, limits={"caps": Caps(9, 99, 99, 99, 99)})
    order = [d.priority - HISTORY_PRIORITY for d in found if d.chosen]
    assert order == [0, 0, 0, 2, 3]
    few = decisions(assets, jobs, limits={"caps": Caps(9, 99, 3, 99, 99)})
    assert {d.window for d in few if d.chosen} == {NEW}


def test_older_history_that_waited_a_month_waits_no_longer() -> None:
    assets = [project(1, MRS), project(2, MRS)]
    jobs = [
        history(1, 1, window=OLD, priority=HISTORY_PRIORITY + 5, created_at=ago(days=31)),
        history(2, 2, window=NEW, created_at=ago(minutes=1)),
    ]
    found = decisions(assets, jobs, limits={"caps": Caps(9, 99, 1, 99, 99)})
    assert [d.window for d in found if d.chosen] == [OLD]
