"""The request of a Dagster run: its tags, which are checked before anything is written.

Belongs here: the names of our run tags, and the pure translation of tags into an :class:`RunSpec`. Dagster
does not check the partitions of ``dagster job execute``: an unknown one runs, a reversed range runs and
succeeds without doing anything. So everything is checked here."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from sync_pipeline.core import catalog
from sync_pipeline.core.errors import ConfigurationError
from sync_pipeline.core.model import Mode, Repository, Trigger, Window
from sync_pipeline.core.safe_text import visible
from sync_pipeline.core.windows import bounds
from sync_pipeline.orchestration.partitions import Partitions, windows_text

MODE_TAG = "scm/mode"
REASON_TAG = "scm/reason"
REPOSITORY_TAG = "repo"
"""Path of the project, or SVN URL, where the run is for one repository. The tag is short because the list of
runs cuts off long ones."""

# The list of runs leaves out tags that begin so; the page of a run shows them.
TRIGGER_TAG = "dagster/scm_trigger"
ACTOR_TAG = "dagster/scm_actor"
WINDOWS_TAG = "dagster/scm_windows"
"""Windows whose edges are not those of partitions, separated by commas: ``first-last`` in revisions,
``since..until`` in ISO form for time."""
DISPATCH_TAG = "dagster/scm_dispatch"
"""The name under which a plan dispatched the jobs of the run."""
PROCESS_TAG = "dagster/scm_process"
UPDATE_WATERMARK_TAG = "dagster/scm_update_watermark"

# How a person writes them, and how 0.6 and earlier did.
_WRITTEN = {
    tag: tag.replace("dagster/scm_", "scm/")
    for tag in (TRIGGER_TAG, ACTOR_TAG, WINDOWS_TAG, PROCESS_TAG, UPDATE_WATERMARK_TAG)
}

PARTITION_TAG = "dagster/partition"
RANGE_START_TAG = "dagster/asset_partition_range_start"
RANGE_END_TAG = "dagster/asset_partition_range_end"
PRIORITY_TAG = "dagster/priority"
_BACKFILL_TAG = "dagster/backfill"
_UI_TAG = "dagster/from_ui"
_SENSOR_TAG = "dagster/sensor_name"
_USER_TAG = "user"

_MAX_TAG_LENGTH = 255

POOLS_VARIABLE = "SCM_DAGSTER_POOLS"
"""Set in the processes of ``scm-sync up``: runs from the queue take a slot of their instance's pool. A run
that a person starts directly takes none. A killed process never frees its slot, and after a few of them no
run could start.
"""


@dataclass(frozen=True, slots=True)
class RunSpec:
    """The work of a run for each of its repositories.

    ``windows`` is empty for an incremental, whose partition only carries it. ``exact``: the windows were
    named one by one, they are not the partitions. ``from_ledger``: do the waiting jobs inside ``windows``,
    make no new ones. ``dispatch`` names the jobs that a plan dispatched with the run.
    """

    mode: Mode
    trigger: Trigger
    actor: str
    reason: str
    windows: tuple[Window, ...]
    exact: bool = False
    update_watermark: bool = False
    dispatch: str = ""

    @property
    def from_ledger(self) -> bool:
        return self.trigger is Trigger.SENSOR and self.mode is not Mode.INCREMENTAL


def tag_of(tags: Mapping[str, str], name: str) -> str:
    """The value of one of our tags, by either of its names; empty for none."""
    return tags.get(name) or tags.get(_WRITTEN.get(name, name), "")


def names_of(name: str) -> tuple[str, str]:
    """The names of a tag that the list of runs leaves out: ours, and that of 0.6 and of people."""
    return name, _WRITTEN[name]


def repository_tag(repositories: Collection[Repository]) -> dict[str, str]:
    """The tag that names the repository of a run, where it is for one."""
    names = {catalog.path_of(repository) for repository in repositories}
    return {REPOSITORY_TAG: visible(names.pop())[:_MAX_TAG_LENGTH]} if len(names) == 1 else {}


def run_tags(
    mode: Mode, trigger: Trigger, actor: str, reason: str, repositories: Collection[Repository]
) -> dict[str, str]:
    """The tags of a run that we start, without its windows; :func:`read_run_spec` reads them."""
    return {
        MODE_TAG: str(mode),
        TRIGGER_TAG: str(trigger),
        ACTOR_TAG: actor,
        REASON_TAG: reason,
        **repository_tag(repositories),
    }


def window_tags(known: Partitions, windows: Sequence[Window], *, exact: bool) -> dict[str, str]:
    """The tags of a run of these windows; ``exact`` where their edges need not be those of partitions."""
    tags = dict(zip((RANGE_START_TAG, RANGE_END_TAG), known.carriers(windows), strict=True))
    return {**tags, WINDOWS_TAG: windows_text(windows)} if exact else tags


def read_run_spec(tags: Mapping[str, str], known: Partitions) -> RunSpec:
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
    return RunSpec(
        mode=mode,
        trigger=trigger,
        actor=tag_of(tags, ACTOR_TAG) or tags.get(_USER_TAG) or str(trigger),
        reason=tags.get(REASON_TAG) or _reason(tags, trigger),
        windows=windows,
        exact=exact,
        update_watermark=tag_of(tags, UPDATE_WATERMARK_TAG) == "true",
        dispatch=tags.get(DISPATCH_TAG, ""),
    )


def _trigger(tags: Mapping[str, str]) -> Trigger:
    if name := tag_of(tags, TRIGGER_TAG):
        try:
            return Trigger(name)
        except ValueError:
            raise ConfigurationError(
                f"the tag {_WRITTEN[TRIGGER_TAG]} has the unknown value {name!r}; "
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
    for text in filter(None, tag_of(tags, WINDOWS_TAG).split(",")):
        try:
            found += known.parse(text.strip())
        except ConfigurationError as error:
            raise ConfigurationError(f"the tag {_WRITTEN[WINDOWS_TAG]}: {error}") from None
    return tuple(sorted(found, key=bounds))
