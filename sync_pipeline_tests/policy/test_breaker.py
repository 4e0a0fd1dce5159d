"""When a circuit breaker opens and closes, and that it never stays open by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sync_pipeline.core.model import BreakerScope, BreakerState, DecisionReason, RunStatus
from sync_pipeline.policy.breaker import Breaker, evaluate
from sync_pipeline.policy.planning import evaluate_breakers, plan
from sync_pipeline.policy.samples import Sample, rates_of_server
from sync_pipeline.policy.snapshot import AssetState, Snapshot
from sync_pipeline_tests.policy.builders import LIMITS, NOW, ago, project, sample

CLOSED = Breaker(BreakerScope.INSTANCE, "gitlab.example")
UNSMOOTHED = replace(LIMITS.breaker, alpha=1.0)


def runs(good: int, bad: int, **changes: Any) -> list[Sample]:
    """So many runs, a second apart, the bad ones last."""
    codes = [None] * good + ["timeout"] * bad
    return [
        sample(n, code=code, finished_at=ago(minutes=5, seconds=-n), **(changes if code else {}))
        for n, code in enumerate(codes)
    ]


@pytest.mark.parametrize(
    ("good", "bad", "state"),
    [
        (5, 0, BreakerState.CLOSED),
        (8, 3, BreakerState.CLOSED),
        (7, 3, BreakerState.OPEN),
        # Too few runs are no evidence.
        (0, 4, BreakerState.CLOSED),
        (0, 5, BreakerState.OPEN),
        # Only the newest twenty count.
        (14, 6, BreakerState.OPEN),
        (100, 5, BreakerState.CLOSED),
    ],
)
def test_it_opens_when_enough_of_enough_runs_failed(good: int, bad: int, state: BreakerState) -> None:
    assert evaluate(CLOSED, runs(good, bad), NOW, UNSMOOTHED).state is state


def test_rates_of_limits_and_time_outs_are_shares_of_requests() -> None:
    storm = [sample(n, requests=10, rate_limited=2, timeouts=n % 2) for n in range(6)]
    rates = rates_of_server(storm)
    assert (rates.failure, rates.rate_limit, rates.timeout) == (0.0, 0.2, 0.05)
    opened = evaluate(CLOSED, storm, NOW, UNSMOOTHED)
    assert (opened.state, opened.reason) == (BreakerState.OPEN, "rate limits 20% of the last 6 runs")


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (RunStatus.FAILED, "corrupt"),
        (RunStatus.FAILED, "credential"),
        (RunStatus.FAILED, "lease_held"),
        (RunStatus.FAILED, "database_down"),
        (RunStatus.FAILED, "worker_lost"),
        (RunStatus.INTERRUPTED, "cancelled"),
    ],
)
def test_what_says_nothing_about_the_server_is_neither_success_nor_failure(
    status: RunStatus, code: str
) -> None:
    skipped = [sample(n, status=status, code=code) for n in range(9)]
    assert evaluate(CLOSED, skipped, NOW, UNSMOOTHED) is CLOSED
    half_open = replace(CLOSED, state=BreakerState.HALF_OPEN, since=ago(hours=1), opened_at=ago(hours=2))
    assert evaluate(half_open, skipped, NOW, UNSMOOTHED) is half_open


@pytest.mark.parametrize("code", ["denied", "not_found", "disabled"])
def test_a_server_that_says_no_is_no_failure_and_closes_what_asks_whether_it_answers(code: str) -> None:
    refused = [sample(n, status=RunStatus.FAILED, code=code) for n in range(9)]
    assert evaluate(CLOSED, refused, NOW, UNSMOOTHED) is CLOSED
    # It did no work for us, so that it makes up for no failure.
    assert evaluate(CLOSED, [*refused, *runs(0, 5)], NOW, UNSMOOTHED).state is BreakerState.OPEN
    for scope, key in (
        (BreakerScope.INSTANCE, "gitlab.example"),
        (BreakerScope.TENANT, "team1"),
        (BreakerScope.GLOBAL, ""),
    ):
        half_open = Breaker(scope, key, BreakerState.HALF_OPEN, since=ago(hours=1), opened_at=ago(hours=2))
        assert evaluate_breakers(_snapshot(refused, half_open), NOW)[scope, key].state is BreakerState.CLOSED
        assert evaluate(half_open, refused[:1], NOW, UNSMOOTHED).successes == 1


def test_one_bad_look_is_smoothed_and_the_same_runs_are_no_more_evidence_twice() -> None:
    calm = evaluate(CLOSED, runs(10, 0), NOW, LIMITS.breaker)
    later = [*runs(10, 0), *[sample(code="timeout", finished_at=ago(seconds=n)) for n in range(5)]]
    rough = evaluate(calm, later, NOW, LIMITS.breaker)
    assert (rough.state, round(rough.rates.failure, 3)) == (BreakerState.CLOSED, 0.167)
    assert evaluate(rough, later, NOW, LIMITS.breaker) is rough
    worse = [*later, sample(code="timeout", finished_at=NOW + timedelta(seconds=1))]
    moment = NOW + timedelta(seconds=2)
    assert evaluate(rough, worse, moment, LIMITS.breaker).rates.failure > rough.rates.failure


def test_an_open_one_is_tried_after_its_time_and_probes_decide() -> None:
    opened = evaluate(CLOSED, runs(0, 5), NOW, LIMITS.breaker)
    assert evaluate(opened, runs(9, 0), NOW + timedelta(minutes=4), LIMITS.breaker) is opened
    moment = NOW + timedelta(minutes=5)
    half_open = evaluate(opened, (), moment, LIMITS.breaker)
    assert (half_open.state, half_open.since) == (BreakerState.HALF_OPEN, moment)
    good = sample(started_at=moment, finished_at=moment + timedelta(seconds=9))
    one = evaluate(half_open, [good, *runs(0, 5)], moment + timedelta(seconds=10), LIMITS.breaker)
    assert (one.state, one.successes) == (BreakerState.HALF_OPEN, 1)
    closed = evaluate(one, [good, good], moment + timedelta(seconds=20), LIMITS.breaker)
    assert (closed.state, closed.rates.failure) == (BreakerState.CLOSED, 0.0)
    # What failed before it closed is no evidence any more.
    assert evaluate(closed, runs(0, 5), moment + timedelta(seconds=30), LIMITS.breaker) is closed
    bad = replace(good, status=RunStatus.FAILED, code="server_error")
    again = evaluate(one, [good, bad], moment + timedelta(seconds=20), LIMITS.breaker)
    assert (again.state, again.reason) == (BreakerState.OPEN, "a probe failed: server_error")


@given(
    st.lists(st.sampled_from([None, "timeout", "denied", "lease_held"]), max_size=60),
    st.integers(1, 20),
)
def test_it_closes_by_itself_once_the_server_answers(codes: list[str | None], recovery: int) -> None:
    limits = replace(LIMITS.breaker, recovery_success_count=recovery)
    breaker, moment = CLOSED, NOW
    seen: list[Sample] = []
    for code in [*codes, *[None] * (recovery + 25)]:
        breaker = evaluate(breaker, seen, moment, limits)
        # Nothing runs while it is open; then time goes by.
        if breaker.state is not BreakerState.OPEN:
            seen.append(sample(code=code, started_at=moment, finished_at=moment + timedelta(seconds=30)))
        moment += timedelta(minutes=1)
    assert evaluate(breaker, seen, moment, limits).state is BreakerState.CLOSED


def _snapshot(
    samples: Sequence[Sample], *breakers: Breaker, assets: Sequence[AssetState] = (), pool: str = ""
) -> Snapshot:
    return Snapshot(assets, (), (), LIMITS, samples=samples, breakers=breakers, pool=pool)


def test_a_server_that_is_down_stops_neither_tenants_nor_other_servers() -> None:
    down = runs(0, 9)
    fine = [sample(n, instance="other.example") for n in range(3)]
    found = evaluate_breakers(_snapshot([*down, *fine]), NOW)
    states = {key: breaker.state for key, breaker in found.items()}
    assert states[BreakerScope.INSTANCE, "gitlab.example"] is BreakerState.OPEN
    assert {s for key, s in states.items() if key != (BreakerScope.INSTANCE, "gitlab.example")} == {
        BreakerState.CLOSED
    }
    assert (BreakerScope.GLOBAL, "") not in states


def test_the_global_one_opens_only_while_no_server_is_well() -> None:
    spread = [sample(n, instance=f"i{n % 3}.example", code="network") for n in range(15)]
    found = evaluate_breakers(_snapshot(spread), NOW)
    assert found[BreakerScope.GLOBAL, ""].state is BreakerState.OPEN
    well = [sample(20, instance="i0.example"), *spread, *[sample(n, instance="i9.example") for n in (1, 2)]]
    assert (BreakerScope.GLOBAL, "") not in evaluate_breakers(_snapshot(well), NOW)


def test_the_global_one_closes_when_a_server_is_well_whatever_the_others_do() -> None:
    half_open = Breaker(BreakerScope.GLOBAL, "", BreakerState.HALF_OPEN, ago(minutes=2), ago(minutes=9))
    down = Breaker(BreakerScope.INSTANCE, "down.example", BreakerState.OPEN, ago(minutes=1), ago(minutes=1))
    probes = [
        sample(1, instance="down.example", code="timeout", finished_at=ago(seconds=50)),
        *[sample(n, instance="well.example", finished_at=ago(seconds=40 - n)) for n in (2, 3)],
    ]
    found = evaluate_breakers(_snapshot(probes, half_open, down), NOW)
    assert found[BreakerScope.GLOBAL, ""].state is BreakerState.CLOSED
    # Nor where one that is down has too few runs to have opened a breaker of its own.
    found = evaluate_breakers(_snapshot(probes, half_open), NOW)
    assert found[BreakerScope.GLOBAL, ""].state is BreakerState.CLOSED
    found = evaluate_breakers(_snapshot(probes[:1], half_open, down), NOW)
    assert found[BreakerScope.GLOBAL, ""].state is BreakerState.OPEN


def _moment(minutes: int) -> datetime:
    return NOW + timedelta(minutes=minutes)


def test_a_restart_forgets_nothing() -> None:
    """The state is a value: judged from its stored copy it goes on as if nothing had happened."""
    opened = evaluate(CLOSED, runs(0, 5), NOW, LIMITS.breaker)
    copy = Breaker(**{name: getattr(opened, name) for name in Breaker.__slots__})
    for minutes in (1, 4, 5, 60):
        ours = evaluate(opened, (), _moment(minutes), LIMITS.breaker)
        assert evaluate(copy, (), _moment(minutes), LIMITS.breaker) == ours


class TestABreakerOfAPool:
    """It opens where other pools do well at the same servers."""

    good = tuple(sample(n, pool="b", finished_at=ago(minutes=4, seconds=-n)) for n in range(8))
    bad = tuple(
        sample(n, pool="a", code="connection", finished_at=ago(minutes=4, seconds=-n)) for n in range(6)
    )

    def states(
        self, *samples: Sample, known: Sequence[Breaker] = ()
    ) -> dict[tuple[BreakerScope, str], BreakerState]:
        found = evaluate_breakers(_snapshot(samples, *known), NOW)
        return {key: one.state for key, one in found.items() if one.state is not BreakerState.CLOSED}

    def test_that_fails_alone_stops_the_pool_and_not_the_server(self) -> None:
        assert self.states(*self.good, *self.bad) == {(BreakerScope.POOL, "a"): BreakerState.OPEN}

    def test_stays_closed_where_the_server_fails_for_all_or_there_is_one_pool(self) -> None:
        server = {(BreakerScope.INSTANCE, "gitlab.example"): BreakerState.OPEN}
        assert self.states(*self.bad, *[replace(s, pool="b") for s in self.bad]) == server
        assert self.states(*self.bad) == server
        elsewhere = [replace(s, instance="other.example") for s in self.good]
        assert self.states(*self.bad, *elsewhere) == server

    def test_holds_back_its_pool_only_and_closes_after_probes(self) -> None:
        due = project(1, visited_at=ago(minutes=6), tenant="team1")
        runs = [*self.good, *self.bad]
        [held] = plan(_snapshot(runs, assets=[due], pool="a"), NOW).decisions
        assert (held.reason, held.detail) == (
            DecisionReason.BREAKER_OPEN,
            "pool a: failures 100% of the last 6 runs",
        )
        # What failed in this pool costs the repository no error budget in the other one.
        [started] = plan(_snapshot(runs, assets=[due], pool="b"), NOW).decisions
        assert started.chosen
        opened = Breaker(BreakerScope.POOL, "a", BreakerState.OPEN, ago(minutes=6), ago(minutes=6))
        probing = plan(_snapshot(runs, opened, assets=[due], pool="a"), NOW)
        assert [d.reason for d in probing.decisions] == [DecisionReason.PROBE]
        half_open = replace(opened, state=BreakerState.HALF_OPEN, since=ago(minutes=1))
        probes = [sample(n, pool="a", finished_at=ago(seconds=n), started_at=ago(seconds=30)) for n in (1, 2)]
        assert self.states(*self.good, *self.bad, *probes, known=[half_open]) == {}
