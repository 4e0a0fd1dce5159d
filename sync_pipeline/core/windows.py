"""Arithmetic on windows, of revisions or of time.

Belongs here: pure functions over windows of one kind. :mod:`sync_pipeline.core.model` defines a window, and
:mod:`sync_pipeline.database.ranges` has windows as PostgreSQL ranges.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from sync_pipeline.core.model import RevisionWindow, TimeWindow, Window

# Sources send times up to the last one that there is, and a window has to end behind it.
_LATEST = datetime(9999, 12, 31, tzinfo=UTC)

W = TypeVar("W", bound=Window)


def bounds(window: Window) -> tuple[Any, Any]:
    """Start and end of a window: revisions, or UTC times."""
    if isinstance(window, RevisionWindow):
        return window.first, window.end
    return window.since, window.until


def between(start: Any, end: Any) -> Window:
    """The window between two revisions, or two UTC times."""
    return TimeWindow(start, end) if isinstance(end, datetime) else RevisionWindow(start, end)


def hull(windows: Iterable[W]) -> W | None:
    """The smallest window that contains all of ``windows``, which are of one kind; None if there is none."""
    found = list(windows)
    if not found:
        return None
    return _like(found[0], min(bounds(w)[0] for w in found), max(bounds(w)[1] for w in found))


def holds(outer: Window, inner: Window) -> bool:
    """True if ``inner`` is of the same kind and lies inside ``outer``."""
    if type(outer) is not type(inner):
        return False
    start, end = bounds(inner)
    return bool(bounds(outer)[0] <= start and end <= bounds(outer)[1])


def overlap(one: W, other: W) -> W | None:
    """The common part of both windows; None if there is none."""
    start = max(bounds(one)[0], bounds(other)[0])
    end = min(bounds(one)[1], bounds(other)[1])
    return _like(one, start, end) if start < end else None


def newest_piece(
    window: TimeWindow, longest: timedelta, beginning: datetime
) -> tuple[TimeWindow, TimeWindow | None]:
    """The newest part of ``window`` that is at most ``longest``, and the rest or None. Time before
    ``beginning``, which is expected to be empty, does not count.
    """
    since = window.until - longest
    if since <= max(window.since, beginning):
        return window, None
    return TimeWindow(since, window.until), TimeWindow(window.since, since)


def merged(windows: Iterable[W]) -> tuple[W, ...]:
    """The same time or revisions in as few windows as possible, in order; empty windows are left out."""
    found: list[W] = []
    for window in sorted(windows, key=bounds):
        start, end = bounds(window)
        if start == end:
            continue
        if found and start <= bounds(found[-1])[1]:
            found[-1] = _like(window, bounds(found[-1])[0], max(end, bounds(found[-1])[1]))
        else:
            found.append(window)
    return tuple(found)


def without(window: W, others: Iterable[W]) -> tuple[W, ...]:
    """The parts of ``window`` that none of ``others`` contains, in order."""
    start, end = bounds(window)
    found: list[W] = []
    for other in merged(others):
        if start < min(bounds(other)[0], end):
            found.append(_like(window, start, min(bounds(other)[0], end)))
        start = max(start, bounds(other)[1])
    if start < end:
        found.append(_like(window, start, end))
    return tuple(found)


def span(times: Iterable[datetime]) -> tuple[TimeWindow, ...]:
    """The window that contains all of ``times``, to the second; None without times."""
    found = sorted(min(time, _LATEST) for time in times)
    return (TimeWindow(found[0], found[-1] + timedelta(seconds=1)),) if found else ()


def _like(window: W, start: Any, end: Any) -> W:
    return type(window)(start, end)
