"""Comparisons of an asset with its source, and the repairs that follow from them.

Belongs here: the requests to the engine, the sums of a comparison, and which repair is queued. The command
line and the fleet-wide asset share them. :mod:`sync_pipeline.sync.reconcile` does a comparison, and
:mod:`sync_pipeline.policy.reconciliation` decides the consequences of a difference.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sync_pipeline.core.model import (
    BEGINNING,
    Depth,
    JobReport,
    JobRequest,
    JobType,
    Mode,
    RevisionWindow,
    TimeWindow,
    Trigger,
    Window,
)
from sync_pipeline.core.windows import hull
from sync_pipeline.database.pool import Connection
from sync_pipeline.ledger import jobs, reconciliations, watermarks
from sync_pipeline.policy.reconciliation import Next
from sync_pipeline.settings import Settings
from sync_pipeline.sync import configuration
from sync_pipeline.sync.reconcile import CLEAN, INCONCLUSIVE, MISMATCH, next_of, patience_of

PRIORITY = 150
"""Priority of a repair: after live syncing, before history."""


@dataclass(frozen=True)
class Starter:
    """The origin of a comparison or repair, as its job keeps it."""

    trigger: Trigger
    actor: str
    reason: str


def settled_window(conn: Connection, repo_id: int, job_type: JobType) -> Window | None:
    """Everything up to the watermark, which is as far as a comparison can say something; None before the
    first reading. Raises ConfigurationError if the (repository, job type) is not registered."""
    mark = watermarks.get(conn, repo_id, job_type).watermark
    if isinstance(mark, datetime):
        return TimeWindow(BEGINNING, mark)
    return None if mark is None or mark <= 1 else RevisionWindow(1, mark)


def probe_request(
    repo_id: int,
    job_type: JobType,
    window: Window,
    depth: Depth,
    starter: Starter,
    *,
    max_calls: int | None = None,
) -> JobRequest:
    """The request to compare ``window``."""
    return JobRequest(
        repo_id=repo_id,
        job_type=job_type,
        mode=Mode.PROBE,
        **vars(starter),
        window=window,
        depth=depth,
        max_calls=max_calls,
        priority=PRIORITY,
    )


def repair_request(
    conn: Connection, settings: Settings, repo_id: int, job_type: JobType, starter: Starter
) -> JobRequest | None:
    """The request to repair the open differences that can be repaired now. None if there are none: the asset
    is clean, or waits for the confirmation of a deletion or for a person.
    """
    patience = patience_of(settings)
    positions = [
        one.difference.position
        for one in reconciliations.open_ones(conn, repo_id, job_type)
        if next_of(one, patience) in (Next.READ, Next.DELETE)
    ]
    if not positions:
        return None
    window = hull([position for position in positions if position is not None])
    if None in positions:
        # A difference without a place may be anywhere: the window only selects the others.
        window = settled_window(conn, repo_id, job_type) or window
    if window is None:
        return None
    return JobRequest(
        repo_id=repo_id,
        job_type=job_type,
        mode=Mode.REPAIR,
        **vars(starter),
        window=window,
        only_differences=True,
        priority=PRIORITY,
    )


def queue_repair(
    conn: Connection, settings: Settings, repo_id: int, job_type: JobType, starter: Starter
) -> UUID | None:
    """Make the job that repairs the open differences, for the scheduler to start, or find the waiting one.
    None if there is nothing to repair.
    """
    request = repair_request(conn, settings, repo_id, job_type, starter)
    if request is None:
        return None
    return jobs.enqueue(
        conn, request, max_attempts=settings.jobs.max_attempts, config_hash=configuration.keep(conn, settings)
    )


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one probe: the sums over its parts. ``parts`` are rows of ``scm.reconciliations``, with
    ``window``. ``status`` is the worst of them, ``inconclusive`` also where the probe itself failed."""

    report: JobReport
    parts: tuple[dict[str, Any], ...]
    status: str
    sums: dict[str, int]


def worst(states: Collection[str]) -> str:
    """The worst of some states; inconclusive if there are none."""
    found = (state for state in (MISMATCH, INCONCLUSIVE, CLEAN) if state in states)
    return next(found, INCONCLUSIVE)


def result_of(conn: Connection, report: JobReport) -> Result:
    """The result of the probe that ``report`` is of."""
    parts = tuple(reconciliations.of_run(conn, report.run_id)) if report.run_id is not None else ()
    states = {part["status"] for part in parts} | (set() if report.succeeded else {INCONCLUSIVE})
    status = worst(states)
    sums = {name: sum(part[name] for part in parts) for name in reconciliations.COUNTED}
    return Result(report, parts, status, sums)
