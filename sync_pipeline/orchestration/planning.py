"""From a plan to runs.

Belongs here: the grouping of decisions into starts of Dagster runs. A run carries many repositories, because
starting one costs seconds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from sync_pipeline.catalog import BLOCK_REVISIONS, block_of
from sync_pipeline.job_types import FAMILY_OF, Family
from sync_pipeline.model import JobType, Mode, RevisionWindow, Window
from sync_pipeline.policy.snapshot import Decision
from sync_pipeline.policy.windows import hull

# A planned range has as many blocks as a run of a backfill from the UI.
_BLOCKS_PER_RUN = 10


@dataclass(frozen=True, slots=True)
class Start:
    """One Dagster run to start. ``window`` holds the windows of all its jobs: whole blocks, or just the one
    window of time that they have in common; None for an incremental."""

    family: Family
    instance_slug: str
    mode: Mode
    window: Window | None
    decisions: tuple[Decision, ...]

    @property
    def assets(self) -> tuple[tuple[int, JobType], ...]:
        """The (repository, job type)s that the run carries."""
        return tuple(sorted({(d.repo_id, d.job_type) for d in self.decisions}))

    def run_key(self, moment: datetime, length: float) -> str:
        """Name of this start. Dagster remembers it for ever, also of a run that failed: so it holds the
        attempt, and the current ``length`` seconds for a run that died before it claimed anything."""
        asset = f"{self.family} {self.instance_slug} {self.mode} {self.window}"
        work = sorted(f"{d.repo_id} {d.job_type} {d.window} {d.job_id} {d.attempts}" for d in self.decisions)
        text = "\n".join([asset, str(int(moment.timestamp() // length)), *work])
        return hashlib.sha256(text.encode()).hexdigest()[:32]


def group(decisions: Iterable[Decision]) -> list[Start]:
    """The runs that do what was chosen, in the order of their most urgent job."""
    groups: dict[tuple[Family, str, Mode, object], list[Decision]] = {}
    for decision in decisions:
        if decision.chosen:
            key = FAMILY_OF[decision.job_type], decision.instance_slug, decision.mode, _part(decision.window)
            groups.setdefault(key, []).append(decision)
    return [
        Start(family, instance_slug, mode, _range(members), tuple(members))
        for (family, instance_slug, mode, _), members in groups.items()
    ]


def _part(window: Window | None) -> object:
    """What the jobs of a run have in common: a range of so many blocks, or the same window of time."""
    if isinstance(window, RevisionWindow):
        return block_of(window.first).first // (BLOCK_REVISIONS * _BLOCKS_PER_RUN)
    return window


def _range(members: Sequence[Decision]) -> Window | None:
    windows = [d.window for d in members if d.window is not None]
    blocks = [
        RevisionWindow(block_of(w.first).first, block_of(w.end - 1).end)
        for w in windows
        if isinstance(w, RevisionWindow)
    ]
    return hull(blocks) or hull(windows)
