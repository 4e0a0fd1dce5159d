"""Waits before the next attempt of a failed job, and before the next visit of a dead or denied asset.

Belongs here: the table of base waits, the growth, and the errors that no further attempt can fix. Does not
belong here: the seconds that a client waits inside one call.
"""

from __future__ import annotations

from datetime import timedelta

from sync_pipeline.core.errors import AccessDenied, SourceReplaced, SyncError
from sync_pipeline.core.model import Mode

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
time at which our own limit has room.
"""

LONGEST_SECONDS = 3600.0


def seconds_until_retry(code: str, attempt: int, retry_after: float | None = None) -> float:
    """Seconds from the end of attempt number ``attempt`` (from 1) to the next one.

    The wait doubles with every attempt, up to an hour. A longer ``retry_after`` of the source replaces it,
    under the same cap, so that a source cannot stop us for ever.
    """
    grown = BASE_SECONDS.get(code, 60.0) * 2.0 ** (max(attempt, 1) - 1)
    return min(max(grown, retry_after or 0.0), LONGEST_SECONDS)


def ends_the_job(error: SyncError, mode: Mode) -> bool:
    """True if the job is dead at once, because a person has to decide or live syncing is denied.

    Any other refusal (400, 405, 413, a certificate) may come from a proxy for a minute, so the job has its
    attempts. Denied history waits for the end of that state.
    """
    denied = isinstance(error, AccessDenied) and mode is Mode.INCREMENTAL
    return denied or isinstance(error, SourceReplaced)


def wait_before_next_visit(
    troubled_since: timedelta | None, shortest: timedelta, longest: timedelta
) -> timedelta:
    """The wait after the last failed try. It equals the time since the first failure, so that it doubles from
    ``shortest`` to ``longest``. If that time is unknown, it is ``longest``.
    """
    return longest if troubled_since is None else min(max(troubled_since, shortest), longest)
