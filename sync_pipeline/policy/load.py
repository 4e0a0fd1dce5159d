"""How a server bears our load: its usual response times, and how many requests are in flight at once.

Belongs here: pure functions from response times to a verdict, and from a verdict to the next limit. Does not
belong here: the rate (:mod:`sync_pipeline.policy.rate_limits`), the clock, and who shares the limit
(:mod:`sync_pipeline.sync.limiter`).

Kinds of requests differ in their times, so each is compared with the usual time of its own kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import median

MIN_RESPONSES = 8
"""Fewer responses say nothing about the load."""

_RELEARN_SECONDS = 300.0
_QUICKER = 0.2
# Times this much longer than usual, and longer by this many seconds, are those of a server with too much to
# do. Below the smaller values they are as usual. Between them nothing changes.
_SLOW, _SLOW_SECONDS = 2.0, 0.05
_FLAT, _FLAT_SECONDS = 1.3, 0.02


class Bearing(StrEnum):
    """How response times compare with the usual ones; ``FAILING``: most requests got no response."""

    FLAT = "flat"
    UNCLEAR = "unclear"
    SLOW = "slow"
    FAILING = "failing"


class Outcome(StrEnum):
    """How a request ended. ``REFUSED``: the server asked to slow down. ``LOST``: no response came, or that of
    a proxy whose server is overloaded or down. ``ERROR``: an error that says nothing about the load, however
    quick it is."""

    SERVED = "served"
    REFUSED = "refused"
    LOST = "lost"
    ERROR = "error"


_LOST = frozenset({502, 503, 504})


def outcome(status: int | None, is_refusal: bool) -> Outcome:
    """How a request with this response ended; None: without one."""
    if is_refusal:
        return Outcome.REFUSED
    if status is None or status in _LOST:
        return Outcome.LOST
    return Outcome.ERROR if status >= 400 else Outcome.SERVED


@dataclass(frozen=True, slots=True)
class Usual:
    """The usual time of a response of one kind: ``seconds``, learned until ``at`` (seconds of a clock that
    only goes on)."""

    seconds: float
    at: float


def learned(usual: Usual | None, seconds: float, now: float) -> Usual:
    """The usual time after a response that took ``seconds``. It follows quicker responses at once, and slower
    ones within minutes. So a load of a minute stands out, and a server that became slower is learned anew.
    """
    if usual is None:
        return Usual(seconds, now)
    weight = _QUICKER if seconds < usual.seconds else min(1.0, max(0.0, now - usual.at) / _RELEARN_SECONDS)
    return Usual(usual.seconds + (seconds - usual.seconds) * weight, now)


def slowdown(times: Sequence[tuple[float, float]]) -> float:
    """The median of how many times longer than usual responses took; ``times`` are pairs of the usual and the
    real seconds, at least one."""
    return median(real / usual if usual > 0 else 1.0 for usual, real in times)


def bearing(times: Sequence[tuple[float, float]]) -> Bearing:
    """The verdict on ``times``, as for :func:`slowdown`."""
    if len(times) < MIN_RESPONSES:
        return Bearing.UNCLEAR
    factor, longer = slowdown(times), median(real - usual for usual, real in times)
    if factor >= _SLOW and longer >= _SLOW_SECONDS:
        return Bearing.SLOW
    return Bearing.FLAT if factor <= _FLAT or longer <= _FLAT_SECONDS else Bearing.UNCLEAR


@dataclass(frozen=True, slots=True)
class InFlight:
    """The requests in flight at once. ``limit`` is for each job, at most ``most``. ``peak`` is the highest
    number in flight since ``changed_at``, the time of the last change of the limit."""

    limit: int
    most: int
    peak: int = 0
    changed_at: float = float("-inf")


def sent(state: InFlight, in_flight: int) -> InFlight:
    """The state after a request was sent; ``in_flight`` counts it."""
    return replace(state, peak=max(state.peak, in_flight))


def after_window(state: InFlight, found: Bearing, waited: bool, now: float) -> InFlight:
    """The state after a window of responses. The limit grows by one if the server bore all of it as usual. It
    stays if a request ``waited`` for the rate limit, because more of them would wait too. It shrinks by a
    quarter if the server is slower than usual.
    """
    limit = state.limit
    if found is Bearing.SLOW:
        limit = max(1, min(limit - 1, limit * 3 // 4))
    elif found is Bearing.FLAT and not waited and state.peak >= limit:
        limit = min(state.most, limit + 1)
    return replace(state, limit=limit, peak=0, changed_at=now)


def after_refusal(state: InFlight, sent_at: float, now: float) -> InFlight:
    """The state after a request, sent at ``sent_at``, that was refused or got no response. Half of the limit
    remains. Refusals of requests that were in flight together count once.
    """
    if sent_at <= state.changed_at:
        return state
    return replace(state, limit=max(1, state.limit // 2), peak=0, changed_at=now)
