"""Queueing what is read again by itself: the last days every night, the recent window after an outage.

Belongs here: from the ledger to the decision and back to the ledger, for the schedules of Dagster and for
``scm-sync admin``. Which windows these are is decided in :mod:`sync_pipeline.policy.rereading`; a scheduler
starts the jobs as it starts all others. Only what the pool of the settings takes is queued.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from sync_pipeline.errors import LeaseHeld
from sync_pipeline.model import JobRequest, JobType, Kind, Mode, Trigger, Window
from sync_pipeline.operations.scheduling import serves
from sync_pipeline.operations.texts import counted
from sync_pipeline.policy import rereading as policy
from sync_pipeline.policy.rereading import FULL_SYNC_PRIORITY, REPAIR_PRIORITY, Unit
from sync_pipeline.settings import Settings
from sync_pipeline.store import jobs, migrations
from sync_pipeline.store import rereading as store
from sync_pipeline.store.database import Database, database_time
from sync_pipeline.sync import configuration


class Rereading(StrEnum):
    """The kinds; each is the name of its schedule and the reason of its jobs."""

    FULL_SYNC = "full_sync"
    REPAIR_RECENT = "repair_recent"


class LeftOut(StrEnum):
    """Why a (repository, job type) has no window now, although it could be read."""

    STILL_QUEUED = "still_queued"
    DONE = "done"
    NOTHING_COMPLETE = "nothing_complete"


_SAID = {
    LeftOut.STILL_QUEUED: "with jobs of an earlier set still queued (scm-sync admin jobs list)",
    LeftOut.DONE: "that had theirs already",
    LeftOut.NOTHING_COMPLETE: "with nothing complete yet",
}


@dataclass(frozen=True, slots=True)
class Piece:
    """One job: a window of one (repository, job type)."""

    spec: str
    repo_id: int
    job_type: JobType
    window: Window


@dataclass
class Queued:
    """What was queued, or without ``execute`` would be. ``skipped`` says why nothing was looked at, None
    where it was; ``busy`` are windows of which a job that does other work is under way. ``left_out`` counts
    each (repository, job type) without a window by why it has none. ``now`` is the database's clock."""

    what: Rereading
    execute: bool
    now: datetime
    pieces: list[Piece] = field(default_factory=list)
    busy: list[Piece] = field(default_factory=list)
    left_out: Counter[LeftOut] = field(default_factory=Counter)
    skipped: str | None = None

    def said(self) -> str:
        """It in one line."""
        if self.skipped is not None:
            return self.skipped
        units = len({(piece.repo_id, piece.job_type) for piece in self.pieces})
        done = "queued" if self.execute else "would be queued"
        said = "nothing is to be read again"
        if self.pieces:
            said = f"{counted(len(self.pieces), 'job')} {done} for {units} (repository, job type)"
        why = ", ".join(f"{self.left_out[one]:,} {_SAID[one]}" for one in LeftOut if self.left_out[one])
        return f"{said}; (repository, job type) left out: {why}" if why else said

    def document(self) -> dict[str, Any]:
        """The document of ``--json``; ``docs/schedules.md`` describes it."""
        return {
            "what": str(self.what),
            "execute": self.execute,
            "now": self.now.isoformat(),
            "skipped": self.skipped,
            "jobs": [_document(piece) for piece in self.pieces],
            "busy": [_document(piece) for piece in self.busy],
            "left_out": {str(one): self.left_out[one] for one in LeftOut},
        }


def queue(
    database: Database,
    settings: Settings,
    what: Rereading,
    *,
    execute: bool,
    actor: str,
    trigger: Trigger,
) -> Queued:
    """Queue what is to be read again now; without ``execute`` only look. Calls no source. Harmless beside
    another one: one at a time decides, in one transaction. Raises ConfigurationError where the database is
    not as it has to be."""
    with database.connection() as conn, conn.transaction():
        migrations.require_current(conn)
        found = Queued(what, execute, database_time(conn))
        found.skipped = _off(settings, what)
        if found.skipped is not None:
            return found
        config_hash = ""
        if execute:
            store.lock(conn)
            config_hash = configuration.keep(conn, settings)
        rows = store.units(conn, str(what), settings.scheduler_backfill_repair_window_hours * 3600)
        only = settings.scheduler_mvp_job_type_allowlist if settings.scheduler_mvp_mode_enabled else ()
        for row in rows:
            unit = _unit(row)
            if not serves(settings, unit.instance, unit.tenant, unit.job_type):
                continue
            if only and unit.job_type not in only:
                continue
            spec = f"svn:{row['url']}" if row["kind"] == Kind.SVN else f"gitlab:{row['project_id']}"
            windows = _windows(unit, found.now, settings, what)
            if not windows and (why := _left_out(unit, found.now, what)) is not None:
                found.left_out[why] += 1
            for window in windows:
                piece = Piece(spec, unit.repo_id, unit.job_type, window)
                if not execute:
                    found.pieces.append(piece)
                    continue
                request = JobRequest(
                    repo_id=unit.repo_id,
                    job_type=unit.job_type,
                    mode=Mode.BACKFILL,
                    trigger=trigger,
                    actor=actor,
                    reason=str(what),
                    window=window,
                    reread=True,
                    priority=FULL_SYNC_PRIORITY if what is Rereading.FULL_SYNC else REPAIR_PRIORITY,
                )
                try:
                    jobs.enqueue(
                        conn,
                        request,
                        max_attempts=settings.job_max_attempts,
                        config_hash=config_hash,
                    )
                except LeaseHeld:
                    found.busy.append(piece)
                else:
                    found.pieces.append(piece)
    return found


def _off(settings: Settings, what: Rereading) -> str | None:
    if not settings.sync_enabled:
        return "nothing is started by itself: sync_enabled is false"
    if not settings.sweep_enabled:
        return "nothing is read again by itself: sweep_enabled is false"
    if what is Rereading.FULL_SYNC and not settings.full_sync_days:
        return "switched off: full_sync_days is 0"
    return None


def _windows(unit: Unit, now: datetime, settings: Settings, what: Rereading) -> Sequence[Window]:
    if what is Rereading.REPAIR_RECENT:
        hours = timedelta(hours=settings.scheduler_backfill_repair_window_hours)
        return policy.repair(unit, now, window=hours)
    longest = timedelta(hours=settings.scheduler_max_backfill_window_hours)
    return policy.full_sync(unit, now, days=settings.full_sync_days, longest=longest)


def _left_out(unit: Unit, now: datetime, what: Rereading) -> LeftOut | None:
    """Why there is no window of ``unit``; None where nothing asks for one, as without an outage."""
    asked_at = unit.failed_at
    if what is Rereading.FULL_SYNC:
        asked_at = now.replace(hour=0, minute=0, second=0, microsecond=0)
    if unit.open:
        return LeftOut.STILL_QUEUED
    if asked_at is None:
        return None
    if unit.watermark is None:
        return LeftOut.NOTHING_COMPLETE
    return LeftOut.DONE if unit.queued_at is not None and unit.queued_at >= asked_at else None


def _unit(row: dict[str, Any]) -> Unit:
    return Unit(
        repo_id=row["repo_id"],
        job_type=JobType(row["job_type"]),
        instance=row["instance"],
        tenant=row["tenant"],
        watermark=row["watermark"],
        queued_at=row["queued_at"],
        open=row["open"],
        failed_at=row["failed_at"],
        succeeded_at=row["succeeded_at"],
    )


def _document(piece: Piece) -> dict[str, Any]:
    return {"repo": piece.spec, "job": str(piece.job_type), "window": str(piece.window)}
