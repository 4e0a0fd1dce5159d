"""In which order the history of a new repository is read.

Belongs here: the cuts of a history and the priorities of its pieces. They make the newest 90 days of the
whole fleet usable first, then one year after the other. Pure. Does not belong here: when a job starts
(:mod:`~sync_pipeline.policy.planning`).
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from sync_pipeline.core.model import TimeWindow

RECENT = timedelta(days=90)
"""The history that is read first, before today."""

HISTORY_PRIORITY = 900
"""Priority of the newest history, and of revisions: after everything that a person waits for."""

COMPLETION_PRIORITY = 2000
"""Priority of completion jobs: after live syncing and all history."""

# Pieces that are older than this many years have the same priority.
_MAX_YEARS_APART = 90


def pieces(window: TimeWindow, now: datetime, oldest: datetime) -> Iterator[TimeWindow]:
    """``window`` cut into pieces, newest first: what is :data:`RECENT` at ``now`` from midnight UTC, then
    calendar years. The year of ``oldest`` and all before are one piece, and rows are not expected before it.
    """
    until = window.until
    recent = _recent_since(now)
    if max(window.since, oldest) < recent < until:
        yield TimeWindow(recent, until)
        until = recent
    while until > window.since:
        year = _year(until)
        since = window.since
        if year > oldest.year:
            since = max(since, datetime(year, 1, 1, tzinfo=UTC))
        yield TimeWindow(since, until)
        until = since


def priority(window: TimeWindow, now: datetime) -> int:
    """The priority of a piece: recent ones first, then by the year in which a piece ends (UTC)."""
    if window.until > _recent_since(now):
        return HISTORY_PRIORITY
    return HISTORY_PRIORITY + 1 + min(max(0, now.year - _year(window.until)), _MAX_YEARS_APART)


def _recent_since(now: datetime) -> datetime:
    return (now.astimezone(UTC) - RECENT).replace(hour=0, minute=0, second=0, microsecond=0)


def _year(until: datetime) -> int:
    return (until - timedelta(microseconds=1)).year
