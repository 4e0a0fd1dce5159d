"""Partitions: windows as Dagster shows them.

Belongs here: the dynamic definition of revision blocks and the daily one, their names, the window of a name,
and appending missing blocks. All SVN repositories of a code location share one list of blocks, so a block can
lie beyond the HEAD of one. All GitLab projects share one list of days. Does not belong here: coverage, which
is in our own tables.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import TypeAlias

import dagster as dg

from sync_pipeline.core import catalog, clock
from sync_pipeline.core.catalog import BLOCK_REVISIONS, CatalogSnapshot, block_of
from sync_pipeline.core.errors import ConfigurationError
from sync_pipeline.core.job_types import Family
from sync_pipeline.core.model import Kind, RevisionWindow, TimeWindow, Window
from sync_pipeline.core.windows import bounds, merged, overlap
from sync_pipeline.database.pool import Database
from sync_pipeline.ledger import planning
from sync_pipeline.settings import Settings

svn_blocks = dg.DynamicPartitionsDefinition(name="svn_blocks")
"""Blocks of revisions, oldest first. Keys are appended in order and never deleted."""

_DAY = timedelta(days=1)
_MOMENT = timedelta(microseconds=1)
_BLOCK_KEY = re.compile(r"(\d{10})-(\d{10})")
_REVISIONS = re.compile(r"(\d+)-(\d+)")
# One statement per so many keys keeps far below the limit of bind parameters.
_KEYS_PER_STATEMENT = 5000


def partitions_of(
    family: Family, instance: dg.DagsterInstance, days: dg.DailyPartitionsDefinition
) -> Partitions:
    """The partitions of ``family`` now."""
    return Blocks(known_blocks(instance)) if family.kind is Kind.SVN else Days.of(days)


def _reversed(first: str, last: str) -> ConfigurationError:
    return ConfigurationError(
        f"the range of partitions ends before it starts: {first} to {last}; exchange the two",
        code="reversed_range",
    )


# Blocks of revisions ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Blocks:
    """Blocks of revisions; ``known`` are the keys that the Dagster instance has, oldest first."""

    known: Sequence[str]

    @property
    def newest(self) -> str:
        """The key that carries an incremental."""
        return self.known[-1]

    def between(self, first: str, last: str) -> tuple[Window, ...]:
        """Every partition from one key to the other, oldest first. Raises ConfigurationError with one line
        for an unknown key, and for a range that ends before it starts."""
        start, end = block_window(first), block_window(last)
        if end < start:
            raise _reversed(first, last)
        have = set(self.known)
        for key in (first, last):
            if key not in have:
                newest = (
                    f"the newest is {self.newest}" if self.known else "there are none, add a repository first"
                )
                raise ConfigurationError(f"there is no partition {key}; {newest}", code="unknown_partition")
        return tuple(blocks_of(RevisionWindow(start.first, end.end)))

    def touched(self, window: Window) -> tuple[RevisionWindow, ...]:
        """The partitions that share something with ``window``, oldest first."""
        assert isinstance(window, RevisionWindow)
        return tuple(blocks_of(window))

    def carriers(self, windows: Sequence[Window]) -> tuple[str, str]:
        """First and last key of the range that a run of exactly these windows has in Dagster."""
        keys = [block_key(block) for window in windows for block in self.touched(window)]
        return min(keys), max(keys)

    def parse(self, text: str) -> tuple[Window, ...]:
        """The jobs that a window of the runner is cut into. Raises ConfigurationError."""
        match = _REVISIONS.fullmatch(text)
        if match is None or int(match[2]) < int(match[1]) or int(match[1]) < 1:
            raise ConfigurationError(f"{text!r} is no window; write first-last, such as 5-300, from 1 on")
        # A job per block: a failure stays small, and a stop loses little.
        return tuple(catalog.blocks(RevisionWindow(int(match[1]), int(match[2]) + 1)))


def blocks_of(window: RevisionWindow) -> Iterator[RevisionWindow]:
    """Every block that ``window`` touches, oldest first; none for an empty window."""
    if window.end > window.first:
        for first in range(block_of(window.first).first, window.end, BLOCK_REVISIONS):
            yield RevisionWindow(first, first + BLOCK_REVISIONS)


def block_key(block: RevisionWindow) -> str:
    """The partition key of a block: first and last revision, such as ``0000001001-0000002000``."""
    return f"{block.first:010d}-{block.end - 1:010d}"


def block_window(key: str) -> RevisionWindow:
    """The block behind a partition key. Raises ConfigurationError with one line if it is none."""
    found = _BLOCK_KEY.fullmatch(key)
    if found:
        first, last = int(found[1]), int(found[2])
        if first % BLOCK_REVISIONS == 1 and last == first + BLOCK_REVISIONS - 1:
            return RevisionWindow(first, last + 1)
    raise ConfigurationError(
        f"{key!r} is no block of revisions; write first and last of {BLOCK_REVISIONS} in ten digits, "
        f"such as {block_key(block_of(1))}",
        code="unknown_partition",
    )


def known_blocks(instance: dg.DagsterInstance) -> Sequence[str]:
    """The partition keys that the Dagster instance has, oldest first."""
    return instance.get_dynamic_partitions(str(svn_blocks.name))


def ensure_blocks(instance: dg.DagsterInstance, database: Database, head: int) -> int:
    """Append every missing block up to the one that holds ``head``; returns how many were new.

    Two at once are harmless: a range of a dynamic definition follows the order of insertion, so a database
    lock keeps writers apart. A young or empty repository still has the first block.
    """
    if block_key(block_of(head)) in known_blocks(instance):
        return 0
    with database.connection() as conn, conn.transaction():
        planning.lock_blocks(conn)
        known = set(known_blocks(instance))
        wanted = (block_key(block) for block in blocks_of(RevisionWindow(1, max(head, 1) + 1)))
        missing = [key for key in wanted if key not in known]
        for start in range(0, len(missing), _KEYS_PER_STATEMENT):
            instance.add_dynamic_partitions(
                str(svn_blocks.name), missing[start : start + _KEYS_PER_STATEMENT]
            )
    return len(missing)


# Days ---------------------------------------------------------------------------------------------------


def first_day(snapshot: CatalogSnapshot, settings: Settings) -> date:
    """The first day that the GitLab projects of ``snapshot`` have as a partition. It is the day of the oldest
    known fact, and never later than the first day of live syncing.
    """
    live = [
        day_of(repository.created_at - timedelta(days=settings.gitlab.origin_days))
        for repository in snapshot.repositories
        if repository.kind is Kind.GITLAB
    ]
    known = [] if snapshot.history_start is None else [snapshot.history_start]
    return max(min([*live, *known], default=settings.gitlab.history_floor), settings.gitlab.history_floor)


def day_partitions(start: date) -> dg.DailyPartitionsDefinition:
    """Days in UTC from ``start`` to today, which is open: an incremental materializes it again."""
    return dg.DailyPartitionsDefinition(
        start_date=datetime.combine(start, time(), UTC), timezone="UTC", end_offset=1
    )


@dataclass(frozen=True, slots=True)
class Days:
    """Days in UTC from ``first`` to ``today``, both included. The methods are those of :class:`Blocks`."""

    first: date
    today: date

    @classmethod
    def of(cls, definition: dg.DailyPartitionsDefinition, now: datetime | None = None) -> Days:
        """The days of ``definition`` at ``now``, by default at this moment."""
        return cls(day_of(definition.start), day_of(now or clock.now()))

    @property
    def newest(self) -> str:
        return self.today.isoformat()

    @property
    def all(self) -> TimeWindow:
        """From the start of the first day to the end of today."""
        return TimeWindow(day_window(self.first).since, day_window(self.today).until)

    def between(self, first: str, last: str) -> tuple[Window, ...]:
        start, end = parse_day(first), parse_day(last)
        if end < start:
            raise _reversed(first, last)
        if start < self.first:
            raise ConfigurationError(
                f"there is no partition {first}; the first is {self.first}, and what is older is one window "
                "in front of it: scm-sync runner backfill reads it",
                code="unknown_partition",
            )
        if end > self.today:
            raise ConfigurationError(
                f"there is no partition {last}, that day is in the future; the newest is {self.today} (UTC)",
                code="unknown_partition",
            )
        return days_of(TimeWindow(day_window(start).since, day_window(end).until))

    def touched(self, window: Window) -> tuple[TimeWindow, ...]:
        assert isinstance(window, TimeWindow)
        inside = overlap(window, self.all)
        return days_of(inside) if inside is not None else ()

    def carriers(self, windows: Sequence[Window]) -> tuple[str, str]:
        # Dagster writes an event for every (asset, partition) that a run plans, so years would cost
        # thousands. So the newest day carries them, and the first day carries everything before all days.
        inside = [bounds(part) for w in windows if (part := overlap(w, self.all)) is not None]
        day = day_of(max(end for _, end in inside) - _MOMENT) if inside else self.first
        return day.isoformat(), day.isoformat()

    def parse(self, text: str) -> tuple[Window, ...]:
        since, separator, until = text.partition("..")
        try:
            window = TimeWindow(datetime.fromisoformat(since), datetime.fromisoformat(until))
        except ValueError:
            window = None
        if window is None or not separator or window.is_empty:
            raise ConfigurationError(
                f"{text!r} is no window; write since..until in UTC, such as "
                "2024-01-01T00:00:00+00:00..2024-02-01T00:00:00+00:00"
            )
        if window.until > self.all.until:
            raise ConfigurationError(f"the window {text} ends in the future; today is {self.today} (UTC)")
        return (window,)


def day_of(moment: datetime) -> date:
    """The day in UTC that holds ``moment``."""
    return moment.astimezone(UTC).date()


def day_key(day: TimeWindow) -> str:
    """The partition key of a day, such as ``2024-01-31``."""
    return day_of(day.since).isoformat()


def day_window(day: date) -> TimeWindow:
    """The window of a day: from its midnight to the next, in UTC."""
    since = datetime.combine(day, time(), UTC)
    return TimeWindow(since, since + _DAY)


def parse_day(key: str) -> date:
    """The day behind a partition key. Raises ConfigurationError with one line if it is none."""
    try:
        if re.fullmatch(r"\d{4}-\d{2}-\d{2}", key, re.ASCII):
            return date.fromisoformat(key)
    except ValueError:
        pass
    raise ConfigurationError(
        f"{key!r} is no day; write year, month and day, such as 2024-01-31", code="unknown_partition"
    )


def days_of(window: TimeWindow) -> tuple[TimeWindow, ...]:
    """Every day that ``window`` touches, oldest first; none for an empty window. The window must be of years
    that a calendar has a next day for."""
    found: list[TimeWindow] = []
    day = day_window(day_of(window.since))
    while day.since < window.until and window.since < window.until:
        found.append(day)
        day = TimeWindow(day.until, day.until + _DAY)
    return tuple(found)


def is_done(day: TimeWindow, missing: Iterable[Window], today: date) -> bool:
    """True if nothing of ``day`` is ``missing``; of today, nothing before the latest visit: there the end is
    always missing."""
    gaps = [gap for window in missing if isinstance(window, TimeWindow) and (gap := overlap(window, day))]
    if not gaps:
        return True
    return (
        day_of(day.since) == today
        and len(gaps) == 1
        and gaps[0].since > day.since
        and gaps[0].until == day.until
    )


Partitions: TypeAlias = Blocks | Days
"""The partitions of a family at this moment."""


def windows_of(known: Partitions, keys: Iterable[str]) -> list[Window]:
    """The windows of ``keys``, in this order, without keys that have no partition."""
    have = set(known.known) if isinstance(known, Blocks) else None
    found: list[Window] = []
    for key in keys:
        if have is not None:
            if key in have:
                found.append(block_window(key))
            continue
        with suppress(ConfigurationError):
            found += known.between(key, key)
    return found


def windows_text(windows: Iterable[Window]) -> str:
    """Windows as the runner hands them to its run; :meth:`Partitions.parse` reads each of them."""
    return ",".join(
        f"{w.first}-{w.end - 1}" if isinstance(w, RevisionWindow) else str(w) for w in merged(windows)
    )
