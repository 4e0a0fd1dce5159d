"""What a Dagster run asks for: its tags, read and checked before anything is touched.

Belongs here: the names of our run tags, and the pure translation of tags into an :class:`Order`. Dagster does
not check the partitions of ``dagster job execute``: an unknown one runs, a reversed range runs and succeeds
without doing anything. So everything is checked here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sync_pipeline.errors import ConfigurationError
from sync_pipeline.model import Mode, Trigger, Window
from sync_pipeline.orchestration.partitions import Partitions
from sync_pipeline.policy.windows import bounds

MODE_TAG = "scm/mode"
TRIGGER_TAG = "scm/trigger"
ACTOR_TAG = "scm/actor"
REASON_TAG = "scm/reason"
WINDOWS_TAG = "scm/windows"
"""Windows whose edges are not those of partitions, separated by commas: ``first-last`` in revisions,
``since..until`` in ISO form for time."""
PROCESS_TAG = "scm/process"
UPDATE_WATERMARK_TAG = "scm/update_watermark"

PARTITION_TAG = "dagster/partition"
RANGE_START_TAG = "dagster/asset_partition_range_start"
RANGE_END_TAG = "dagster/asset_partition_range_end"
PRIORITY_TAG = "dagster/priority"
_BACKFILL_TAG = "dagster/backfill"
_UI_TAG = "dagster/from_ui"
_SENSOR_TAG = "dagster/sensor_name"
_USER_TAG = "user"

POOLS_VARIABLE = "SCM_DAGSTER_POOLS"
"""Set in the processes of ``scm-sync up``: runs from the queue take a slot of their instance's pool. A run
that somebody starts directly takes none: if such a process is killed, its slot is never given back, and after
a few nobody could start anything."""


@dataclass(frozen=True, slots=True)
class Order:
    """What to do for every repository of a run.

    ``windows`` is empty for an incremental, whose partition only carries it. ``exact``: the windows were
    named one by one, they are not the partitions.
    ``from_ledger``: do the waiting jobs inside ``windows``, make no new ones.
    """

    mode: Mode
    trigger: Trigger
    actor: str
    reason: str
    windows: tuple[Window, ...]
    exact: bool = False
    update_watermark: bool = False

    @property
    def from_ledger(self) -> bool:
        return self.trigger is Trigger.SENSOR and self.mode is not Mode.INCREMENTAL


def read_order(tags: Mapping[str, str], known: Partitions) -> Order:
    """The order in the tags of a run; ``known`` are the partitions that there are.

    Raises ConfigurationError with one line if a partition is unknown, a range is reversed or cut short, or a
    tag has an unknown value.
    """
    trigger = _trigger(tags)
    partitions = _partitions(tags, known)
    windows = _windows(tags, known)
    exact = bool(windows)
    mode = _mode(tags, Mode.BACKFILL if partitions or windows else Mode.INCREMENTAL)
    if mode is Mode.INCREMENTAL:
        windows = ()
    elif not windows:
        windows = partitions
    if mode is not Mode.INCREMENTAL and not windows:
        raise ConfigurationError(
            f"a {mode} needs a partition; add the tag {PARTITION_TAG}, "
            f"or {RANGE_START_TAG} and {RANGE_END_TAG}"
        )
    return Order(
        mode=mode,
        trigger=trigger,
        actor=tags.get(ACTOR_TAG) or tags.get(_USER_TAG) or str(trigger),
        reason=tags.get(REASON_TAG) or _reason(tags, trigger),
        windows=windows,
        exact=exact,
        update_watermark=tags.get(UPDATE_WATERMARK_TAG) == "true",
    )


def _trigger(tags: Mapping[str, str]) -> Trigger:
    if TRIGGER_TAG in tags:
        try:
            return Trigger(tags[TRIGGER_TAG])
        except ValueError:
            raise ConfigurationError(
                f"the tag {TRIGGER_TAG} has the unknown value {tags[TRIGGER_TAG]!r}; "
                f"use one of: {', '.join(Trigger)}"
            ) from None
    if _SENSOR_TAG in tags:
        return Trigger.SENSOR
    return Trigger.UI if _BACKFILL_TAG in tags or _UI_TAG in tags else Trigger.CI


def _reason(tags: Mapping[str, str], trigger: Trigger) -> str:
    if _BACKFILL_TAG in tags:
        return f"backfill {tags[_BACKFILL_TAG]}"
    return {Trigger.UI: "materialized in the UI", Trigger.CI: "dagster job execute"}.get(
        trigger, str(trigger)
    )


def _mode(tags: Mapping[str, str], default: Mode) -> Mode:
    allowed = (Mode.INCREMENTAL, Mode.BACKFILL, Mode.REPAIR)
    name = tags.get(MODE_TAG, str(default))
    if name not in allowed:
        raise ConfigurationError(
            f"the tag {MODE_TAG} has the unknown value {name!r}; use one of: {', '.join(allowed)}"
        )
    return Mode(name)


def _partitions(tags: Mapping[str, str], known: Partitions) -> tuple[Window, ...]:
    start, end = tags.get(RANGE_START_TAG), tags.get(RANGE_END_TAG)
    single = tags.get(PARTITION_TAG)
    if (start is None) != (end is None):
        raise ConfigurationError(
            f"a range of partitions needs both tags, {RANGE_START_TAG} and {RANGE_END_TAG}"
        )
    if start is None or end is None:
        if single is None:
            return ()
        start = end = single
    return known.between(start, end)


def _windows(tags: Mapping[str, str], known: Partitions) -> tuple[Window, ...]:
    found: list[Window] = []
    for text in filter(None, tags.get(WINDOWS_TAG, "").split(",")):
        try:
            found += known.parse(text.strip())
        except ConfigurationError as error:
            raise ConfigurationError(f"the tag {WINDOWS_TAG}: {error}") from None
    return tuple(sorted(found, key=bounds))
