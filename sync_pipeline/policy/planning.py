"""What to start now, for each (repository, job type), and why.

Belongs here: the pure decision over one snapshot. Every job and every repository gets a :class:`Decision`
with one reason from one enumeration, chosen or not, so that each can be explained. Does not belong here:
reading the snapshot, and grouping decisions into runs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from uuid import UUID

from sync_pipeline.model import Access, JobStatus, JobType, Lifecycle, Mode, RevisionWindow, Window


class Reason(StrEnum):
    """Why something is started or not. The first group is chosen, the second is not."""

    NEVER_VISITED = "never_visited"
    HINT = "hint"
    INTERVAL = "interval"
    REPROBE = "reprobe"
    PENDING = "pending"
    RETRY = "retry"
    TAKEOVER = "takeover"

    RETIRED = "retired"
    REPLACED = "replaced"
    NO_ACCESS = "no_access"
    DEAD = "dead"
    NOT_YET = "not_yet"
    NOTHING_NEW = "nothing_new"
    RUNNING = "running"
    WAITS_FOR_RETRY = "waits_for_retry"
    IN_FLIGHT = "in_flight"
    TICK_FULL = "tick_full"


PRIORITY_OF_REASON = {Reason.NEVER_VISITED: 40, Reason.HINT: 50, Reason.INTERVAL: 100, Reason.REPROBE: 200}
"""Priority of an incremental job by why it is due; smaller runs first."""

_SLOW = frozenset({Access.DENIED, Access.DISABLED, Access.GONE})


@dataclass(frozen=True, slots=True)
class Unit:
    """One (repository, job type) as the plan sees it. Times are UTC.

    ``watermark`` is the first revision not yet complete. ``hint_*`` is what the changes sensor last saw.
    ``dead_at`` is when the latest incremental job died, None if the latest did not.
    """

    repo_id: int
    job_type: JobType
    instance_slug: str
    lifecycle: Lifecycle
    access: Access
    visited_at: datetime | None
    watermark: int | None
    head: int | None
    hint_head: int | None
    hint_at: datetime | None
    hint_failed: bool
    dead_at: datetime | None


@dataclass(frozen=True, slots=True)
class Job:
    """An active row of the job ledger."""

    job_id: UUID
    repo_id: int
    job_type: JobType
    mode: Mode
    window: Window | None
    status: JobStatus
    priority: int
    attempts: int
    not_before: datetime | None
    claim_expires_at: datetime | None
    created_at: datetime


@dataclass(frozen=True, slots=True)
class InFlight:
    """A Dagster run that waits or works: it will do the jobs of ``mode`` inside ``window`` for these
    repositories, or the incremental one where ``window`` is None."""

    repo_ids: frozenset[int]
    job_type: JobType
    mode: Mode
    window: RevisionWindow | None


@dataclass(frozen=True, slots=True)
class Limits:
    """Lengths and caps. ``quiet_interval`` replaces ``sync_interval`` while fresh hints show nothing new."""

    sync_interval: timedelta
    quiet_interval: timedelta
    reprobe_interval: timedelta
    max_jobs: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that one plan is made from."""

    units: Sequence[Unit]
    jobs: Sequence[Job]
    in_flight: Sequence[InFlight]
    limits: Limits


@dataclass(frozen=True, slots=True)
class Decision:
    """What is done about one job, or about the incremental syncing of one unit.

    ``job_id`` is None where the job has still to be made. ``until`` is when a decision against it may change
    by itself, None where only an event changes it.
    """

    repo_id: int
    job_type: JobType
    instance_slug: str
    mode: Mode
    window: Window | None
    job_id: UUID | None
    attempts: int
    priority: int
    chosen: bool
    reason: Reason
    until: datetime | None = None


def plan(snapshot: Snapshot, now: datetime) -> list[Decision]:
    """Decide about every active job and every unit. Chosen ones come first, in the order to start them."""
    jobs: dict[tuple[int, JobType], list[Job]] = defaultdict(list)
    for job in snapshot.jobs:
        jobs[job.repo_id, job.job_type].append(job)
    in_flight: dict[tuple[int, JobType], list[InFlight]] = defaultdict(list)
    for run in snapshot.in_flight:
        for repo_id in run.repo_ids:
            in_flight[repo_id, run.job_type].append(run)

    found: list[tuple[Decision, datetime]] = []
    for unit in snapshot.units:
        mine = jobs.get((unit.repo_id, unit.job_type), [])
        runs = in_flight.get((unit.repo_id, unit.job_type), [])
        for job in mine:
            found.append((_decide_job(unit, job, runs, now, snapshot.limits), job.created_at))
        if not any(job.mode is Mode.INCREMENTAL for job in mine):
            found.append((_decide_unit(unit, runs, now, snapshot.limits), unit.visited_at or now))
    found.sort(key=lambda pair: (not pair[0].chosen, pair[0].priority, pair[1], pair[0].repo_id))
    decisions = [decision for decision, _ in found]
    return [
        replace(d, chosen=False, reason=Reason.TICK_FULL) if d.chosen and n >= snapshot.limits.max_jobs else d
        for n, d in enumerate(decisions)
    ]


def _decide_job(unit: Unit, job: Job, runs: Sequence[InFlight], now: datetime, limits: Limits) -> Decision:
    reason, until = _judge_job(unit, job, runs, now, limits)
    return Decision(
        repo_id=job.repo_id,
        job_type=job.job_type,
        instance_slug=unit.instance_slug,
        mode=job.mode,
        window=job.window,
        job_id=job.job_id,
        attempts=job.attempts,
        priority=job.priority,
        chosen=reason in (Reason.PENDING, Reason.RETRY, Reason.TAKEOVER),
        reason=reason,
        until=until,
    )


def _judge_job(
    unit: Unit, job: Job, runs: Sequence[InFlight], now: datetime, limits: Limits
) -> tuple[Reason, datetime | None]:
    stopped, until = _stopped(unit, now, limits)
    # A retired or replaced repository keeps its jobs, untouched, for the person who decides about it.
    if stopped is not None and (job.mode is not Mode.INCREMENTAL or until is None or until > now):
        return stopped, until
    if job.status is JobStatus.RUNNING:
        expires = job.claim_expires_at or now
        if expires > now:
            return Reason.RUNNING, expires
    elif job.not_before is not None and job.not_before > now:
        return Reason.WAITS_FOR_RETRY, job.not_before
    if any(_holds(run, job.mode, job.window) for run in runs):
        return Reason.IN_FLIGHT, None
    if job.status is JobStatus.RUNNING:
        return Reason.TAKEOVER, None
    if job.status is JobStatus.FAILED:
        return Reason.RETRY, None
    return Reason.PENDING, None


def _decide_unit(unit: Unit, runs: Sequence[InFlight], now: datetime, limits: Limits) -> Decision:
    reason, until = _judge_unit(unit, runs, now, limits)
    return Decision(
        repo_id=unit.repo_id,
        job_type=unit.job_type,
        instance_slug=unit.instance_slug,
        mode=Mode.INCREMENTAL,
        window=None,
        job_id=None,
        attempts=0,
        priority=PRIORITY_OF_REASON.get(reason, 100),
        chosen=reason in PRIORITY_OF_REASON,
        reason=reason,
        until=until,
    )


def _judge_unit(
    unit: Unit, runs: Sequence[InFlight], now: datetime, limits: Limits
) -> tuple[Reason, datetime | None]:
    stopped, until = _stopped(unit, now, limits)
    if stopped is None and unit.dead_at is not None:
        stopped, until = Reason.DEAD, unit.dead_at + limits.reprobe_interval
    if stopped is not None and (until is None or until > now):
        return stopped, until
    if any(_holds(run, Mode.INCREMENTAL, None) for run in runs):
        return Reason.IN_FLIGHT, None
    if stopped is not None:
        return Reason.REPROBE, None
    if unit.visited_at is None:
        return Reason.NEVER_VISITED, None
    seen = unit.hint_at is not None and unit.hint_at > unit.visited_at and not unit.hint_failed
    # A HEAD that went back is news as well: the visit finds out what happened.
    if seen and unit.hint_head is not None:
        ahead = unit.hint_head >= max(unit.watermark or 1, 1)
        if ahead or unit.hint_head < (unit.head or 0):
            return Reason.HINT, None
    quiet = seen and unit.hint_at is not None and unit.hint_at >= now - limits.sync_interval
    due = unit.visited_at + (limits.quiet_interval if quiet else limits.sync_interval)
    if due <= now:
        return Reason.INTERVAL, None
    return (Reason.NOTHING_NEW if quiet else Reason.NOT_YET), due


def _stopped(unit: Unit, now: datetime, limits: Limits) -> tuple[Reason | None, datetime | None]:
    """Why this unit is not synced in the ordinary way, and when it is looked at again (None: never)."""
    if unit.lifecycle is Lifecycle.RETIRED:
        return Reason.RETIRED, None
    if unit.access is Access.REPLACED:
        return Reason.REPLACED, None
    if unit.access in _SLOW:
        return Reason.NO_ACCESS, (unit.visited_at or now) + limits.reprobe_interval
    return None, None


def _holds(run: InFlight, mode: Mode, window: Window | None) -> bool:
    """True if ``run`` will do the job of ``mode`` and ``window``."""
    if run.mode is not mode:
        return False
    if run.window is None or not isinstance(window, RevisionWindow):
        return True
    return run.window.first <= window.first and window.end <= run.window.end
