"""What to start now, for each (repository, job type), and why.

Belongs here: the pure decision over one snapshot. Every job and every repository gets a :class:`Decision`
with one reason from one enumeration, chosen or not, so that each can be explained. Does not belong here:
reading the snapshot, and grouping decisions into runs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from uuid import UUID

from sync_pipeline.model import Access, JobStatus, JobType, Lifecycle, Mode, Window
from sync_pipeline.policy.families import FAMILY_OF
from sync_pipeline.policy.windows import holds


class Reason(StrEnum):
    """Why something is started or not. The first group is chosen, the second is not."""

    NEVER_VISITED = "never_visited"
    HINT = "hint"
    INTERVAL = "interval"
    REPROBE = "reprobe"
    PENDING = "pending"
    RETRY = "retry"
    TAKEOVER = "takeover"
    TOGETHER = "together"

    RETIRED = "retired"
    NOT_CONFIGURED = "not_configured"
    CREDENTIAL = "credential"
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

# GitLab writes the last activity of a project at most once in this time.
_ACTIVITY_LAG = timedelta(hours=1)

# Decided by the clock alone, so it may as well be done now.
_BY_CLOCK = frozenset({Reason.NOT_YET, Reason.NOTHING_NEW})

_SLOW = frozenset({Access.DENIED, Access.DISABLED, Access.GONE})


@dataclass(frozen=True, slots=True)
class Unit:
    """One (repository, job type) as the plan sees it. Times are UTC.

    ``watermark`` is the first revision not yet complete, or the end of the complete time. ``hint_*`` is what
    the changes sensor last saw of the repository; ``activity_at`` and ``hint_activity_at`` are the source's
    time of its last activity, at the last visit that succeeded and in the hint. ``listed_at`` is when the
    sensor last listed the newest activity of the repository's discovery root, ``listed_down_to`` how far back
    in the source's time that listing went (None: to its end); both are None without a root. ``dead_at`` is
    when the latest incremental job died, None if the latest did not. ``configured`` is False where the
    settings have no such server.
    """

    repo_id: int
    job_type: JobType
    instance: str
    instance_slug: str
    lifecycle: Lifecycle
    access: Access
    visited_at: datetime | None
    watermark: int | datetime | None
    head: int | None
    hint_head: int | None
    hint_at: datetime | None
    hint_failed: bool
    dead_at: datetime | None
    activity_at: datetime | None = None
    hint_activity_at: datetime | None = None
    listed_at: datetime | None = None
    listed_down_to: datetime | None = None
    configured: bool = True


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
    window: Window | None


@dataclass(frozen=True, slots=True)
class Limits:
    """Lengths and caps. ``quiet_interval`` replaces ``sync_interval`` while fresh hints show nothing new.
    ``reprobe_interval`` is how long something without access, or an instance with a stopped token, is left
    alone."""

    sync_interval: timedelta
    quiet_interval: timedelta
    reprobe_interval: timedelta
    max_jobs: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that one plan is made from. ``refused`` says of each instance whose token in force is
    stopped when the server last refused it."""

    units: Sequence[Unit]
    jobs: Sequence[Job]
    in_flight: Sequence[InFlight]
    limits: Limits
    refused: Mapping[str, datetime] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Decision:
    """What is done about one job, or about the incremental syncing of one unit.

    ``job_id`` is None where the job has still to be made. ``until`` is when a decision against it may change
    by itself, None where only an event changes it.
    """

    repo_id: int
    job_type: JobType
    instance: str
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

    found: list[_Ranked] = []
    for unit in snapshot.units:
        mine = jobs.get((unit.repo_id, unit.job_type), [])
        runs = in_flight.get((unit.repo_id, unit.job_type), [])
        for job in mine:
            found.append((_decide_job(unit, job, runs, now, snapshot.limits), job.created_at))
        if not any(job.mode is Mode.INCREMENTAL for job in mine):
            found.append((_decide_unit(unit, runs, now, snapshot.limits), unit.visited_at or now))
    found = _with_companions(found)
    found.sort(key=_rank)
    decisions = [decision for decision, _ in found]
    for instance, refused_at in snapshot.refused.items():
        decisions = _hold_back(decisions, instance, refused_at + snapshot.limits.reprobe_interval, now)
    return [
        replace(d, chosen=False, reason=Reason.TICK_FULL) if d.chosen and n >= snapshot.limits.max_jobs else d
        for n, d in enumerate(decisions)
    ]


_Ranked = tuple[Decision, datetime]


def _rank(ranked: _Ranked) -> tuple[bool, int, datetime, int]:
    decision, since = ranked
    return not decision.chosen, decision.priority, since, decision.repo_id


def _with_companions(found: Sequence[_Ranked]) -> list[_Ranked]:
    """Bring forward what is read together with something chosen: apart it would cost the same list twice,
    and what once got out of step would stay so."""
    chosen: dict[tuple[int, str], int] = {}
    for decision, _ in found:
        if decision.chosen and decision.mode is Mode.INCREMENTAL:
            key = decision.repo_id, str(FAMILY_OF[decision.job_type])
            chosen[key] = min(decision.priority, chosen.get(key, decision.priority))
    return [
        (replace(d, chosen=True, reason=Reason.TOGETHER, priority=chosen[key], until=None), since)
        if d.reason in _BY_CLOCK and (key := (d.repo_id, str(FAMILY_OF[d.job_type]))) in chosen
        else (d, since)
        for d, since in found
    ]


def _hold_back(
    decisions: Sequence[Decision], instance: str, until: datetime, now: datetime
) -> list[Decision]:
    """Start nothing on an instance that refuses our token, but from ``until`` on a single incremental that
    finds out whether it still does."""
    mine = [d for d in decisions if d.instance == instance]
    busy = any(
        d.reason in (Reason.RUNNING, Reason.IN_FLIGHT)
        or (d.reason is Reason.WAITS_FOR_RETRY and d.mode is Mode.INCREMENTAL)
        for d in mine
    )
    probe: Decision | None = None
    if until <= now and not busy:
        # A job that exists goes first: it may be the probe before, which did not get an answer.
        live = sorted(
            (d for d in mine if d.chosen and d.mode is Mode.INCREMENTAL), key=lambda d: d.job_id is None
        )
        probe = live[0] if live else None
    return [
        d
        if d.instance != instance or not d.chosen
        else replace(d, reason=Reason.REPROBE)
        if d is probe
        else replace(d, chosen=False, reason=Reason.CREDENTIAL, until=until if until > now else None)
        for d in decisions
    ]


def _decide_job(unit: Unit, job: Job, runs: Sequence[InFlight], now: datetime, limits: Limits) -> Decision:
    reason, until = _judge_job(unit, job, runs, now, limits)
    return Decision(
        repo_id=job.repo_id,
        job_type=job.job_type,
        instance=unit.instance,
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
        instance=unit.instance,
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
    if _shows_news(unit, unit.visited_at):
        return Reason.HINT, None
    quiet = _is_watched(unit, unit.visited_at, now, limits)
    due = unit.visited_at + (limits.quiet_interval if quiet else limits.sync_interval)
    if due <= now:
        return Reason.INTERVAL, None
    return (Reason.NOTHING_NEW if quiet else Reason.NOT_YET), due


def _is_seen(unit: Unit, visited_at: datetime) -> bool:
    """True if the changes sensor saw the repository after the last visit."""
    return unit.hint_at is not None and unit.hint_at > visited_at and not unit.hint_failed


def _shows_news(unit: Unit, visited_at: datetime) -> bool:
    """True if the hint shows what the last visit cannot have seen."""
    if not _is_seen(unit, visited_at):
        return False
    if unit.hint_activity_at is not None:
        return unit.activity_at is not None and unit.hint_activity_at > unit.activity_at
    if unit.hint_head is None:
        return False
    # A HEAD that went back is news as well: the visit finds out what happened.
    complete = unit.watermark if isinstance(unit.watermark, int) else 1
    return unit.hint_head >= max(complete, 1) or unit.hint_head < (unit.head or 0)


def _is_watched(unit: Unit, visited_at: datetime, now: datetime, limits: Limits) -> bool:
    """True if news would have shown by now, so that a visit may wait. Revisions: the repository was looked at
    a moment ago. Time: so was the project, or its root was listed so far down that it had to be in the list,
    and its last activity is so far behind the watermark that nothing later can hide in the lag."""
    fresh = unit.hint_at is not None and unit.hint_at >= now - limits.sync_interval
    looked = fresh and _is_seen(unit, visited_at)
    if not isinstance(unit.watermark, datetime):
        return looked
    settled = unit.watermark - _ACTIVITY_LAG
    if looked and unit.hint_activity_at is not None:
        return unit.hint_activity_at <= settled
    # Roots are listed in turn, so that one listing may be much older than the sensor's interval.
    if unit.listed_at is None or unit.listed_at < now - limits.quiet_interval:
        return False
    return unit.listed_down_to is None or unit.listed_down_to <= settled


def _stopped(unit: Unit, now: datetime, limits: Limits) -> tuple[Reason | None, datetime | None]:
    """Why this unit is not synced in the ordinary way, and when it is looked at again (None: never)."""
    if unit.lifecycle is Lifecycle.RETIRED:
        return Reason.RETIRED, None
    if unit.access is Access.REPLACED:
        return Reason.REPLACED, None
    if not unit.configured:
        return Reason.NOT_CONFIGURED, None
    if unit.access in _SLOW:
        return Reason.NO_ACCESS, (unit.visited_at or now) + limits.reprobe_interval
    return None, None


def _holds(run: InFlight, mode: Mode, window: Window | None) -> bool:
    """True if ``run`` will do the job of ``mode`` and ``window``."""
    if run.mode is not mode:
        return False
    return run.window is None or window is None or holds(run.window, window)
