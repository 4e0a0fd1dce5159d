"""The load of one GitLab as this process sees it: response times, and the requests in flight.

Belongs here: the windows of responses, under a lock for all threads. Does not belong here: what follows from
a window (:mod:`sync_pipeline.policy.load`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from sync_pipeline.policy import load as policy
from sync_pipeline.policy.load import MIN_RESPONSES, Bearing, InFlight, Outcome, Usual
from sync_pipeline.policy.rate_limits import STEP_SECONDS, Load

# Kinds of requests whose usual times are remembered; GitLab has fewer that are used.
_MAX_KINDS = 200


class ServerLoad:
    """Safe to share between threads. ``start`` requests of a job are in flight at first, ``most`` at last."""

    def __init__(self, start: int, most: int, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._state = InFlight(min(start, most), most)
        self._in_flight = 0
        self._usual: dict[str, Usual] = {}
        # Of the window for the requests in flight, and of the longer one for the rate.
        self._times: list[tuple[float, float]] = []
        self._waited = False
        self._rate_times: list[tuple[float, float]] = []
        self._rate_failures = 0
        self._rate_waited = False
        self._rate_since = monotonic()

    def limit(self) -> int:
        """How many requests a job may have in flight now."""
        return self._state.limit

    def sent(self, waited: bool) -> None:
        """A request is sent; ``waited`` for the rate limit."""
        with self._lock:
            self._in_flight += 1
            self._state = policy.sent(self._state, self._in_flight)
            self._waited |= waited
            self._rate_waited |= waited

    def answered(self, kind: str, seconds: float, outcome: Outcome) -> Load | None:
        """A request of this ``kind`` ended after ``seconds``. Returns how the server bore the load once
        enough responses came in enough time.
        """
        now = self._monotonic()
        with self._lock:
            self._in_flight -= 1
            if outcome is Outcome.ERROR:
                return None
            if outcome is not Outcome.SERVED:
                self._state = policy.after_refusal(self._state, now - seconds, now)
                self._times, self._waited = [], False
                if outcome is Outcome.REFUSED:
                    return None
                self._rate_failures += 1
                return self._rate_window(now)
            usual = self._usual.get(kind)
            if usual is not None or len(self._usual) < _MAX_KINDS:
                self._usual[kind] = policy.learned(usual, seconds, now)
            if usual is None:
                return None
            self._times.append((usual.seconds, seconds))
            self._rate_times.append((usual.seconds, seconds))
            if len(self._times) >= max(self._state.limit, MIN_RESPONSES):
                found = policy.bearing(self._times)
                self._state = policy.after_window(self._state, found, self._waited, now)
                self._times, self._waited = [], False
            return self._rate_window(now)

    def _rate_window(self, now: float) -> Load | None:
        times, failures = self._rate_times, self._rate_failures
        if len(times) + failures < MIN_RESPONSES or now - self._rate_since < STEP_SECONDS:
            return None
        if failures >= len(times):
            found = Load(Bearing.FAILING, 1.0, self._rate_waited)
        else:
            found = Load(policy.bearing(times), policy.slowdown(times), self._rate_waited and not failures)
        self._rate_times, self._rate_failures, self._rate_waited, self._rate_since = [], 0, False, now
        is_change = found.bearing in (Bearing.SLOW, Bearing.FAILING) or (
            found.bearing is Bearing.FLAT and found.is_limited
        )
        return found if is_change else None
