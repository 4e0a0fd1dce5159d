"""From the ledger to a plan, and from a plan to runs.

Belongs here: the glue between the snapshot queries and the pure plan, and the grouping of decisions into
starts of Dagster runs. A run carries many repositories, because starting one costs seconds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sync_pipeline.catalog import BLOCK_REVISIONS, block_of
from sync_pipeline.model import Access, JobStatus, JobType, Lifecycle, Mode, RevisionWindow
from sync_pipeline.policy.planning import Decision, InFlight, Job, Limits, Snapshot, Unit, plan
from sync_pipeline.settings import Settings
from sync_pipeline.store import planning as store
from sync_pipeline.store.database import Connection

_REPROBE = timedelta(hours=1)
# A planned range has as many blocks as a run of a backfill from the UI.
_BLOCKS_PER_RUN = 10


@dataclass(frozen=True, slots=True)
class Start:
    """One Dagster run to start. ``blocks`` is None for an incremental."""

    job_type: JobType
    instance_slug: str
    mode: Mode
    blocks: RevisionWindow | None
    decisions: tuple[Decision, ...]

    @property
    def repo_ids(self) -> tuple[int, ...]:
        """The repositories that the run carries."""
        return tuple(sorted({d.repo_id for d in self.decisions}))

    def run_key(self, moment: datetime, length: float) -> str:
        """Name of this start. Dagster remembers it for ever, also of a run that failed: so it holds the
        attempt, and the current ``length`` seconds for a run that died before it claimed anything."""
        unit = f"{self.job_type} {self.instance_slug} {self.mode} {self.blocks}"
        work = sorted(f"{d.repo_id} {d.window} {d.job_id} {d.attempts}" for d in self.decisions)
        text = "\n".join([unit, str(int(moment.timestamp() // length)), *work])
        return hashlib.sha256(text.encode()).hexdigest()[:32]


def read_plan(
    conn: Connection, settings: Settings, in_flight: Sequence[InFlight]
) -> tuple[list[Decision], datetime]:
    """What is due by the database's clock, and that moment. Reads; changes nothing."""
    rows = store.snapshot(conn)
    units = [
        Unit(
            **row
            | {
                "job_type": JobType(row["job_type"]),
                "lifecycle": Lifecycle(row["lifecycle"]),
                "access": Access(row["access"]),
            }
        )
        for row in rows.units
    ]
    jobs = [
        Job(
            **row
            | {
                "job_type": JobType(row["job_type"]),
                "mode": Mode(row["mode"]),
                "status": JobStatus(row["status"]),
            }
        )
        for row in rows.jobs
    ]
    limits = Limits(
        sync_interval=timedelta(seconds=settings.sync_interval),
        # Fresh hints that show nothing new are no proof, so a visit proves it well before we look stale.
        quiet_interval=timedelta(seconds=max(settings.sync_interval, settings.stale_after / 2)),
        reprobe_interval=_REPROBE,
        max_jobs=settings.max_jobs_per_tick,
    )
    return plan(Snapshot(units, jobs, in_flight, limits), rows.now), rows.now


def group(decisions: Iterable[Decision]) -> list[Start]:
    """The runs that do what was chosen, in the order of their most urgent job."""
    groups: dict[tuple[JobType, str, Mode, int | None], list[Decision]] = {}
    for decision in decisions:
        if decision.chosen:
            groups.setdefault(_group_of(decision), []).append(decision)
    return [
        Start(job_type, instance_slug, mode, _range(members), tuple(members))
        for (job_type, instance_slug, mode, _), members in groups.items()
    ]


def _group_of(decision: Decision) -> tuple[JobType, str, Mode, int | None]:
    window = decision.window
    part = None
    if isinstance(window, RevisionWindow):
        part = block_of(window.first).first // (BLOCK_REVISIONS * _BLOCKS_PER_RUN)
    return decision.job_type, decision.instance_slug, decision.mode, part


def _range(members: Sequence[Decision]) -> RevisionWindow | None:
    windows = [d.window for d in members if isinstance(d.window, RevisionWindow)]
    if not windows:
        return None
    return RevisionWindow(
        min(block_of(w.first).first for w in windows), max(block_of(w.end - 1).end for w in windows)
    )
