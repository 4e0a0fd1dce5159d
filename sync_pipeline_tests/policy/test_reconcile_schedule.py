"""What is compared next: whose turn it is, how much of it, and that the requests suffice for everybody."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sync_pipeline.core.model import (
    BEGINNING,
    Access,
    Depth,
    JobType,
    Lifecycle,
    RevisionWindow,
    TimeWindow,
    Window,
)
from sync_pipeline.policy.reconcile_schedule import (
    ReconcileAsset,
    ReconcileLimits,
    ReconcileTask,
    RequestBudget,
    SkipReason,
    TaskReason,
    around,
    is_repair_due,
    plan,
    sent_before,
    share_compared,
)

NOW = datetime(2026, 5, 6, 12, 17, tzinfo=UTC)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
LIMITS = ReconcileLimits(requests=600, recent=2 * DAY, round=30 * DAY)


def asset(repo_id: int = 1, job_type: JobType = JobType.REVIEWS, **other: Any) -> ReconcileAsset:
    marks: dict[str, Any] = {"watermark": NOW - HOUR, "covered_from": BEGINNING}
    if job_type is JobType.REVISIONS:
        marks = {"watermark": 5001, "covered_from": 1}
    return ReconcileAsset(repo_id, job_type, other.pop("instance", "gitlab"), **(marks | other))


def tasks(
    *assets: ReconcileAsset, now: datetime = NOW, limits: ReconcileLimits = LIMITS
) -> list[ReconcileTask]:
    return plan(assets, limits, now)[0]


def of(reason: TaskReason, *assets: ReconcileAsset, **other: Any) -> list[ReconcileTask]:
    return [task for task in tasks(*assets, **other) if task.reason is reason]


def point(moment: datetime) -> TimeWindow:
    return TimeWindow(moment, moment + timedelta(milliseconds=1))


# Who has a turn -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"lifecycle": Lifecycle.RETIRED}, SkipReason.RETIRED),
        ({"configured": False}, SkipReason.NOT_CONFIGURED),
        ({"credential": True}, SkipReason.CREDENTIAL),
        ({"access": Access.REPLACED}, SkipReason.REPLACED),
        ({"access": Access.DENIED}, SkipReason.NO_ACCESS),
        ({"access": Access.GONE}, SkipReason.NO_ACCESS),
        ({"access": Access.DISABLED}, SkipReason.NO_ACCESS),
        ({"access": Access.EMPTY}, SkipReason.EMPTY),
        ({"watermark": None}, SkipReason.NEVER_READ),
        ({"covered_from": None}, SkipReason.NEVER_READ),
        ({"probed": True}, SkipReason.RUNNING),
    ],
)
def test_what_cannot_be_compared_is_left_out_with_its_reason(
    changes: dict[str, Any], reason: SkipReason
) -> None:
    left = asset(1, open=3, **changes)
    found, left_out = plan([left, asset(2)], LIMITS, NOW)
    assert left_out == {left.key: reason}
    assert {task.repo_id for task in found} == {2}
    assert not is_repair_due(left, NOW)
    assert {task.repo_id for task in tasks(asset(access=Access.ARCHIVED), asset(access=Access.MOVED))} == {1}


def test_places_come_before_the_recent_part_and_that_before_history() -> None:
    long_ago, place = NOW - 9 * DAY, point(NOW - 90 * DAY)
    first = asset(1, recent_at=long_ago, history_at=long_ago, places_at=NOW - HOUR, places=(place,))
    other = asset(2, recent_at=long_ago - DAY, places_at=long_ago, places=(place,))
    assert [(task.reason, task.repo_id) for task in tasks(first, other)] == [
        (TaskReason.PLACES, 2),
        (TaskReason.PLACES, 1),
        (TaskReason.RECENT, 2),
        (TaskReason.RECENT, 1),
        (TaskReason.HISTORY, 2),
        (TaskReason.HISTORY, 1),
    ]


def test_windows_around_places_are_few_and_small() -> None:
    moments = [NOW - 90 * DAY, NOW - 90 * DAY + timedelta(minutes=30), NOW - 80 * DAY]
    assert around(map(point, moments)) == [
        TimeWindow(moments[0], point(moments[1]).until),
        point(moments[2]),
    ]
    numbers = [RevisionWindow(n, n + 1) for n in (7, 900, 1006, 1007, 5000)]
    assert around(numbers) == [
        RevisionWindow(7, 1007),
        RevisionWindow(1007, 1008),
        RevisionWindow(5000, 5001),
    ]
    [task] = of(TaskReason.PLACES, asset(places=tuple(point(NOW - n * DAY) for n in range(1, 50))))
    assert (len(task.windows), task.depth) == (10, Depth.DETAILS)


def test_what_has_no_place_takes_a_window_that_holds_as_good_as_nothing() -> None:
    [task] = of(TaskReason.PLACES, asset(job_type=JobType.COMMITS, anywhere=True))
    [window] = task.windows
    assert isinstance(window, TimeWindow)
    assert window.until < NOW - HOUR < window.until + timedelta(seconds=1)
    [task] = of(TaskReason.PLACES, asset(anywhere=True, places=(point(NOW - DAY),)))
    assert task.windows == (point(NOW - DAY),), "every comparison looks for it"


def test_the_recent_part_is_compared_once_in_an_hour_of_the_clock() -> None:
    [task] = of(TaskReason.RECENT, asset(recent_at=NOW - timedelta(minutes=18)))
    assert (task.windows, task.depth) == ((TimeWindow(NOW - HOUR - 2 * DAY, NOW - HOUR),), Depth.LISTING)
    assert of(TaskReason.RECENT, asset(recent_at=NOW - timedelta(minutes=16))) == []
    [task] = of(TaskReason.RECENT, asset(job_type=JobType.REVISIONS))
    assert task.windows == (RevisionWindow(4001, 5001),)


# History ------------------------------------------------------------------------------------------------


def test_a_share_of_history_is_what_an_hour_has_to_do_and_at_least_a_few_rows() -> None:
    began: dict[str, Any] = {"round_began_at": NOW - 10 * DAY, "next": NOW - 99 * DAY}
    [task] = of(TaskReason.HISTORY, asset(**began, round_rows=7200, round_done=2400))
    assert (task.start, task.rows, task.begins, task.depth) == (NOW - 99 * DAY, 20, False, Depth.DETAILS)
    [task] = of(
        TaskReason.HISTORY, asset(job_type=JobType.COMMITS, **began, round_rows=72_000, round_done=23_000)
    )
    assert task.rows == 1100, "what was left behind is made good"
    [task] = of(TaskReason.HISTORY, asset(**began, round_rows=72_000, round_done=20_000))
    assert task.rows == 28, "what fits into a third of the requests"
    assert of(TaskReason.HISTORY, asset(**began, round_rows=7200, round_done=2401)) == []
    [task] = of(TaskReason.HISTORY, asset(job_type=JobType.REVISIONS, round_began_at=NOW - DAY, next=11))
    assert (task.start, task.rows) == (11, 1000)


def test_a_round_begins_when_its_time_has_come_and_not_before() -> None:
    ended: dict[str, Any] = {"round_began_at": NOW - 29 * DAY, "round_ended_at": NOW - 2 * DAY}
    assert of(TaskReason.HISTORY, asset(**ended)) == []
    [task] = of(TaskReason.HISTORY, asset(**ended), now=NOW + DAY)
    assert (task.begins, task.start) == (True, BEGINNING)
    [first] = of(TaskReason.HISTORY, asset())
    assert first.begins


def test_the_share_compared_within_a_round() -> None:
    def share(**other: Any) -> float:
        return round(share_compared(asset(round_rows=100, next=NOW - DAY, **other), LIMITS, NOW), 3)

    assert share() == 0
    assert share(round_began_at=NOW - 3 * DAY, round_done=40) == 0.4
    before = NOW - 4 * DAY
    assert share(round_began_at=NOW - 3 * DAY, round_ended_at=before, round_done=10) == 1.0
    assert share(round_began_at=NOW - 15 * DAY, round_ended_at=NOW - 16 * DAY, round_done=10) == 0.6
    assert share(round_began_at=NOW - 29 * DAY, round_ended_at=NOW - DAY) == 1.0
    assert share(round_began_at=NOW - 40 * DAY, round_ended_at=NOW - 20 * DAY) == 0.5
    assert share(round_began_at=NOW - 90 * DAY, round_ended_at=NOW - 89 * DAY) == 0.0


def test_a_repair_is_queued_once_and_looked_at_before_the_next_one() -> None:
    assert is_repair_due(asset(open=2, escalated=1), NOW)
    blocked: tuple[dict[str, Any], ...] = (
        {"escalated": 2},
        {"repairing": True},
        {"places": (point(NOW - DAY),)},
        {"anywhere": True},
        {"repair_died_at": NOW - HOUR},
    )
    for changes in blocked:
        assert not is_repair_due(asset(open=2, **changes), NOW), changes
    assert is_repair_due(asset(open=2, repair_died_at=NOW - DAY), NOW)


# Requests -----------------------------------------------------------------------------------------------


def test_what_was_too_much_is_taken_from_the_next_hour() -> None:
    assert sent_before(10, 600, LIMITS) == 10
    assert sent_before(10, 640, LIMITS) == 50
    budget = RequestBudget(tasks(asset()), LIMITS, {"gitlab": 600})
    assert budget.next() is None
    assert len(budget.waiting) == 2


def test_an_instance_that_is_dropped_gets_nothing_more_and_others_go_on() -> None:
    budget = RequestBudget(tasks(asset(1), asset(2), asset(3, instance="other")), LIMITS, {})
    budget.drop(instance="gitlab")
    budget.drop([(9, JobType.REVIEWS)])
    assert {task.repo_id for task in budget.waiting} == {3}


_units = st.builds(
    asset,
    st.integers(1, 40),
    st.sampled_from(JobType),
    instance=st.sampled_from(["a", "b"]),
    anywhere=st.booleans(),
    round_rows=st.integers(0, 10_000),
)


@settings(max_examples=30, deadline=None)
@given(
    found=st.lists(_units, max_size=60, unique_by=lambda one: one.key),
    requests=st.integers(60, 900),
    sent=st.integers(0, 900),
    parallel=st.integers(1, 5),
    data=st.data(),
)
def test_no_instance_gets_more_requests_than_its_hour_has(
    found: list[ReconcileAsset], requests: int, sent: int, parallel: int, data: st.DataObject
) -> None:
    limits = replace(LIMITS, requests=requests)
    budget = RequestBudget(tasks(*found, limits=limits), limits, {"a": sent})
    used = {"a": sent, "b": 0}
    running: list[tuple[ReconcileTask, int]] = []
    while True:
        taken = budget.next() if len(running) < parallel else None
        if taken is not None:
            assert taken[1] > 0
            assert taken[0].repo_id not in [
                task.repo_id for task, _ in running if task.instance == taken[0].instance
            ]
            running.append(taken)
            continue
        if not running:
            break
        task, allowed = running.pop(data.draw(st.integers(0, len(running) - 1)))
        calls = data.draw(st.integers(0, allowed))
        used[task.instance] += calls
        budget.ended(task, calls)
    for instance, calls in used.items():
        assert calls <= max(requests, sent if instance == "a" else 0)
        if calls + requests // 3 <= requests:
            assert not [task for task in budget.waiting if task.instance == instance], "nothing waits in vain"


class Fleet:
    """A fleet in simulated time: an hour is a plan and its turns, each of which costs what is said of it."""

    def __init__(self, rows: dict[tuple[int, JobType], int], limits: ReconcileLimits) -> None:
        self.limits = limits
        self.now = NOW
        self.rows = rows
        self.assets = {key: asset(*key) for key in rows}
        self.most = 0
        self.latest: dict[tuple[tuple[int, JobType], TaskReason], datetime] = {}
        self.gaps: dict[TaskReason, timedelta] = dict.fromkeys(TaskReason, timedelta(0))
        self.rounds: dict[tuple[int, JobType], list[timedelta]] = {key: [] for key in rows}

    def hour(self) -> None:
        """One run."""
        used = 0
        while True:
            budget = RequestBudget(
                tasks(*self.assets.values(), now=self.now, limits=self.limits), self.limits, {"gitlab": used}
            )
            before = used
            while (taken := budget.next()) is not None:
                task, allowed = taken
                calls = min(task.calls, allowed)
                self._take(task, whole=calls == task.calls)
                used += calls
                budget.ended(task, calls)
            if used == before:
                break
        self.most = max(self.most, used)
        self.now += HOUR
        # Something differs everywhere again every few hours, so that all three kinds want their requests.
        for key, one in self.assets.items():
            if (key[0] + self.now.hour) % 4 == 0:
                self.assets[key] = replace(one, places=(self._somewhere(one),))

    def _somewhere(self, one: ReconcileAsset) -> Window:
        return RevisionWindow(1, 2) if isinstance(one.watermark, int) else point(NOW - 50 * DAY)

    def _take(self, task: ReconcileTask, *, whole: bool) -> None:
        one = self.assets[task.key]
        # Nothing happens at the same moment.
        self.now += timedelta(milliseconds=1)
        self.gaps[task.reason] = max(
            self.gaps[task.reason], self.now - self.latest.get((task.key, task.reason), NOW)
        )
        self.latest[task.key, task.reason] = self.now
        if task.reason is TaskReason.PLACES:
            self.assets[task.key] = replace(one, places_at=self.now, places=())
            return
        if task.reason is TaskReason.RECENT:
            self.assets[task.key] = replace(one, recent_at=self.now)
            return
        changes: dict[str, Any] = {"history_at": self.now}
        rows = self.rows[task.key]
        done = 0 if task.begins else one.round_done
        if task.begins:
            changes |= {"round_began_at": self.now, "round_rows": rows}
        done = min(rows, done + (task.rows if whole else task.rows // 2))
        changes |= {"round_done": done, "next": self._mark(one, done)}
        if done == rows:
            began = changes.get("round_began_at", one.round_began_at)
            assert began is not None
            self.now += timedelta(milliseconds=1)
            self.rounds[task.key].append(self.now - began)
            changes |= {"round_ended_at": self.now, "next": None}
        self.assets[task.key] = replace(one, **changes)

    def _mark(self, one: ReconcileAsset, done: int) -> int | datetime:
        return 1 + done if isinstance(one.watermark, int) else BEGINNING + timedelta(seconds=done)


_JITTER = timedelta(minutes=1)


@settings(max_examples=5, deadline=None)
@given(
    rows=st.dictionaries(
        st.tuples(
            st.integers(1, 12), st.sampled_from([JobType.COMMITS, JobType.MERGE_REQUESTS, JobType.REVIEWS])
        ),
        st.integers(0, 300),
        min_size=1,
        max_size=12,
    )
)
def test_everything_is_compared_once_in_a_round_on_a_simulated_clock(
    rows: dict[tuple[int, JobType], int],
) -> None:
    limits = ReconcileLimits(requests=600, recent=DAY, round=2 * DAY)
    fleet = Fleet(rows, limits)
    for _ in range(24 * 7):
        fleet.hour()
    assert fleet.most <= limits.requests
    assert fleet.gaps[TaskReason.RECENT] <= HOUR + _JITTER
    for key, lengths in fleet.rounds.items():
        assert len(lengths) >= 3, key
        assert max(lengths) <= limits.round + _JITTER, key


@settings(max_examples=5, deadline=None)
@given(number=st.integers(5, 12), requests=st.integers(60, 120), rows=st.integers(5_000, 100_000))
def test_with_far_too_few_requests_nobody_starves(number: int, requests: int, rows: int) -> None:
    keys = [(n, job_type) for n in range(1, number + 1) for job_type in (JobType.COMMITS, JobType.REVIEWS)]
    fleet = Fleet(dict.fromkeys(keys, rows), ReconcileLimits(requests=requests, recent=DAY, round=DAY))
    for _ in range(5 * len(keys)):
        fleet.hour()
    assert fleet.most <= requests
    for reason in TaskReason:
        assert {key for key, kind in fleet.latest if kind is reason} == set(keys)
        # Each kind has a third, which holds at least one turn an hour.
        assert fleet.gaps[reason] <= (len(keys) + 8) * HOUR + _JITTER, reason
