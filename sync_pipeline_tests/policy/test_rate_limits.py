"""The shared rate limit: what it never lets through, and how it comes back after a storm of refusals."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sync_pipeline.core.model import Bucket
from sync_pipeline.policy.load import Bearing
from sync_pipeline.policy.rate_limits import (
    ANNOUNCED_SECONDS,
    HOLD_SECONDS,
    KEPT_SECONDS,
    LONGEST_PAUSE,
    STEP_SECONDS,
    Load,
    RateLimits,
    Signal,
    after_answer,
    announced_rate,
    at,
    is_paused,
    is_valid,
    paused,
    restored,
    resumed,
    take,
    take_ahead,
    tuned,
)

START = datetime(2026, 1, 1, tzinfo=UTC)
LIMITS = RateLimits(rate=10.0, burst=20.0)


def full(limits: RateLimits, now: datetime) -> Bucket:
    """The bucket of a server without earlier requests."""
    return Bucket(tokens=limits.burst, rate=limits.rate, refilled_at=now)


def later(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def exceeds(sent: Sequence[float], limits: RateLimits) -> tuple[float, float] | None:
    """A stretch of time in which more was sent than the limits allow."""
    sent = sorted(sent)
    for last, end in enumerate(sent):
        for first in range(last + 1):
            if last - first + 1 > limits.burst + limits.rate * (end - sent[first]) + 1e-3:
                return sent[first], end
    return None


EVENT = st.one_of(
    st.tuples(st.just("ask"), st.integers(1, 12)),
    st.tuples(st.just("refuse"), st.sampled_from([None, 0.0, 0.5, 3.0, 40.0])),
    st.tuples(st.just("pause"), st.sampled_from([0.5, 10.0])),
    st.tuples(st.just("left"), st.sampled_from([0, 3, 50])),
    st.tuples(st.sampled_from(["resume", "restore", "answer"]), st.none()),
)


@example(
    RateLimits(1.0, 1),
    [(0.0, ("ask", 1))] * 3 + [(0.0, ("refuse", None)), (2.0, ("restore", None))],
)
@given(
    st.builds(RateLimits, st.sampled_from([0.1, 1.0, 7.0, 100.0]), st.sampled_from([1, 5, 20])),
    st.lists(st.tuples(st.floats(0, 20), EVENT), max_size=25),
)
def test_never_more_is_sent_than_rate_times_time_and_a_burst_and_nothing_in_a_pause(
    limits: RateLimits, events: list[tuple[float, tuple[str, float | None]]]
) -> None:
    bucket = full(limits, START)
    queue: list[tuple[float, int, str, float | None]] = []
    now = 0.0
    for number, (gap, (what, value)) in enumerate(events):
        now += gap
        heapq.heappush(queue, (now, number, what, value))
    number, sent, stopped = len(events), list[float](), list[tuple[float, float]]()
    while queue:
        now, _, what, value = heapq.heappop(queue)
        moment = later(now)
        if what == "turn" and value is not None and is_valid(bucket, later(value)):
            assert not is_paused(bucket, moment)
            sent.append(now)
            continue
        before = bucket
        if what in ("ask", "turn"):
            for _ in range(int(value or 1) if what == "ask" else 1):
                bucket, wait = take(bucket, limits, moment, 60.0)
                number += 1
                if wait == 0:
                    sent.append(now)
                elif wait <= 60.0:
                    # Microseconds of datetime must not make a place valid that a pause ended.
                    heapq.heappush(queue, (now + wait + 1e-5, number, "turn", now))
        elif what == "refuse":
            bucket = after_answer(bucket, limits, Signal(429, 0.01, value), moment)
        elif what == "left":
            signal = Signal(200, 0.01, None, int(value or 0), 1000, 30.0)
            bucket = after_answer(bucket, limits, signal, moment)
        elif what == "answer":
            bucket = after_answer(bucket, limits, Signal(200, 0.01), moment)
        elif what == "pause":
            bucket = paused(bucket, moment, later(now + (value or 0)), "a person")
        elif what == "resume":
            bucket = resumed(bucket, moment, "by a person")
        else:
            bucket = restored(bucket, limits, moment, "by a person")
        if what in ("resume", "restore"):
            stopped = [(start, min(end, now)) for start, end in stopped]
        elif bucket.paused_at != before.paused_at and bucket.paused_until is not None:
            stopped.append((now, (bucket.paused_until - START).total_seconds()))
        assert min(limits.rate, 0.1) - 1e-9 <= bucket.rate <= limits.rate
        assert bucket.tokens <= limits.burst
    assert exceeds(sent, limits) is None
    assert not [one for one in sent for start, end in stopped if start + 1e-3 < one < end - 1e-3]


def test_whoever_asks_first_is_served_first_and_one_who_would_wait_too_long_takes_nothing() -> None:
    bucket, waits = full(RateLimits(2.0, 3), START), []
    for _ in range(6):
        bucket, wait = take(bucket, RateLimits(2.0, 3), START, 60.0)
        waits.append(wait)
    assert waits == [0, 0, 0, 0.5, 1.0, 1.5]
    same, wait = take(bucket, RateLimits(2.0, 3), START, 1.9)
    assert (wait, same) == (2.0, bucket)


@example([(0.0, None), (2.05, None)])
@given(st.lists(st.tuples(st.floats(0, 30), st.sampled_from([None, 1.0, 30.0])), min_size=1, max_size=40))
def test_after_a_storm_of_refusals_the_rate_comes_back_by_itself(
    storm: list[tuple[float, float | None]],
) -> None:
    bucket, now = full(LIMITS, START), 0.0
    for gap, asked in storm:
        now += gap
        before = at(bucket, LIMITS, later(now))
        bucket = after_answer(bucket, LIMITS, Signal(429, 0.1, asked), later(now))
        if bucket.consecutive_429 > before.consecutive_429:
            assert bucket.rate == max(LIMITS.rate / 10, before.rate / 2)
        else:
            # It counts with the refusal before it. What a quiet moment between them raised stays.
            assert bucket.rate == before.rate
    assert bucket.paused_until is not None
    end = bucket.paused_until
    assert at(bucket, LIMITS, end + timedelta(minutes=10)).rate == pytest.approx(
        min(bucket.rate + 10 * 0.05 * LIMITS.rate, LIMITS.rate)
    )
    repaired = at(bucket, LIMITS, end + timedelta(minutes=20))
    assert (repaired.rate, repaired.changed_at) == (LIMITS.rate, None)
    answered = after_answer(repaired, LIMITS, Signal(200, 0.1), end + timedelta(minutes=20))
    assert answered.consecutive_429 == 0


def test_refusals_of_requests_that_were_under_way_together_count_once() -> None:
    bucket = full(LIMITS, START)
    for number in range(16):
        bucket = after_answer(bucket, LIMITS, Signal(429, 1.0, None), later(1 + number / 20))
    assert (bucket.rate, bucket.consecutive_429) == (5.0, 1)
    # Those after the pause count again, and the pause grows where the server does not say how long.
    pauses = []
    for _ in range(9):
        assert bucket.paused_until is not None
        now = bucket.paused_until + timedelta(seconds=2)
        bucket = after_answer(bucket, LIMITS, Signal(429, 0.1, None), now)
        assert bucket.paused_until is not None
        pauses.append((bucket.paused_until - now).total_seconds())
    assert pauses == [2, 4, 8, 16, 32, 60, 60, 60, 60]
    assert bucket.rate == 1.0


@pytest.mark.parametrize(
    ("signal", "pause", "rate"),
    [
        (Signal(429, 0.1, 7.0), 7.0, 5.0),
        (Signal(429, 0.1, 0.0), 1.0, 5.0),
        (Signal(429, 0.1, 1e9), LONGEST_PAUSE, 5.0),
        (Signal(503, 0.1, 20.0), 20.0, 5.0),
        (Signal(503, 0.1), None, 10.0),
        (Signal(500, 0.1), None, 10.0),
        (Signal(403, 0.1, 9.0, remaining=0, limit=60), 9.0, 5.0),
        (Signal(403, 0.1), None, 10.0),
        (Signal(200, 0.1, None, 3, 600, 20.0), 5.0, 10.0),
        (Signal(200, 0.1, None, 0, 600, 20.0), 20.0, 10.0),
        (Signal(200, 0.1, None, 3, 600, 0.1), None, 10.0),
        (Signal(200, 0.1, None, 3, 600), None, 10.0),
        (Signal(200, 0.1, None, 300, 600, 20.0), None, 10.0),
        (Signal(200, 0.1, None, 59, 600, 1.0), None, 10.0),
    ],
)
def test_what_each_answer_does(signal: Signal, pause: float | None, rate: float) -> None:
    bucket = after_answer(full(LIMITS, START), LIMITS, signal, START)
    assert bucket.rate == rate
    assert bucket.paused_until == (None if pause is None else later(pause))
    if signal.limit is not None:
        assert (bucket.server_remaining, bucket.server_limit) == (signal.remaining, signal.limit)


def test_a_refusal_while_requests_are_left_is_of_its_kind_only() -> None:
    assert Signal(429, 0.1, 60.0, remaining=1500, limit=2000).is_of_its_kind
    assert not Signal(429, 0.1, 60.0, remaining=0, limit=2000).is_of_its_kind
    assert not Signal(429, 0.1, 60.0).is_of_its_kind
    assert not Signal(503, 0.1, 60.0, remaining=1500).is_of_its_kind
    # Nothing is said of a whole.
    assert Signal(429, 0.1).is_of_its_kind
    assert not Signal(429, 0.1, limit=2000).is_of_its_kind
    assert not Signal(503, 0.1).is_of_its_kind


def test_a_shorter_pause_leaves_a_longer_one_and_the_end_of_one_lets_requests_go_one_by_one() -> None:
    long = paused(full(LIMITS, START), START, later(100), "by a person")
    assert paused(long, later(1), later(50), "other") == long
    bucket, wait = take(long, LIMITS, later(1), 1000.0)
    assert wait == pytest.approx(99 + 0.1)
    bucket, wait = take(resumed(bucket, later(2), "done"), LIMITS, later(2), 1000.0)
    assert wait == pytest.approx(0.1)
    assert not is_valid(bucket, later(1))
    assert bucket.pause_reason == "done"
    slow = replace(bucket, rate=1.0, changed_at=later(2), consecutive_429=4)
    assert restored(slow, LIMITS, later(3), "done").rate == LIMITS.rate


def test_a_rate_that_changes_gives_no_place_before_one_that_was_given() -> None:
    bucket: Bucket = full(RateLimits(1.0, 1), START)
    for _ in range(31):
        bucket, wait = take(bucket, RateLimits(1.0, 1), START, 60.0)
    assert wait == 30.0
    for limits in (RateLimits(100.0, 1), RateLimits(0.5, 1)):
        bucket, after = take(bucket, limits, START, 60.0)
        assert after == pytest.approx(wait + 1 / limits.rate)
        wait = after


# The rate that is found ---------------------------------------------------------------------------------

OPEN = RateLimits(rate=10.0, burst=20.0, max_rate=100.0, share=0.5)
WAITING = Load(Bearing.FLAT, 1.0, is_limited=True)
SLOW = Load(Bearing.SLOW, 2.7, is_limited=True)


def driven(bucket: Bucket, limits: RateLimits, load: Load, start: float, seconds: float) -> Bucket:
    """The bucket while the server bears the load like this, judged every two seconds."""
    for step in range(int(seconds / STEP_SECONDS)):
        bucket = tuned(bucket, limits, load, later(start + step * STEP_SECONDS))
    return bucket


def test_the_rate_rises_step_by_step_while_requests_wait_and_response_times_stay_as_usual() -> None:
    bucket = driven(full(OPEN, START), OPEN, WAITING, 0, 10)
    assert bucket.rate == pytest.approx(15.0)
    assert bucket.rate_reason == "requests wait, and responses take as long as usual"
    assert driven(bucket, OPEN, WAITING, 10, 1000).rate == OPEN.ceiling == 100.0
    idle = Load(Bearing.FLAT, 1.0, is_limited=False)
    assert driven(bucket, OPEN, idle, 10, 1000).rate == bucket.rate


def test_many_processes_together_raise_the_rate_no_faster_than_one() -> None:
    bucket = full(OPEN, START)
    for _ in range(9):
        bucket = tuned(bucket, OPEN, WAITING, later(1))
    assert bucket.rate == 11.0


def test_slow_responses_lower_the_rate_at_once_and_never_below_half_of_the_start() -> None:
    found = driven(full(OPEN, START), OPEN, WAITING, 0, 60)
    slower = tuned(found, OPEN, SLOW, later(60))
    assert slower.rate == pytest.approx(0.8 * found.rate)
    assert slower.rate_reason == "responses take 2.7 times as long as usual"
    slowest = driven(slower, OPEN, SLOW, 62, 200)
    assert slowest.rate == 5.0
    assert driven(slowest, OPEN, WAITING, 262, 20).rate == pytest.approx(15.0)


def test_a_number_that_a_person_set_is_the_ceiling() -> None:
    bucket = driven(full(LIMITS, START), LIMITS, WAITING, 0, 100)
    assert (bucket.rate, bucket.tuned_at) == (LIMITS.rate, None)
    slower = driven(bucket, LIMITS, SLOW, 100, 4)
    assert slower.rate < LIMITS.rate
    assert driven(slower, LIMITS, WAITING, 104, 100).rate == LIMITS.rate


def test_a_found_rate_counts_for_an_hour_after_it_was_last_confirmed() -> None:
    found = driven(full(OPEN, START), OPEN, WAITING, 0, 60)
    last = 58.0
    assert at(found, OPEN, later(last + KEPT_SECONDS - 1)).rate == found.rate
    assert at(found, OPEN, later(last + KEPT_SECONDS)).rate == OPEN.rate


def test_a_refused_rate_is_halved_and_not_tried_again_for_an_hour() -> None:
    found = driven(full(OPEN, START), OPEN, WAITING, 0, 60)
    assert found.rate == 40.0
    refused = after_answer(found, OPEN, Signal(429, 0.1, 1.0), later(60))
    assert (refused.rate, refused.changed_at, refused.refused_rate) == (20.0, None, 40.0)
    again = driven(refused, OPEN, WAITING, 62, 600)
    assert again.rate == pytest.approx(0.8 * 40.0)
    later_on = driven(again, OPEN, WAITING, 60 + KEPT_SECONDS - 4, 100)
    assert later_on.rate > 40.0
    # A rate that a refusal brought below the start only recovers with time.
    low = after_answer(full(OPEN, START), OPEN, Signal(429, 0.1, 1.0), START)
    assert tuned(low, OPEN, WAITING, later(1.5)).rate == pytest.approx(5.0, abs=0.1)


@pytest.mark.parametrize(
    ("limit", "remaining", "reset", "share", "rate"),
    [
        # gitlab.com: 2,000 a minute.
        (2000, 1990, 40.0, 0.5, 2000 / 60 * 0.5),
        (2000, 1990, 40.0, 1.0, 2000 / 60),
        # GitLab states 7,200 an hour as 120 a minute.
        (120, 7000, 3000.0, 0.5, 1.0),
        # A gateway with 5,000 an hour: what is left, without the half of others.
        (5000, 4500, 2000.0, 0.5, 1.0),
        (5000, 2000, 1000.0, 0.5, 0.0),
        (None, 10, 60.0, 0.5, None),
        (60, None, 60.0, 0.5, None),
        (60, 10, None, 0.5, None),
    ],
)
def test_what_an_announced_limit_allows(
    limit: int | None, remaining: int | None, reset: float | None, share: float, rate: float | None
) -> None:
    signal = Signal(200, 0.1, None, remaining, limit, reset)
    assert announced_rate(signal, share) == (None if rate is None else pytest.approx(rate))


def test_a_server_that_announces_changes_and_hides_its_limit_is_followed() -> None:
    def announce(bucket: Bucket, limit: int, seconds: float) -> Bucket:
        return after_answer(bucket, OPEN, Signal(200, 0.1, None, limit, limit, 60.0), later(seconds))

    bucket = announce(full(OPEN, START), 2000, 0)
    assert bucket.rate == 10.0
    bucket = driven(bucket, OPEN, WAITING, 0, 60)
    assert bucket.rate == pytest.approx(2000 / 60 / 2)
    lower = announce(bucket, 300, 60)
    assert lower.rate == pytest.approx(2.5)
    assert lower.rate_reason == "the server announces a limit of 300; 50% of it are used"
    assert driven(lower, OPEN, WAITING, 60, 300).rate == pytest.approx(2.5)
    # The setting is above it, so the rate is the announced one, and rises with it.
    raised = announce(lower, 3000, 400)
    assert driven(raised, OPEN, WAITING, 400, 60).rate == pytest.approx(25.0)
    hidden = driven(raised, OPEN, WAITING, 401 + ANNOUNCED_SECONDS, 100)
    assert hidden.rate > 25.0


def test_what_a_person_resets_is_found_anew() -> None:
    found = driven(full(OPEN, START), OPEN, WAITING, 0, 60)
    refused = after_answer(found, OPEN, Signal(429, 0.1, 1.0, 0, 60, 60.0), later(60))
    fresh = restored(refused, OPEN, later(61), "by a person")
    assert (fresh.rate, fresh.refused_rate, fresh.announced_rate, fresh.tuned_at) == (10.0, None, None, None)


# Permits that are taken ahead ---------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.floats(0, 0.3), st.integers(0, 2), st.integers(0, 30)), max_size=60),
    st.sampled_from([RateLimits(20.0, 5), RateLimits(100.0, 20), RateLimits(500.0, 40), RateLimits(5.0, 20)]),
)
def test_permits_taken_ahead_by_several_processes_and_used_at_the_last_moment_keep_the_limit(
    asks: list[tuple[float, int, int]], limits: RateLimits
) -> None:
    bucket, now, sent = full(limits, START), 0.0, list[float]()
    for gap, _process, wanted in asks:
        now += gap
        bucket, wait = take(bucket, limits, later(now), 60.0)
        sent.append(now + wait)
        if wait == 0:
            bucket, ahead = take_ahead(bucket, limits, later(now), wanted)
            sent += [now + HOLD_SECONDS] * ahead
            assert ahead == 0 or limits.rate >= 20
    assert exceeds(sent, limits) is None
