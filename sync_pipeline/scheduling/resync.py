"""Queueing what is read again by itself: the last days every night, the recent window after an outage.

Belongs here: from the ledger to the decision and back to the ledger, for the schedules of Dagster and for
``scm-sync admin``. Which windows these are is decided in :mod:`sync_pipeline.policy.resync`; a scheduler
starts the jobs as it starts all others. Only what the pool of the settings takes is queued.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from sync_pipeline.core.errors import LeaseHeld
from sync_pipeline.core.formatting import counted
from sync_pipeline.core.model import JobRequest, JobType, Kind, Mode, Trigger, Window
from sync_pipeline.database import migrations
from sync_pipeline.database.pool import Database, database_time
from sync_pipeline.database.rows import read_row
from sync_pipeline.ledger import jobs
from sync_pipeline.ledger import planning as store
from sync_pipeline.policy import resync as policy
from sync_pipeline.policy.resync import FULL_SYNC_PRIORITY, REPAIR_PRIORITY, ResyncAsset
from sync_pipeline.scheduling.dispatch import serves
from sync_pipeline.settings import Settings
from sync_pipeline.sync import configuration


class Resync(StrEnum):
    """The kinds; each is the name of its schedule and the reason of its jobs."""

    FULL_SYNC = "full_sync"
    REPAIR_RECENT = "repair_recent"


class ResyncSkipReason(StrEnum):
    """Why a (repository, job type) has no window now, although it could be read."""

    STILL_QUEUED = "still_queued"
    DONE = "done"
    NOTHING_COMPLETE = "nothing_complete"


_SKIP_TEXTS = {
    ResyncSkipReason.STILL_QUEUED: "with jobs of an earlier set still queued (scm-sync admin jobs list)",
    ResyncSkipReason.DONE: "that had theirs already",
    ResyncSkipReason.NOTHING_COMPLETE: "with nothing complete yet",
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
    """The queued jobs, or those that ``execute`` would queue. ``skipped`` is why nothing was examined, None
    if it was. ``busy`` are windows that a job of other work has. ``left_out`` counts the assets without a
    window by reason. ``now`` is the database's clock.
    """

    what: Resync
    execute: bool
    now: datetime
    pieces: list[Piece] = field(default_factory=list)
    busy: list[Piece] = field(default_factory=list)
    left_out: Counter[ResyncSkipReason] = field(default_factory=Counter)
    skipped: str | None = None

    def summary(self) -> str:
        """It in one line."""
        if self.skipped is not None:
            return self.skipped
        assets = len({(piece.repo_id, piece.job_type) for piece in self.pieces})
        done = "queued" if self.execute else "would be queued"
        summary = "nothing is to be read again"
        if self.pieces:
            summary = f"{counted(len(self.pieces), 'job')} {done} for {assets} (repository, job type)"
        why = ", ".join(
            f"{self.left_out[one]:,} {_SKIP_TEXTS[one]}" for one in ResyncSkipReason if self.left_out[one]
        )
        return f"{summary}; (repository, job type) left out: {why}" if why else summary

    def document(self) -> dict[str, Any]:
        """The document of ``--json``; ``docs/schedules.md`` describes it."""
        return {
            "what": str(self.what),
            "execute": self.execute,
            "now": self.now.isoformat(),
            "skipped": self.skipped,
            "jobs": [_document(piece) for piece in self.pieces],
            "busy": [_document(piece) for piece in self.busy],
            "left_out": {str(one): self.left_out[one] for one in ResyncSkipReason},
        }


def queue(
    database: Database,
    settings: Settings,
    what: Resync,
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
            store.lock_resync(conn)
            config_hash = configuration.keep(conn, settings)
        rows = store.resync_assets(conn, str(what), settings.scheduler.backfill_repair_window_hours * 3600)
        only = settings.scheduler.mvp_job_type_allowlist if settings.scheduler.mvp_mode_enabled else ()
        for row in rows:
            asset = read_row(ResyncAsset, row)
            if not serves(settings, asset.instance, asset.tenant, asset.job_type):
                continue
            if only and asset.job_type not in only:
                continue
            spec = f"svn:{row['url']}" if row["kind"] == Kind.SVN else f"gitlab:{row['project_id']}"
            windows = _windows(asset, found.now, settings, what)
            if not windows and (why := _left_out(asset, found.now, what)) is not None:
                found.left_out[why] += 1
            for window in windows:
                piece = Piece(spec, asset.repo_id, asset.job_type, window)
                if not execute:
                    found.pieces.append(piece)
                    continue
                request = JobRequest(
                    repo_id=asset.repo_id,
                    job_type=asset.job_type,
                    mode=Mode.BACKFILL,
                    trigger=trigger,
                    actor=actor,
                    reason=str(what),
                    window=window,
                    reread=True,
                    priority=FULL_SYNC_PRIORITY if what is Resync.FULL_SYNC else REPAIR_PRIORITY,
                )
                try:
                    jobs.enqueue(
                        conn,
                        request,
                        max_attempts=settings.jobs.max_attempts,
                        config_hash=config_hash,
                    )
                except LeaseHeld:
                    found.busy.append(piece)
                else:
                    found.pieces.append(piece)
    return found


def _off(settings: Settings, what: Resync) -> str | None:
    if not settings.scheduler.enabled:
        return "nothing is started by itself: sync_enabled is false"
    if not settings.reconcile.enabled:
        return "nothing is read again by itself: sweep_enabled is false"
    if what is Resync.FULL_SYNC and not settings.scheduler.full_sync_days:
        return "switched off: full_sync_days is 0"
    return None


def _windows(asset: ResyncAsset, now: datetime, settings: Settings, what: Resync) -> Sequence[Window]:
    if what is Resync.REPAIR_RECENT:
        hours = timedelta(hours=settings.scheduler.backfill_repair_window_hours)
        return policy.repair(asset, now, window=hours)
    longest = timedelta(hours=settings.scheduler.max_backfill_window_hours)
    return policy.full_sync(asset, now, days=settings.scheduler.full_sync_days, longest=longest)


def _left_out(asset: ResyncAsset, now: datetime, what: Resync) -> ResyncSkipReason | None:
    """Why there is no window of ``unit``; None where nothing asks for one, as without an outage."""
    asked_at = asset.failed_at
    if what is Resync.FULL_SYNC:
        asked_at = now.replace(hour=0, minute=0, second=0, microsecond=0)
    if asset.open:
        return ResyncSkipReason.STILL_QUEUED
    if asked_at is None:
        return None
    if asset.watermark is None:
        return ResyncSkipReason.NOTHING_COMPLETE
    return ResyncSkipReason.DONE if asset.queued_at is not None and asset.queued_at >= asked_at else None


def _document(piece: Piece) -> dict[str, Any]:
    return {"repo": piece.spec, "job": str(piece.job_type), "window": str(piece.window)}
