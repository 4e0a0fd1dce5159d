"""How much is started and who goes first: the stated invariants, for any fleet."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sync_pipeline.core.model import DecisionReason, JobStatus, JobType, Mode, TimeWindow
from sync_pipeline.policy.gates import AT_WORK, activity_key
from sync_pipeline.policy.planning import plan
from sync_pipeline.policy.snapshot import (
    NO_ROOM,
    AssetState,
    Caps,
    Decision,
    InFlight,
    Job,
    Plan,
    PlanningLimits,
    Snapshot,
)
from sync_pipeline_tests.policy.builders import LIMITS, NOW, ago, job, project

GITLAB = (JobType.COMMITS, JobType.MERGE_REQUESTS, JobType.REVIEWS)
DAYS = [TimeWindow(ago(days=n + 1), ago(days=n)) for n in range(6)]


def decide(assets: list[AssetState], jobs: list[Job], caps: Caps, **changes: Any) -> Plan:
    limits: PlanningLimits = replace(LIMITS, caps=caps, **changes.pop("limits", {}))
    return plan(Snapshot(assets, jobs, changes.pop("runs", ()), limits, **changes), NOW)


def of(reason: DecisionReason, found: Plan) -> int:
    return len({activity_key(d) for d in found.decisions if d.reason is reason})


caps = st.builds(
    Caps,
    running=st.integers(1, 6),
    queued=st.integers(1, 12),
    per_scan=st.integers(1, 12),
    per_instance=st.integers(1, 6),
    per_tenant=st.integers(1, 6),
)


@st.composite
def fleets(draw: st.DrawFn) -> tuple[list[AssetState], list[Job], list[InFlight]]:
    """Projects of a few servers and tenants; some due, some at work, some with history waiting."""
    assets: list[AssetState] = []
    jobs: list[Job] = []
    runs: list[InFlight] = []
    for repo_id in range(1, draw(st.integers(1, 12)) + 1):
        instance = draw(st.sampled_from(["a.example", "b.example"]))
        tenant = draw(st.sampled_from(["t1", "t2", "t3"]))
        for job_type in GITLAB:
            visited = draw(st.sampled_from([None, ago(minutes=1), ago(minutes=7), ago(hours=9)]))
            assets.append(project(repo_id, job_type, instance=instance, tenant=tenant, visited_at=visited))
            for day in draw(st.lists(st.sampled_from(DAYS), max_size=2, unique=True)):
                status = draw(st.sampled_from([JobStatus.PENDING, JobStatus.RUNNING, JobStatus.FAILED]))
                jobs.append(
                    job(
                        len(jobs) + 1,
                        repo_id,
                        job_type=job_type,
                        window=day,
                        status=status,
                        priority=draw(st.sampled_from([100, 900])),
                        claim_expires_at=NOW + timedelta(minutes=draw(st.sampled_from([-1, 4]))),
                    )
                )
            if draw(st.booleans()) and draw(st.booleans()):
                runs.append(InFlight(frozenset({repo_id}), job_type, Mode.INCREMENTAL, None))
    return assets, jobs, runs


@given(fleets(), caps)
def test_no_cap_is_exceeded_by_what_is_started(
    fleet: tuple[list[AssetState], list[Job], list[InFlight]], caps: Caps
) -> None:
    assets, jobs, runs = fleet
    found = decide(assets, jobs, caps, runs=runs)
    chosen: dict[Any, Decision] = {activity_key(d): d for d in found.decisions if d.chosen}
    before = {activity_key(d): d for d in found.decisions if d.reason in AT_WORK}
    both = (before | chosen).values()
    assert len(chosen) <= caps.per_scan
    if chosen:
        assert of(DecisionReason.RUNNING, found) < caps.running
        assert len(both) <= max(caps.queued, len(before))
    for name, cap in (("instance", caps.per_instance), ("tenant", caps.per_tenant)):
        of_all, already = (Counter(getattr(d, name) for d in ds) for ds in (both, before.values()))
        assert all(n <= max(cap, already[key]) for key, n in of_all.items())
    # A refusal says which cap it was, and what is refused used nothing up.
    refused = [d for d in found.decisions if d.reason in NO_ROOM]
    assert not refused or chosen or before


@given(fleets(), caps)
def test_nothing_is_started_twice_and_everything_is_explained_once(
    fleet: tuple[list[AssetState], list[Job], list[InFlight]], caps: Caps
) -> None:
    assets, jobs, runs = fleet
    found = decide(assets, jobs, caps, runs=runs).decisions
    explained = Counter((d.repo_id, d.job_type, d.mode, d.window) for d in found)
    assert set(explained.values()) == {1}
    # One decision for each unit's live syncing and one for each job.
    assert len(found) == len(assets) + len(jobs)
    at_work = {activity_key(d) for d in found if d.reason is DecisionReason.IN_FLIGHT and d.job_id is None}
    assert not {(d.repo_id, d.job_type) for d in found if d.chosen and d.mode is Mode.INCREMENTAL} & {
        (repo_id, run.job_type) for run in runs for repo_id in run.repo_ids
    }
    assert len(at_work) <= len(runs)


@given(fleets(), caps, st.randoms(use_true_random=False))
def test_the_same_facts_give_the_same_plan_in_whatever_order_they_come(
    fleet: tuple[list[AssetState], list[Job], list[InFlight]], caps: Caps, random: Any
) -> None:
    assets, jobs, runs = fleet
    once = decide(assets, jobs, caps, runs=runs).decisions
    shuffled = list(assets), list(jobs), list(runs)
    for part in shuffled:
        random.shuffle(part)
    again = decide(shuffled[0], shuffled[1], caps, runs=shuffled[2]).decisions
    assert [(d.repo_id, d.job_type, d.mode, d.window, d.reason) for d in again] == [
        (d.repo_id, d.job_type, d.mode, d.window, d.reason) for d in once
    ]


def due(*tenants: str, **changes: Any) -> list[AssetState]:
    return [
        project(n, tenant=tenant, visited_at=ago(minutes=6), **changes)
        for n, tenant in enumerate(tenants, start=1)
    ]


ROOM = Caps(running=9, queued=9, per_scan=3, per_instance=9, per_tenant=9)


def test_tenants_take_turns_and_who_waited_longest_comes_first() -> None:
    assets = due("big", "big", "big", "big", "small", "new")
    served = {"big": ago(minutes=1), "small": ago(minutes=9)}
    found = decide(assets, [], ROOM, served=served)
    assert [d.tenant for d in found.decisions if d.chosen] == ["new", "small", "big"]
    unfair = decide(assets, [], ROOM, served=served, limits={"fair": False})
    assert [d.tenant for d in unfair.decisions if d.chosen] == ["big", "big", "big"]


def test_no_tenant_starves_however_many_repositories_another_has() -> None:
    tenants = ["big"] * 40 + ["small"] * 2 + ["tiny"]
    served: dict[str, datetime] = {}
    rounds: list[set[str]] = []
    for _ in range(6):
        found = decide(due(*tenants), [], replace(ROOM, per_scan=2), served=served)
        chosen = {d.tenant for d in found.decisions if d.chosen}
        served |= {tenant: NOW + timedelta(seconds=len(rounds)) for tenant in chosen}
        rounds.append(chosen)
    assert all(set().union(*rounds[n : n + 2]) == {"big", "small", "tiny"} for n in range(0, 5, 2))


def test_merge_requests_and_reviews_take_one_place_and_start_together() -> None:
    assets = [project(1, t, visited_at=ago(minutes=6)) for t in GITLAB]
    found = decide(assets, [], replace(ROOM, per_scan=1), limits={})
    chosen = {d.job_type for d in found.decisions if d.chosen}
    assert chosen in ({JobType.COMMITS}, {JobType.MERGE_REQUESTS, JobType.REVIEWS})


def test_history_takes_half_at_most_and_a_place_of_its_own_beside_live_syncing() -> None:
    assets = due(*["t"] * 30)
    jobs = [job(n, n, job_type=JobType.COMMITS, window=DAYS[0], priority=900) for n in range(1, 31)]
    room = Caps(running=90, queued=20, per_scan=90, per_instance=90, per_tenant=90)
    found = decide(assets, jobs, room)
    modes = Counter(d.mode for d in found.decisions if d.chosen)
    assert modes == {Mode.INCREMENTAL: 15, Mode.BACKFILL: 5}
    alone = decide([replace(u, visited_at=NOW) for u in assets], jobs, room)
    assert sum(d.chosen for d in alone.decisions) == 10
    assert of(DecisionReason.HISTORY_CAP, alone) == 20
    capped = decide([replace(u, visited_at=NOW) for u in assets], jobs, replace(room, history=4))
    assert (sum(d.chosen for d in capped.decisions), of(DecisionReason.HISTORY_CAP, capped)) == (4, 26)


@pytest.mark.parametrize("free", [1, 2, 3])
def test_live_syncing_and_history_both_get_their_share_however_few_places_are_free(
    free: int,
) -> None:
    """Two servers are saturated. One of them has no room, and what waits for it is more urgent."""
    assets = [project(n, tenant=f"t{n % 3}", visited_at=ago(hours=1)) for n in range(1, 10)]
    full = [replace(u, repo_id=u.repo_id + 9, instance="full.example") for u in assets]
    jobs = [
        job(n, u.repo_id, job_type=u.job_type, window=DAYS[0], priority=900 - u.repo_id)
        for n, u in enumerate([*assets, *full], start=1)
    ]
    runs = [InFlight(frozenset({u.repo_id}), u.job_type, Mode.INCREMENTAL, None) for u in full[:5]]
    limits = replace(LIMITS, caps=Caps(running=90, queued=90, per_scan=free, per_instance=5, per_tenant=90))
    started: list[list[Decision]] = []
    served: dict[str, datetime] = {}
    for n in range(120):
        now = NOW + n * timedelta(minutes=4)
        found = plan(Snapshot([*assets, *full], jobs, runs, limits, served=served), now)
        started.append([d for d in found.decisions if d.chosen])
        served |= {d.tenant: now for d in started[-1] if d.mode is Mode.INCREMENTAL}
    assert [len(chosen) for chosen in started] == [free] * 120
    every = [d for chosen in started for d in chosen]
    assert {d.instance for d in every} == {"gitlab.example"}
    assert 0.17 < sum(d.mode is Mode.BACKFILL for d in every) / len(every) < 0.33
    # Neither has to wait long for its next turn.
    for mode in (Mode.BACKFILL, Mode.INCREMENTAL):
        has_it = [any(d.mode is mode for d in chosen) for chosen in started]
        assert max((len(list(group)) for has, group in groupby(has_it) if not has), default=0) < 25
    by_tenant = Counter(d.tenant for d in every)
    assert min(by_tenant[f"t{n}"] for n in range(3)) > len(every) / 6


def test_a_job_that_has_waited_long_enough_goes_before_any_newcomer() -> None:
    asset = project(1, JobType.COMMITS, visited_at=NOW)
    old = job(1, 1, job_type=JobType.COMMITS, window=DAYS[0], priority=900, created_at=ago(hours=81))
    new = [job(n, 1, job_type=JobType.COMMITS, window=DAYS[n - 1], priority=100) for n in (2, 3, 4)]
    found = decide([asset], [*new, old], replace(ROOM, per_scan=1))
    assert [d.job_id for d in found.decisions if d.chosen] == [old.job_id]


def test_each_cap_says_that_it_was_the_one() -> None:
    assets = due("t", "t", "u")
    wide = Caps(running=9, queued=9, per_scan=9, per_instance=9, per_tenant=9)
    for change, reason in (
        ({"queued": 1}, DecisionReason.QUEUE_FULL),
        ({"per_scan": 1}, DecisionReason.TICK_FULL),
        ({"per_instance": 1}, DecisionReason.INSTANCE_CAP),
        ({"per_tenant": 1}, DecisionReason.TENANT_CAP),
    ):
        found = decide(assets, [], replace(wide, **change))
        assert {d.reason for d in found.decisions if not d.chosen} == {reason}
    running = [
        job(
            1,
            1,
            job_type=JobType.COMMITS,
            window=DAYS[0],
            status=JobStatus.RUNNING,
            claim_expires_at=NOW + timedelta(minutes=1),
        )
    ]
    found = decide(assets, running, replace(wide, running=1))
    assert of(DecisionReason.RUNNING_CAP, found) == 3
