"""Comparisons of a (repository, job type) with its source, and the repairs that follow from them.

Belongs here: what is asked of the engine, and which repair is queued. Whoever compares uses this one: the
command line and the fleet-wide asset. What a probe does is in :mod:`sync_pipeline.sync.reconcile`, what
follows from a difference in :mod:`sync_pipeline.policy.reconciliation`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sync_pipeline.model import (
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
from sync_pipeline.policy.reconciliation import Next
from sync_pipeline.policy.windows import hull
from sync_pipeline.settings import Settings
from sync_pipeline.store import jobs, reconciliations, watermarks
from sync_pipeline.store.database import Connection
from sync_pipeline.sync import configuration
from sync_pipeline.sync.reconcile import CLEAN, INCONCLUSIVE, MISMATCH, next_of, patience_of

PRIORITY = 150
"""Priority of a repair: after live syncing, before history."""


@dataclass(frozen=True, slots=True)
class Starter:
    """Who wants something compared or repaired, and why."""

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
        trigger=starter.trigger,
        actor=starter.actor,
        reason=starter.reason,
        window=window,
        depth=depth,
        max_calls=max_calls,
        priority=PRIORITY,
    )


def repair_request(
    conn: Connection,
    settings: Settings,
    repo_id: int,
    job_type: JobType,
    starter: Starter,
    *,
    within: Window | None = None,
) -> JobRequest | None:
    """The request to heal what is open and can be healed now, in ``within`` or anywhere; None where nothing
    can: it is clean, or waits until a deletion is believed, or for a person."""
    found, _ = reconciliations.open_ones(conn, repo_id, job_type, window=within)
    patience = patience_of(settings)
    doable = [one for one in found if next_of(one, patience) in (Next.READ, Next.DELETE)]
    if not doable:
        return None
    places = [one.difference.place for one in doable]
    window = hull([place for place in places if place is not None])
    if window is None or None in places:
        # What has no place is anywhere: the window only says which of the others are healed with it.
        window = within or settled_window(conn, repo_id, job_type) or window
    if window is None:
        return None
    return JobRequest(
        repo_id=repo_id,
        job_type=job_type,
        mode=Mode.REPAIR,
        trigger=starter.trigger,
        actor=starter.actor,
        reason=starter.reason,
        window=window,
        heals=True,
        priority=PRIORITY,
    )


def queue_repair(
    conn: Connection, settings: Settings, repo_id: int, job_type: JobType, starter: Starter
) -> UUID | None:
    """Make the job that heals what is open, for the scheduler to start; None where there is nothing to heal.
    One that waits already is found again."""
    request = repair_request(conn, settings, repo_id, job_type, starter)
    if request is None:
        return None
    return jobs.enqueue(
        conn, request, max_attempts=settings.jobs.max_attempts, config_hash=configuration.keep(conn, settings)
    )


@dataclass(frozen=True, slots=True)
class Result:
    """What one probe came to: the sums over its parts. ``parts`` are rows of ``scm.reconciliations``, with
    ``window``. ``status`` is the worst of them, ``inconclusive`` also where the probe itself failed."""

    report: JobReport
    parts: tuple[dict[str, Any], ...]
    status: str
    sums: dict[str, int]


COUNTED = ("expected", "stored", "missing", "extra", "changed", "newer", "unreadable", "hidden")


def worst(states: Collection[str]) -> str:
    """The worst of what comparisons came to; of none that nothing is known."""
    found = (state for state in (MISMATCH, INCONCLUSIVE, CLEAN) if state in states)
    return next(found, INCONCLUSIVE)


def result_of(conn: Connection, report: JobReport) -> Result:
    """The result of the probe that ``report`` is of."""
    parts = tuple(reconciliations.of_run(conn, report.run_id)) if report.run_id is not None else ()
    states = {part["status"] for part in parts} | (set() if report.succeeded else {INCONCLUSIVE})
    status = worst(states)
    sums = {name: sum(part[name] for part in parts) for name in COUNTED}
    return Result(report, parts, status, sums)
