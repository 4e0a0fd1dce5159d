"""Lengths of time, moments and sizes in words for people.

Belongs here: pure functions that reports share. Does not belong here: what a document for programs holds.
"""

from __future__ import annotations

from datetime import datetime

_UNITS = ((2 * 86_400, 86_400, "days"), (2 * 3600, 3600, "h"), (120, 60, "min"))


def age(seconds: float) -> str:
    """A length of time: ``5 s``, ``3 min``, ``20 h``, ``4 days``."""
    for least, size, unit in _UNITS:
        if seconds >= least:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def moment(text: str) -> str:
    """A moment of a document (ISO 8601) to the minute, in UTC."""
    return f"{datetime.fromisoformat(text):%Y-%m-%d %H:%M}"


def counted(number: int, thing: str, things: str = "") -> str:
    """``1 gap``, ``2,000 gaps``."""
    return f"{number:,} {thing if number == 1 else things or thing + 's'}"
