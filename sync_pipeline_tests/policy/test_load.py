"""How a server bears the load: what counts as slow, and how many requests are in flight then."""

from __future__ import annotations

import pytest

from sync_pipeline.policy.load import (
    MIN_RESPONSES,
    Bearing,
    InFlight,
    Usual,
    after_refusal,
    after_window,
    bearing,
    learned,
    sent,
    slowdown,
)


@pytest.mark.parametrize(
    ("usual", "real", "found"),
    [
        (0.1, 0.1, Bearing.FLAT),
        (0.1, 0.12, Bearing.FLAT),
        (0.1, 0.16, Bearing.UNCLEAR),
        (0.1, 0.25, Bearing.SLOW),
        # Of a server next door three milliseconds instead of one are no sign of load.
        (0.001, 0.003, Bearing.FLAT),
        (0.02, 0.06, Bearing.UNCLEAR),
        (0.0, 0.0, Bearing.FLAT),
    ],
)
def test_responses_are_slow_if_they_take_twice_as_long_as_usual(
    usual: float, real: float, found: Bearing
) -> None:
    assert bearing([(usual, real)] * MIN_RESPONSES) is found
    assert bearing([(usual, real)] * (MIN_RESPONSES - 1)) is Bearing.UNCLEAR


def test_a_few_slow_responses_are_no_load_and_each_kind_has_its_own_usual_time() -> None:
    times = [(0.1, 0.1)] * 6 + [(2.0, 2.1)] * 4 + [(0.1, 5.0)] * 3
    assert bearing(times) is Bearing.FLAT
    assert slowdown(times) == pytest.approx(1.05)


def test_the_usual_time_follows_quicker_responses_at_once_and_slower_ones_within_minutes() -> None:
    usual = learned(None, 0.5, 0.0)
    assert usual == Usual(0.5, 0.0)
    for moment in range(1, 20):
        usual = learned(usual, 0.1, moment / 10)
    assert usual.seconds == pytest.approx(0.1, abs=0.01)
    loaded = usual
    for moment in range(1, 1001):
        loaded = learned(loaded, 0.4, usual.at + moment / 100)
    assert loaded.seconds < 0.12
    for moment in range(1, 1001):
        loaded = learned(loaded, 0.4, usual.at + 10 + moment)
    assert loaded.seconds == pytest.approx(0.4, abs=0.02)


def test_the_limit_grows_while_it_is_used_and_borne_and_stops_at_the_most() -> None:
    state = InFlight(4, 6)
    for expected in (5, 6, 6):
        state = after_window(sent(state, state.limit), Bearing.FLAT, False, 1.0)
        assert (state.limit, state.peak) == (expected, 0)


@pytest.mark.parametrize(
    ("found", "waited", "in_flight"),
    [(Bearing.UNCLEAR, False, 4), (Bearing.FLAT, True, 4), (Bearing.FLAT, False, 3)],
    ids=["unclear", "the rate limit is what holds", "not used"],
)
def test_the_limit_stays_where_more_requests_would_bring_nothing(
    found: Bearing, waited: bool, in_flight: int
) -> None:
    assert after_window(sent(InFlight(4, 16), in_flight), found, waited, 1.0).limit == 4


def test_the_limit_shrinks_at_the_first_slow_window_and_at_a_refusal_but_once_for_those_in_flight() -> None:
    state = after_window(sent(InFlight(16, 16), 16), Bearing.SLOW, False, 10.0)
    assert state.limit == 12
    state = after_refusal(state, sent_at=10.5, now=11.0)
    assert (state.limit, state.changed_at) == (6, 11.0)
    assert after_refusal(state, sent_at=10.9, now=11.2) == state
    for moment in range(12, 20):
        state = after_refusal(state, sent_at=float(moment), now=moment + 0.5)
    assert state.limit == 1
    assert after_window(state, Bearing.SLOW, False, 30.0).limit == 1
