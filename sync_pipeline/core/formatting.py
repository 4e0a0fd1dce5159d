"""Lengths of time, moments, sizes and windows, in words for people and in values for documents.

Belongs here: pure functions that reports and documents share. Does not belong here: a whole one of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING

from sync_pipeline.core.model import RevisionWindow, Window
from sync_pipeline.core.windows import hull

if TYPE_CHECKING:
    from sync_pipeline.core.documents.common import WindowRange

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


def second(when: datetime | str) -> str:
    """A moment to the second, as it is written there."""
    return f"{datetime.fromisoformat(when) if isinstance(when, str) else when:%Y-%m-%d %H:%M:%S}"


def counted(number: int, thing: str, things: str = "") -> str:
    """``1 gap``, ``2,000 gaps``."""
    return f"{number:,} {thing if number == 1 else things or thing + 's'}"


def requests_and_time(requests: int, seconds: float) -> str:
    """``12,000 requests, 20 min``."""
    return f"{counted(requests, 'request')}, {age(max(seconds, 1))}"


def failed_starts(runs: int, failed: int, reason: str | None) -> str:
    """One line: ``failed`` of the last ``runs`` runs failed before they began, and why the newest of them
    did."""
    return f"{failed} of the last {counted(runs, 'run')} failed before they began: {reason}"


def some(names: Iterable[str], most: int = 10, longest: int = 60) -> str:
    """The first ``most`` of these names, cut to ``longest`` characters each, and how many more there are."""
    found = sorted(set(names))
    shown = [name if len(name) <= longest else f"{name[: longest - 1]}…" for name in found[:most]]
    more = f" and {len(found) - most:,} more" if len(found) > most else ""
    return (", ".join(shown) or "none yet") + more


def plain_window(*windows: Window | None) -> WindowRange | None:
    """The hull of ``windows`` as documents have it; None for none."""
    whole = hull([window for window in windows if window is not None])
    return None if whole is None else window_range(whole)


def window_range(window: Window) -> WindowRange:
    """A window as documents have it: inclusive revisions, or ISO times."""
    if isinstance(window, RevisionWindow):
        return {"start_rev": window.first, "end_rev": window.end - 1}
    return {"since": window.since.isoformat(), "until": window.until.isoformat()}


def plain_mark(watermark: int | datetime | None) -> int | str | None:
    """A watermark as documents have it: a revision or an ISO time."""
    return watermark.isoformat() if isinstance(watermark, datetime) else watermark


def pace(done: int, total: int | None, rate: float | None) -> str:
    """How far work is: ``3,400 of 12,000 rows (28 %), 1,133 rows/s, 8 s left``. ``total`` is None where it is
    not known, ``rate``, in rows a second, where there is none yet."""
    words = [counted(done, "row")]
    if total:
        words = [f"{done:,} of {counted(total, 'row')} ({100 * min(done, total) // total} %)"]
    if rate:
        words.append(f"{rate:,.0f} rows/s" if rate >= 10 else f"{rate:.1f} rows/s")
    if total and rate and done < total:
        words.append(f"{age((total - done) / rate)} left")
    return ", ".join(words)
