"""Tags of a run are checked before anything is touched: Dagster's command line checks none of them."""

from __future__ import annotations

from datetime import UTC, date, datetime

import pytest

from sync_pipeline.core.errors import ConfigurationError
from sync_pipeline.core.model import BEGINNING, Mode, RevisionWindow, TimeWindow, Trigger
from sync_pipeline.orchestration import run_spec
from sync_pipeline.orchestration.partitions import (
    Blocks,
    Days,
    block_key,
    block_window,
    day_window,
    windows_text,
)
from sync_pipeline.orchestration.run_spec import read_run_spec

KEYS = [f"{first:010d}-{first + 999:010d}" for first in range(1, 5000, 1000)]
BLOCKS = Blocks(KEYS)
DAYS = Days(date(2024, 1, 1), date(2024, 3, 10))


def day(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def test_no_partition_is_an_incremental_of_what_is_new() -> None:
    found = read_run_spec({}, BLOCKS)
    assert (found.mode, found.trigger, found.windows) == (Mode.INCREMENTAL, Trigger.CI, ())


def test_one_partition_is_a_backfill_of_its_window() -> None:
    found = read_run_spec({run_spec.PARTITION_TAG: KEYS[1]}, BLOCKS)
    assert (found.mode, found.windows) == (Mode.BACKFILL, (RevisionWindow(1001, 2001),))


def test_a_range_is_every_block_in_it() -> None:
    found = read_run_spec({run_spec.RANGE_START_TAG: KEYS[1], run_spec.RANGE_END_TAG: KEYS[3]}, BLOCKS)
    assert found.windows == tuple(map(block_window, KEYS[1:4]))


def test_an_incremental_only_rides_on_its_partition() -> None:
    found = read_run_spec({run_spec.MODE_TAG: "incremental", run_spec.PARTITION_TAG: KEYS[-1]}, BLOCKS)
    assert (found.mode, found.windows) == (Mode.INCREMENTAL, ())


@pytest.mark.parametrize(
    ("tags", "trigger"),
    [
        ({"dagster/backfill": "abc"}, Trigger.UI),
        ({"dagster/from_ui": "true"}, Trigger.UI),
        ({"dagster/sensor_name": "scheduler"}, Trigger.SENSOR),
        ({run_spec.TRIGGER_TAG: "runner", "dagster/backfill": "abc"}, Trigger.RUNNER),
        ({"scm/trigger": "runner", "dagster/backfill": "abc"}, Trigger.RUNNER),
        ({}, Trigger.CI),
    ],
)
def test_who_started_a_run_is_read_from_its_tags(tags: dict[str, str], trigger: Trigger) -> None:
    assert read_run_spec(tags, BLOCKS).trigger is trigger


def test_tags_are_read_by_the_names_that_people_and_earlier_versions_write() -> None:
    tags = {
        run_spec.RANGE_START_TAG: KEYS[0],
        run_spec.RANGE_END_TAG: KEYS[1],
        "scm/windows": "5-6",
        "scm/actor": "jo",
        "scm/update_watermark": "true",
    }
    found = read_run_spec(tags, BLOCKS)
    assert (found.windows, found.actor, found.update_watermark) == ((RevisionWindow(5, 7),), "jo", True)
    with pytest.raises(ConfigurationError, match="the tag scm/trigger has the unknown value 'x'"):
        read_run_spec({"scm/trigger": "x"}, BLOCKS)


def test_windows_of_the_runner_are_cut_at_the_blocks() -> None:
    tags = {
        run_spec.RANGE_START_TAG: KEYS[0],
        run_spec.RANGE_END_TAG: KEYS[1],
        run_spec.WINDOWS_TAG: "5-1300",
    }
    assert read_run_spec(tags, BLOCKS).windows == (RevisionWindow(5, 1001), RevisionWindow(1001, 1301))


@pytest.mark.parametrize(
    ("tags", "line"),
    [
        ({run_spec.PARTITION_TAG: "0000009001-0000010000"}, "the newest is 0000004001-0000005000"),
        ({run_spec.PARTITION_TAG: "2024-01-01"}, "is no block of revisions"),
        ({run_spec.PARTITION_TAG: "0000000002-0000001001"}, "is no block of revisions"),
        ({run_spec.RANGE_START_TAG: KEYS[2], run_spec.RANGE_END_TAG: KEYS[1]}, "ends before it starts"),
        ({run_spec.RANGE_START_TAG: KEYS[2]}, "needs both tags"),
        (
            {run_spec.RANGE_START_TAG: KEYS[0], run_spec.RANGE_END_TAG: "0000005001-0000006000"},
            "no partition",
        ),
        ({run_spec.MODE_TAG: "backfill"}, "needs a partition"),
        ({run_spec.MODE_TAG: "sideways"}, "unknown value 'sideways'"),
        ({run_spec.TRIGGER_TAG: "moon"}, "unknown value 'moon'"),
        ({run_spec.WINDOWS_TAG: "9-5"}, "write first-last"),
    ],
)
def test_a_wrong_tag_is_refused_in_one_line(tags: dict[str, str], line: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        read_run_spec(tags, BLOCKS)
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)


def test_an_empty_instance_says_what_to_do() -> None:
    with pytest.raises(ConfigurationError, match="add a repository first"):
        read_run_spec({run_spec.PARTITION_TAG: KEYS[0]}, Blocks([]))


def test_keys_and_windows_translate_both_ways() -> None:
    assert [block_key(block_window(key)) for key in KEYS] == KEYS


# Days -----------------------------------------------------------------------------------------------------


def test_a_range_of_days_is_every_day_in_it_and_today_exists() -> None:
    found = read_run_spec(
        {run_spec.RANGE_START_TAG: "2024-02-28", run_spec.RANGE_END_TAG: "2024-03-01"}, DAYS
    )
    assert found.windows == tuple(
        day_window(date(2024, month, number)) for month, number in [(2, 28), (2, 29), (3, 1)]
    )
    assert (found.mode, found.exact) == (Mode.BACKFILL, False)
    assert read_run_spec({run_spec.PARTITION_TAG: "2024-03-10"}, DAYS).windows == (
        TimeWindow(day("2024-03-10"), day("2024-03-11")),
    )


def test_exact_windows_of_time_are_jobs_as_they_are_also_in_front_of_all_days() -> None:
    windows = [
        TimeWindow(BEGINNING, day("2024-01-01")),
        TimeWindow(day("2024-02-01T01:00"), day("2024-02-01T02:30")),
        TimeWindow(day("2024-02-01T02:30"), day("2024-02-03")),
    ]
    tags = {run_spec.WINDOWS_TAG: windows_text(windows), run_spec.MODE_TAG: "backfill"}
    start, end = DAYS.carriers(windows)
    found = read_run_spec(tags | {run_spec.RANGE_START_TAG: start, run_spec.RANGE_END_TAG: end}, DAYS)
    assert found.windows == (windows[0], TimeWindow(day("2024-02-01T01:00"), day("2024-02-03")))
    assert found.exact
    assert (start, end) == ("2024-02-02", "2024-02-02"), "one day carries them, however many they are"
    assert DAYS.carriers(windows[:1]) == ("2024-01-01", "2024-01-01")


@pytest.mark.parametrize(
    ("tags", "line"),
    [
        ({run_spec.PARTITION_TAG: "2024-03-11"}, "that day is in the future; the newest is 2024-03-10 (UTC)"),
        ({run_spec.PARTITION_TAG: "2023-12-31"}, "there is no partition 2023-12-31; the first is 2024-01-01"),
        ({run_spec.PARTITION_TAG: "2024-02-30"}, "is no day; write year, month and day"),
        ({run_spec.PARTITION_TAG: "20240201"}, "is no day"),
        ({run_spec.PARTITION_TAG: KEYS[0]}, "is no day"),
        (
            {run_spec.RANGE_START_TAG: "2024-02-02", run_spec.RANGE_END_TAG: "2024-02-01"},
            "ends before it starts",
        ),
        ({run_spec.WINDOWS_TAG: "5-9"}, "is no window; write since..until in UTC"),
        ({run_spec.WINDOWS_TAG: "2024-01-01..2024-02-01"}, "is no window"),
        ({run_spec.WINDOWS_TAG: "2024-02-01T00:00Z..2024-01-01T00:00Z"}, "is no window"),
        ({run_spec.WINDOWS_TAG: "2024-02-01T00:00Z..2024-03-12T00:00Z"}, "ends in the future"),
    ],
)
def test_a_wrong_tag_of_time_is_refused_in_one_line(tags: dict[str, str], line: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        read_run_spec(tags, DAYS)
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)
