"""Tags of a run are checked before anything is touched: Dagster's command line checks none of them."""

from __future__ import annotations

import pytest

from sync_pipeline.errors import ConfigurationError
from sync_pipeline.model import Mode, RevisionWindow, Trigger
from sync_pipeline.orchestration import order
from sync_pipeline.orchestration.order import read_order
from sync_pipeline.orchestration.partitions import Blocks, block_key, block_window

KEYS = [f"{first:010d}-{first + 999:010d}" for first in range(1, 5000, 1000)]


def test_no_partition_is_an_incremental_of_what_is_new() -> None:
    found = read_order({}, Blocks(KEYS))
    assert (found.mode, found.trigger, found.windows) == (Mode.INCREMENTAL, Trigger.CI, ())


def test_one_partition_is_a_backfill_of_its_window() -> None:
    found = read_order({order.PARTITION_TAG: KEYS[1]}, Blocks(KEYS))
    assert (found.mode, found.windows) == (Mode.BACKFILL, (RevisionWindow(1001, 2001),))


def test_a_range_is_every_block_in_it() -> None:
    found = read_order({order.RANGE_START_TAG: KEYS[1], order.RANGE_END_TAG: KEYS[3]}, Blocks(KEYS))
    assert [block_key(window) for window in found.windows] == KEYS[1:4]


def test_an_incremental_only_rides_on_its_partition() -> None:
    found = read_order({order.MODE_TAG: "incremental", order.PARTITION_TAG: KEYS[-1]}, Blocks(KEYS))
    assert (found.mode, found.windows) == (Mode.INCREMENTAL, ())
    assert [block_key(block) for block in found.partitions] == KEYS[-1:]


@pytest.mark.parametrize(
    ("tags", "trigger"),
    [
        ({"dagster/backfill": "abc"}, Trigger.UI),
        ({"dagster/from_ui": "true"}, Trigger.UI),
        ({"dagster/sensor_name": "scheduler"}, Trigger.SENSOR),
        ({order.TRIGGER_TAG: "runner", "dagster/backfill": "abc"}, Trigger.RUNNER),
        ({}, Trigger.CI),
    ],
)
def test_who_started_a_run_is_read_from_its_tags(tags: dict[str, str], trigger: Trigger) -> None:
    assert read_order(tags, Blocks(KEYS)).trigger is trigger


def test_windows_of_the_runner_are_cut_at_the_blocks() -> None:
    tags = {order.RANGE_START_TAG: KEYS[0], order.RANGE_END_TAG: KEYS[1], order.WINDOWS_TAG: "5-1300"}
    assert read_order(tags, Blocks(KEYS)).windows == (RevisionWindow(5, 1001), RevisionWindow(1001, 1301))


@pytest.mark.parametrize(
    ("tags", "line"),
    [
        ({order.PARTITION_TAG: "0000009001-0000010000"}, "the newest is 0000004001-0000005000"),
        ({order.PARTITION_TAG: "2024-01-01"}, "is no block of revisions"),
        ({order.PARTITION_TAG: "0000000002-0000001001"}, "is no block of revisions"),
        ({order.RANGE_START_TAG: KEYS[2], order.RANGE_END_TAG: KEYS[1]}, "ends before it starts"),
        ({order.RANGE_START_TAG: KEYS[2]}, "needs both tags"),
        ({order.RANGE_START_TAG: KEYS[0], order.RANGE_END_TAG: "0000005001-0000006000"}, "no partition"),
        ({order.MODE_TAG: "backfill"}, "needs a partition"),
        ({order.MODE_TAG: "sideways"}, "unknown value 'sideways'"),
        ({order.TRIGGER_TAG: "moon"}, "unknown value 'moon'"),
        ({order.WINDOWS_TAG: "9-5"}, "write first-last"),
    ],
)
def test_a_wrong_tag_is_refused_in_one_line(tags: dict[str, str], line: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        read_order(tags, Blocks(KEYS))
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)


def test_an_empty_instance_says_what_to_do() -> None:
    with pytest.raises(ConfigurationError, match="add a repository first"):
        read_order({order.PARTITION_TAG: KEYS[0]}, Blocks([]))


def test_keys_and_windows_translate_both_ways() -> None:
    assert [block_key(block_window(key)) for key in KEYS] == KEYS
