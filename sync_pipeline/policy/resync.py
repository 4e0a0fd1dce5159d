"""Scheduled rereads of covered windows: the last days every night, and the recent window after an outage.

Belongs here: the pure decision which windows of an asset are queued now. They are jobs like any other:
:mod:`sync_pipeline.policy.planning` decides whether and when one may start. Does not belong here: comparing
with the source (:mod:`sync_pipeline.policy.reconcile_schedule`), which is cheaper and goes further back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sync_pipeline.core.catalog import BLOCK_REVISIONS, block_of, blocks
from sync_pipeline.core.model import JobType, RevisionWindow, TimeWindow, Window

FULL_SYNC_PRIORITY = 800
"""Priority of the nightly reread: after work that a person waits for, before the history of a registration.
"""

REPAIR_PRIORITY = 150
"""Priority of the reread after an outage: 50 behind live syncing."""

_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class ResyncAsset:
    """One asset that may be read. ``watermark`` is the first incomplete revision, or the end of the complete
    time; None if nothing is complete. ``queued_at`` is when its latest job of this resync was made, and
    ``open`` whether one still waits or runs. ``failed_at`` and ``succeeded_at`` are the ends of its latest
    failed and successful incremental runs. Times are UTC.
    """

    repo_id: int
    job_type: JobType
    instance: str
    tenant: str
    watermark: int | datetime | None
    queued_at: datetime | None = None
    open: bool = False
    failed_at: datetime | None = None
    succeeded_at: datetime | None = None


def full_sync(asset: ResyncAsset, now: datetime, *, days: int, longest: timedelta) -> Sequence[Window]:
    """The last ``days`` whole days before ``now``, in pieces of whole days of at most ``longest``; for SVN as
    many blocks before the watermark. There are none while those of an earlier night are open, nor twice in a
    night (UTC), nor without coverage.
    """
    night = now.replace(hour=0, minute=0, second=0, microsecond=0)
    if asset.open or asset.watermark is None or (asset.queued_at is not None and asset.queued_at >= night):
        return ()
    if isinstance(asset.watermark, int):
        return _last_revisions(asset.watermark, days) if days else ()
    piece = timedelta(days=longest // _DAY) if longest >= _DAY else longest
    return _pieces(night - timedelta(days=days), min(night, asset.watermark), piece)


def repair(asset: ResyncAsset, now: datetime, *, window: timedelta) -> Sequence[Window]:
    """The last ``window`` before the watermark in pieces of a day, for SVN the last 1,000 revisions, once
    after each outage.

    An outage is over if an incremental failed within that time, one has succeeded since, and nothing was
    queued since the failure.
    """
    failed = asset.failed_at
    if (
        asset.open
        or asset.watermark is None
        or failed is None
        or failed < now - window
        or asset.succeeded_at is None
        or asset.succeeded_at < failed
        or (asset.queued_at is not None and asset.queued_at >= failed)
    ):
        return ()
    if isinstance(asset.watermark, int):
        return tuple(blocks(_revisions(asset.watermark - BLOCK_REVISIONS, asset.watermark)))
    # Assets that are read together have nearly the same watermark; the same window is read once.
    end = asset.watermark.replace(second=0, microsecond=0)
    return _pieces(end - window, end, min(window, _DAY))


def _last_revisions(end: int, count: int) -> Sequence[Window]:
    first = block_of(end - 1).first - (count - 1) * BLOCK_REVISIONS
    return tuple(blocks(_revisions(first, end)))


def _revisions(first: int, end: int) -> RevisionWindow:
    first = max(first, 1)
    return RevisionWindow(first, max(first, end))


def _pieces(since: datetime, until: datetime, longest: timedelta) -> Sequence[Window]:
    found: list[Window] = []
    while since < until:
        end = min(since + longest, until)
        found.append(TimeWindow(since, end))
        since = end
    return tuple(found)
