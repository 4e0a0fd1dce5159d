"""What is read again by itself, although it is covered: the last days every night, and what an outage may
have cost.

Belongs here: the pure decision which windows of one (repository, job type) are queued now. They are jobs like
any other: whether one may start, and when, is decided in :mod:`sync_pipeline.policy.planning`. Does not
belong here: comparing with the source (:mod:`sync_pipeline.policy.reconcile_schedule`), which is cheaper and
goes further back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sync_pipeline.catalog import BLOCK_REVISIONS, block_of, blocks
from sync_pipeline.model import JobType, RevisionWindow, TimeWindow, Window

FULL_SYNC_PRIORITY = 800
"""Priority of the nightly rereading: after what somebody waits for, before the history of a registration."""

REPAIR_PRIORITY = 150
"""Priority of the rereading after an outage: 50 behind live syncing."""

_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class ResyncAsset:
    """One (repository, job type) that may be read. ``watermark`` is the first revision that is not complete,
    or the end of the complete time; None where nothing is. ``queued_at`` is when its latest job of this kind
    of rereading was made, ``open`` whether one still waits or runs. ``failed_at`` and ``succeeded_at`` are
    the ends of its latest incremental runs that did. Times are UTC."""

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
    """The last ``days`` whole days before ``now``, in pieces of whole days and at most ``longest``; of SVN so
    many blocks up to the watermark. Nothing while those of an earlier night are open, nor a second time in a
    night (UTC), nor where nothing is complete yet."""
    night = now.replace(hour=0, minute=0, second=0, microsecond=0)
    if asset.open or asset.watermark is None or (asset.queued_at is not None and asset.queued_at >= night):
        return ()
    if isinstance(asset.watermark, int):
        return _last_revisions(asset.watermark, days) if days else ()
    piece = timedelta(days=longest // _DAY) if longest >= _DAY else longest
    return _pieces(night - timedelta(days=days), min(night, asset.watermark), piece)


def repair(asset: ResyncAsset, now: datetime, *, window: timedelta) -> Sequence[Window]:
    """The last ``window`` before the watermark in pieces of a day, of SVN the last 1,000 revisions, once
    after each outage: an incremental failed within that time and has succeeded since, and nothing was queued
    since it failed."""
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
    # What is read together has nearly the same watermark; the same window is read once.
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
