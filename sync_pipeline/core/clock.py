"""The clock: the only place of the program that asks the machine what time it is.

Belongs here: the current moment. Call ``clock.now()``, so that a test can hold it. Does not belong here:
the clocks of the database and of the sources, which decide on leases and windows; durations, which are
measured with ``time.monotonic()``.
"""

from __future__ import annotations

from datetime import UTC, datetime


def now() -> datetime:
    """The current moment in UTC."""
    return datetime.now(UTC)
