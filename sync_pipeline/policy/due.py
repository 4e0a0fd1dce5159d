"""When an asset or a job is due.

Belongs here: the decision by the clock, the hints, the access, and running work. Pure. Does not belong here:
whether it may start now (:mod:`~sync_pipeline.policy.gates`).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from sync_pipeline.core.model import Access, DecisionReason, JobStatus, Lifecycle, Mode, Window
from sync_pipeline.core.windows import holds
from sync_pipeline.policy.backoff import wait_before_next_visit
from sync_pipeline.policy.snapshot import AssetState, InFlight, Job, PlanningLimits

# GitLab updates the last activity of a project at most once in this time.
_ACTIVITY_LAG = timedelta(hours=1)

DISPATCHED_FOR = timedelta(minutes=10)
"""How long a dispatched job is left to the workers before it is planned anew."""

_SLOW = frozenset({Access.DENIED, Access.DISABLED, Access.GONE})


def evaluate_job(
    asset: AssetState, job: Job, runs: Sequence[InFlight], now: datetime, limits: PlanningLimits
) -> tuple[DecisionReason, datetime | None]:
    stopped, until = _stopped(asset, now, limits)
    # A retired or replaced repository keeps its jobs, untouched, for the person who decides about it.
    if stopped is not None and (job.mode is not Mode.INCREMENTAL or until is None or until > now):
        return stopped, until
    if job.status is JobStatus.RUNNING:
        expires = job.claim_expires_at or now
        if expires > now:
            return DecisionReason.RUNNING, expires
    elif job.not_before is not None and job.not_before > now:
        return DecisionReason.WAITS_FOR_RETRY, job.not_before
    if any(_holds(run, job.mode, job.window) for run in runs):
        return DecisionReason.IN_FLIGHT, None
    if job.dispatched_at is not None and job.dispatched_at > now - DISPATCHED_FOR:
        return DecisionReason.IN_FLIGHT, job.dispatched_at + DISPATCHED_FOR
    if job.status is JobStatus.RUNNING:
        return DecisionReason.TAKEOVER, None
    if job.status is JobStatus.FAILED:
        return DecisionReason.RETRY, None
    return DecisionReason.PENDING, None


def evaluate_asset(
    asset: AssetState, runs: Sequence[InFlight], now: datetime, limits: PlanningLimits
) -> tuple[DecisionReason, datetime | None]:
    stopped, until = _stopped(asset, now, limits)
    if stopped is None and asset.dead_at is not None:
        stopped, until = DecisionReason.DEAD, _next_visit_at(asset.dead_at, asset.dead_since, limits)
    if stopped is not None and (until is None or until > now):
        return stopped, until
    if any(_holds(run, Mode.INCREMENTAL, None) for run in runs):
        return DecisionReason.IN_FLIGHT, None
    if stopped is not None:
        return DecisionReason.REPROBE, None
    if asset.visited_at is None:
        return DecisionReason.NEVER_VISITED, None
    if _shows_news(asset, asset.visited_at):
        return DecisionReason.HINT, None
    quiet = _is_watched(asset, asset.visited_at, now, limits)
    due = asset.visited_at + (limits.quiet_interval if quiet else limits.sync_interval)
    if due <= now:
        return DecisionReason.INTERVAL, None
    return (DecisionReason.NOTHING_NEW if quiet else DecisionReason.NOT_YET), due


def evaluate_completion(
    asset: AssetState, runs: Sequence[InFlight], now: datetime, limits: PlanningLimits
) -> tuple[DecisionReason, datetime | None]:
    """Whether a new completion job of an asset with planned fetches is due."""
    stopped, until = _stopped(asset, now, limits)
    if stopped is not None:
        return stopped, until
    if asset.completion_stuck_at is not None:
        until = asset.completion_stuck_at + limits.reprobe_interval
        if until > now:
            return DecisionReason.NOT_YET, until
    if any(_holds(run, Mode.REPAIR, None) for run in runs):
        return DecisionReason.IN_FLIGHT, None
    return DecisionReason.PLANNED_FETCHES, None


def _is_seen(asset: AssetState, visited_at: datetime) -> bool:
    """True if the changes sensor checked the repository after the last visit."""
    return asset.hint_at is not None and asset.hint_at > visited_at and not asset.hint_failed


def _shows_news(asset: AssetState, visited_at: datetime) -> bool:
    """True if the hint shows a change that the last visit cannot have read."""
    if not _is_seen(asset, visited_at):
        return False
    if asset.hint_activity_at is not None:
        return asset.activity_at is not None and asset.hint_activity_at > asset.activity_at
    if asset.hint_head is None:
        return False
    # A HEAD that went back is a change as well: the visit finds the cause.
    complete = asset.watermark if isinstance(asset.watermark, int) else 1
    return asset.hint_head >= max(complete, 1) or asset.hint_head < (asset.head or 0)


def _is_watched(asset: AssetState, visited_at: datetime, now: datetime, limits: PlanningLimits) -> bool:
    """True if a change would be known by now, so that a visit may wait.

    For revisions: the repository was checked a moment ago. For time: the project was checked, or its root was
    listed so far back that it had to be in the list. Its last activity is also far enough behind the
    watermark that no later change can be within the lag.
    """
    fresh = asset.hint_at is not None and asset.hint_at >= now - limits.sync_interval
    is_visited = fresh and _is_seen(asset, visited_at)
    if not isinstance(asset.watermark, datetime):
        return is_visited
    settled = asset.watermark - _ACTIVITY_LAG
    if is_visited and asset.hint_activity_at is not None:
        return asset.hint_activity_at <= settled
    # Roots are listed in turn, so that one listing may be much older than the sensor's interval.
    if asset.listed_at is None or asset.listed_at < now - limits.quiet_interval:
        return False
    return asset.listed_down_to is None or asset.listed_down_to <= settled


def _stopped(
    asset: AssetState, now: datetime, limits: PlanningLimits
) -> tuple[DecisionReason | None, datetime | None]:
    """Why this asset is not synced in the ordinary way, and when it is tried again (None: never)."""
    if asset.lifecycle is Lifecycle.RETIRED:
        return DecisionReason.RETIRED, None
    if asset.access is Access.REPLACED:
        return DecisionReason.REPLACED, None
    if not asset.configured:
        return DecisionReason.NOT_CONFIGURED, None
    if asset.access in _SLOW:
        return DecisionReason.NO_ACCESS, _next_visit_at(asset.visited_at or now, asset.access_since, limits)
    return None, None


def _next_visit_at(tried_at: datetime, since: datetime | None, limits: PlanningLimits) -> datetime:
    """When something is tried again that failed at ``tried_at`` and has failed since ``since``."""
    troubled = None if since is None else tried_at - since
    return tried_at + wait_before_next_visit(troubled, limits.sync_interval, limits.reprobe_interval)


def _holds(run: InFlight, mode: Mode, window: Window | None) -> bool:
    """True if ``run`` will do the job of ``mode`` and ``window``."""
    if run.mode is not mode:
        return False
    return run.window is None or window is None or holds(run.window, window)
