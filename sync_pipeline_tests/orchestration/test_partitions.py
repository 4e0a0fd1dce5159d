"""Blocks are appended in order, once, whoever asks; days follow from a start and the clock."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta

import dagster as dg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sync_pipeline.core import clock
from sync_pipeline.core.model import BEGINNING, TimeWindow
from sync_pipeline.database.pool import Database
from sync_pipeline.orchestration.partitions import (
    Days,
    day_key,
    day_partitions,
    day_window,
    days_of,
    ensure_blocks,
    is_done,
    known_blocks,
)
from sync_pipeline.settings import Settings


@pytest.mark.parametrize(("head", "blocks"), [(0, 1), (1, 1), (1000, 1), (1001, 2), (20_000, 20)])
def test_every_block_up_to_head_exists(database: Database, head: int, blocks: int) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        assert ensure_blocks(instance, database, head) == blocks
        assert ensure_blocks(instance, database, head) == 0
        keys = known_blocks(instance)
        assert list(keys) == sorted(keys)
        assert len(keys) == blocks


def test_an_older_head_deletes_nothing(database: Database) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        ensure_blocks(instance, database, 5000)
        ensure_blocks(instance, database, 10)
        assert len(known_blocks(instance)) == 5


def test_many_at_once_leave_the_keys_in_order_and_once(database: Database) -> None:
    with dg.DagsterInstance.ephemeral() as instance, ThreadPoolExecutor(6) as threads:
        heads = [n * 700 for n in range(1, 30)]
        list(threads.map(lambda head: ensure_blocks(instance, database, head), heads))
        keys = list(known_blocks(instance))
        assert keys == sorted(set(keys))
        assert len(keys) == -(-max(heads) // 1000)


# Days -----------------------------------------------------------------------------------------------------

NOON = datetime(2024, 2, 29, 12, tzinfo=UTC)
LEAP = day_window(date(2024, 2, 29))


def test_our_days_are_those_of_dagster() -> None:
    definition = day_partitions(date(2023, 12, 30))
    now = datetime.now(UTC)
    days = Days.of(definition, now)
    keys = definition.get_partition_keys(current_time=now)
    assert [day_key(day) for day in days.touched(TimeWindow(BEGINNING, now))] == list(keys)
    assert days.newest == keys[-1] == now.date().isoformat()
    window = definition.time_window_for_partition_key("2024-02-29")
    assert (window.start, window.end) == (LEAP.since, LEAP.until)


@pytest.mark.parametrize(
    ("moment", "today"),
    [("2026-11-29T23:59:59.900Z", date(2026, 11, 29)), ("2026-11-30T00:00:00.100Z", date(2026, 11, 30))],
)
def test_today_changes_at_midnight_utc(monkeypatch: pytest.MonkeyPatch, moment: str, today: date) -> None:
    monkeypatch.setattr(clock, "now", lambda: datetime.fromisoformat(moment))
    days = Days.of(day_partitions(date(2026, 11, 1)))
    assert (days.today, days.newest) == (today, today.isoformat())
    assert Settings(history_floor=today).gitlab.history_floor == today
    with pytest.raises(ValueError, match="to today"):
        Settings(history_floor=today + timedelta(days=1))


@given(st.timedeltas(timedelta(0), timedelta(9999)), st.timedeltas(timedelta(0), timedelta(20)))
def test_days_of_a_window_hold_it_and_nothing_beside_it(start: timedelta, length: timedelta) -> None:
    window = TimeWindow(LEAP.since + start, LEAP.since + start + length)
    found = days_of(window)
    assert all(one.until == other.since for one, other in itertools.pairwise(found))
    assert all(day.since < window.until and window.since < day.until for day in found)
    if not window.is_empty:
        assert found[0].since <= window.since
        assert window.until <= found[-1].until


@pytest.mark.parametrize(
    ("missing", "today", "done"),
    [
        ((), date(2024, 3, 1), True),
        ((TimeWindow(BEGINNING, LEAP.since), TimeWindow(LEAP.until, LEAP.until)), date(2024, 3, 1), True),
        ((TimeWindow(NOON, LEAP.until),), date(2024, 3, 1), False),
        # Of today the end is always missing, the beginning and the middle are not.
        ((TimeWindow(NOON, LEAP.until),), date(2024, 2, 29), True),
        ((TimeWindow(NOON, LEAP.until + timedelta(days=9)),), date(2024, 2, 29), True),
        ((TimeWindow(LEAP.since, LEAP.until),), date(2024, 2, 29), False),
        ((TimeWindow(NOON, NOON + timedelta(hours=1)),), date(2024, 2, 29), False),
    ],
)
def test_a_day_is_done_when_nothing_is_missing_up_to_now(
    missing: tuple[TimeWindow, ...], today: date, done: bool
) -> None:
    assert is_done(LEAP, missing, today) is done
