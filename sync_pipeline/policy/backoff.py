"""How long a failed job waits before its next attempt.

Belongs here: the table of base waits and the growth. Does not belong here: the seconds that a client waits
inside one call.
"""

from __future__ import annotations

BASE_SECONDS = {
    "timeout": 30.0,
    "window_too_hard": 30.0,
    "connection": 45.0,
    "network": 60.0,
    "server_error": 90.0,
    "rate_limit": 120.0,
    "throttled": 0.0,
    "lease_lost": 0.0,
    "claim_lost": 0.0,
    "database_busy": 30.0,
    "database_down": 30.0,
    "database_full": 300.0,
}
"""Base wait per error code (seed 000, section 1.9); every other code waits 60 s. ``throttled`` comes with the
time at which our own limit has room."""

LONGEST_SECONDS = 3600.0


def seconds_until_retry(code: str, attempt: int, retry_after: float | None = None) -> float:
    """Seconds from the end of attempt number ``attempt`` (from 1) to the next one.

    Doubles with every attempt, an hour at most. What the source asked for (``retry_after``) wins where it is
    longer, under the same cap: a source cannot stop us for ever.
    """
    grown = BASE_SECONDS.get(code, 60.0) * 2.0 ** (max(attempt, 1) - 1)
    return min(max(grown, retry_after or 0.0), LONGEST_SECONDS)
