"""Which partitions are complete up to this moment because of a job.

Belongs here: the step from a report of the engine to the partitions that Dagster is told about. A partition
counts as materialized when it is covered up to now, also when there was nothing in it. Does not belong here:
writing the events.
"""

from __future__ import annotations

from collections.abc import Sequence

from sync_pipeline.core.catalog import block_of
from sync_pipeline.core.model import JobReport, RevisionWindow, TimeWindow, Window
from sync_pipeline.core.windows import holds, hull
from sync_pipeline.orchestration.partitions import Days, blocks_of, day_of, day_window, is_done
from sync_pipeline.orchestration.resources import WatermarkStore

NEWEST_DAYS = 400
"""Of a longer window only so many days are shown: each is an event of kilobytes."""


def finished_blocks(report: JobReport, watermarks: WatermarkStore) -> list[RevisionWindow]:
    """The blocks that ``report`` finished, oldest first. An incremental that found nothing finished none: the
    ledger has it."""
    touched: Sequence[Window]
    if report.window is not None:
        touched = (report.window,)
    elif report.covered:
        touched = report.covered
    else:
        # Rows changed without anything new: edited revision properties.
        touched = (block_of(report.head),) if report.counts.changed and report.head else ()
    return [
        block
        for block, whole in _parts(touched)
        if (whole and report.succeeded) or _is_complete(block, report, watermarks)
    ]


def _parts(touched: Sequence[Window]) -> list[tuple[RevisionWindow, bool]]:
    """Every block that one of the windows touches, and whether one of them holds all of it."""
    found: dict[RevisionWindow, bool] = {}
    for window in touched:
        assert isinstance(window, RevisionWindow)
        for block in blocks_of(window):
            found[block] = found.get(block, False) or holds(window, block)
    return list(found.items())


def _is_complete(block: RevisionWindow, report: JobReport, watermarks: WatermarkStore) -> bool:
    if report.head is None:
        return False
    known = RevisionWindow(block.first, max(block.first, min(block.end, report.head + 1)))
    return not watermarks.missing(report.repo_id, report.job_type, known)


def finished_days(report: JobReport, days: Days, watermarks: WatermarkStore) -> list[TimeWindow]:
    """The days that ``report`` finished, oldest first, of a long window the newest 400. An incremental
    finishes days when rows changed or a day closed: events are not free, and the ledger has the rest."""
    touched = [day for window in _touched(report, days) for day in days.touched(window)]
    newest = sorted(set(touched))[-NEWEST_DAYS:]
    whole = hull(newest)
    if whole is None:
        return []
    missing = watermarks.missing(report.repo_id, report.job_type, whole)
    return [
        day
        for day in newest
        # At the end of a window that reaches up to now, the safety lag is missing.
        if (report.succeeded and report.window is not None and holds(report.window, day))
        or is_done(day, missing, days.today)
    ]


def _touched(report: JobReport, days: Days) -> Sequence[Window]:
    if report.window is not None:
        return (report.window,)
    closed = any(day_of(w.since) != day_of(w.until) for w in report.covered if isinstance(w, TimeWindow))
    if not report.counts.changed and not closed:
        return ()
    return report.covered or (day_window(days.today),)
