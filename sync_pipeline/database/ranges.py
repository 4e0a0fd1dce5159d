"""Windows as PostgreSQL ranges, in both directions.

Belongs here: the one place that knows that a revision window is an ``int8range`` and a time window a
``tstzrange``. Every query takes the pair, of which one side is NULL (or an empty multirange).
"""

from __future__ import annotations

from typing import Any

from psycopg.types.multirange import Int8Multirange, TimestamptzMultirange
from psycopg.types.range import Int8Range, Range, TimestamptzRange

from sync_pipeline.core.model import RevisionWindow, TimeWindow, Window


def range_params(window: Window | None) -> dict[str, Any]:
    """``revs`` and ``period`` as query parameters; both None where there is no window."""
    if isinstance(window, RevisionWindow):
        return {"revs": Int8Range(window.first, window.end, "[)"), "period": None}
    if isinstance(window, TimeWindow):
        return {"revs": None, "period": TimestamptzRange(window.since, window.until, "[)")}
    return {"revs": None, "period": None}


def multirange_params(*windows: Window) -> dict[str, Any]:
    """``revs`` and ``period`` as multiranges that hold exactly ``windows``."""
    return {
        "revs": Int8Multirange(Range(w.first, w.end, "[)") for w in windows if isinstance(w, RevisionWindow)),
        "period": TimestamptzMultirange(
            Range(w.since, w.until, "[)") for w in windows if isinstance(w, TimeWindow)
        ),
    }


def from_ranges(revs: Range[int] | None, period: Range[Any] | None) -> Window | None:
    """The window behind a pair of range columns, None where both are NULL or empty."""
    if revs is not None and not revs.isempty:
        assert revs.lower is not None
        assert revs.upper is not None
        return RevisionWindow(revs.lower, revs.upper)
    if period is not None and not period.isempty:
        assert period.lower is not None
        assert period.upper is not None
        return TimeWindow(period.lower, period.upper)
    return None


def from_multiranges(revs: Any, period: Any) -> tuple[Window, ...]:
    """The windows behind a pair of multirange columns, in order."""
    found = [from_ranges(r, None) for r in revs] + [from_ranges(None, p) for p in period]
    return tuple(w for w in found if w is not None)
