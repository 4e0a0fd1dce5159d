"""The input and output of a plan.

Belongs here: the facts of one moment, the limits, the reasons, and the decision. Does not belong here: any
rule. :mod:`~sync_pipeline.policy.due` says when something is due, :mod:`~sync_pipeline.policy.gates` whether
it may start, and :mod:`~sync_pipeline.policy.caps` how much.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from sync_pipeline.core.model import (
    Access,
    BreakerState,
    DecisionReason,
    JobStatus,
    JobType,
    Lifecycle,
    Mode,
    Window,
)
from sync_pipeline.policy.breaker import Breaker, BreakerLimits
from sync_pipeline.policy.degradation import DegradationLimits, Sizes
from sync_pipeline.policy.samples import Sample

MAY_NOT_START = frozenset(
    {
        DecisionReason.PAUSED,
        DecisionReason.CREDENTIAL,
        DecisionReason.BREAKER_OPEN,
        DecisionReason.HALF_OPEN,
        DecisionReason.ERROR_BUDGET,
        DecisionReason.DEGRADED,
        DecisionReason.RATE_LIMITED,
    }
)
"""Reasons of due work that a gate stops."""

NO_ROOM = frozenset(
    {
        DecisionReason.RUNNING_CAP,
        DecisionReason.QUEUE_FULL,
        DecisionReason.TICK_FULL,
        DecisionReason.INSTANCE_CAP,
        DecisionReason.TENANT_CAP,
        DecisionReason.HISTORY_CAP,
        DecisionReason.COMPLETION_CAP,
        DecisionReason.MORE_URGENT,
    }
)
"""Reasons of work that would start if there were room."""

PRIORITY_OF_REASON = {
    DecisionReason.NEVER_VISITED: 40,
    DecisionReason.HINT: 50,
    DecisionReason.INTERVAL: 100,
    DecisionReason.REPROBE: 200,
}
"""Priority of an incremental job by why it is due; smaller runs first."""


@dataclass(frozen=True, slots=True)
class AssetState:
    """One asset as the plan sees it. Times are UTC.

    ``watermark`` is the first incomplete revision, or the end of the complete time. ``hint_*`` is the latest
    check of the changes sensor. ``activity_at`` is the source's time of its last activity at the last
    successful visit; ``hint_activity_at`` is that time in the hint. ``listed_at`` is when the sensor last
    listed the newest activity of the repository's discovery root. ``listed_down_to`` is how far back in the
    source's time that listing went (None: to its end). Both are None without a root.

    ``dead_at`` is when the latest incremental job died, None if the latest did not. ``dead_since`` is when
    the first one died after the last successful visit. ``access_since`` is the start of the current
    ``access``. ``configured`` is False if the settings have no such server, ``in_pool`` if this pool does not
    accept the asset. ``has_planned``: planned fetches may be read now. ``completion_stuck_at`` is when the
    latest completion job ended dead or without storing anything, None if it got on.
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
    tenant: str = ""
    in_pool: bool = True
    dead_since: datetime | None = None
    access_since: datetime | None = None
    has_planned: bool = False
    completion_stuck_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """An active row of the job ledger. ``dispatched_at`` is when a plan last dispatched it to workers.
    ``only_deferred``: it is a completion job.
    """

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
    dispatched_at: datetime | None = None
    only_deferred: bool = False


@dataclass(frozen=True, slots=True)
class InFlight:
    """A worker that waits or works, usually a Dagster run. It will do the jobs of ``mode`` inside ``window``
    for these repositories, or the incremental one if ``window`` is None.
    """

    repo_ids: frozenset[int]
    job_type: JobType
    mode: Mode
    window: Window | None


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause by a person, of everything or of the assets that match all given fields. ``until`` is None if
    only a person ends it. Times are UTC.
    """

    reason: str
    actor: str
    until: datetime | None = None
    instance: str | None = None
    tenant: str | None = None
    repo_id: int | None = None
    job_type: JobType | None = None

    def holds(self, asset: AssetState, now: datetime) -> bool:
        """True if it pauses ``unit`` at ``now``."""
        return (
            (self.until is None or self.until > now)
            and self.instance in (None, asset.instance)
            and self.tenant in (None, asset.tenant)
            and self.repo_id in (None, asset.repo_id)
            and self.job_type in (None, asset.job_type)
        )


@dataclass(frozen=True, slots=True)
class BucketLevel:
    """The shared rate limit of an instance: ``level`` is the remaining share of its burst, from 0 to 1."""

    level: float = 1.0
    paused_until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Caps:
    """Caps, counted in activities: merge requests and reviews of a project are read together and are one
    activity. ``running`` limits running ones, ``queued`` those that wait in a run or run, ``per_scan`` those
    that one plan starts. The next two are per server and per tenant. ``history`` limits queued ones that are
    not live syncing, in any case to half of ``queued``.
    """

    running: int
    queued: int
    per_scan: int
    per_instance: int
    per_tenant: int
    history: int | None = None


@dataclass(frozen=True, slots=True)
class PlanningLimits:
    """Durations and caps. ``quiet_interval`` replaces ``sync_interval`` while fresh hints show no change.
    ``reprobe_interval`` is the longest wait before something inaccessible, something dead, or a rejected
    token is tried again. The wait begins with ``sync_interval`` and doubles.

    ``error_budget`` is the failure rate from which an asset is paused for ``budget_pause``. ``slow_down`` is
    the share of runs with a 429 from which other assets go first. ``fair`` lets tenants take turns,
    ``per_round`` of each. While a breaker is open, a backfill starts every ``open_backfill`` (None: none).
    While it is half open, ``probes_per_scan`` probes of ``probe_job_types`` start (all if empty). ``only``
    are the job types that start at all (all if empty). A backfill job that is longer than
    ``longest_backfill`` starts in pieces (None: never).
    """

    sync_interval: timedelta
    quiet_interval: timedelta
    reprobe_interval: timedelta
    caps: Caps
    error_budget: float
    budget_pause: timedelta
    slow_down: float
    fair: bool
    per_round: int
    breaker: BreakerLimits
    degradation: DegradationLimits
    open_backfill: timedelta | None
    probes_per_scan: int
    probe_job_types: frozenset[JobType]
    degraded_batch: int
    degraded_window: float
    only: frozenset[JobType] = frozenset()
    switched_on: bool = True
    longest_backfill: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that one plan is made from. For each instance whose token in force is rejected, ``refused``
    is the time of the latest rejection, ``refused_since`` of the first. ``samples`` are the runs that
    finished lately, in any order. ``served`` is when live syncing of each tenant was last started.
    ``buckets`` are by instance. No fact is older than ``history_start``; None means that there are none.
    ``pool`` is the worker pool that plans.
    """

    assets: Sequence[AssetState]
    jobs: Sequence[Job]
    in_flight: Sequence[InFlight]
    limits: PlanningLimits
    refused: Mapping[str, datetime] = field(default_factory=dict)
    pauses: Sequence[Pause] = ()
    breakers: Sequence[Breaker] = ()
    samples: Sequence[Sample] = ()
    served: Mapping[str, datetime] = field(default_factory=dict)
    buckets: Mapping[str, BucketLevel] = field(default_factory=dict)
    refused_since: Mapping[str, datetime] = field(default_factory=dict)
    history_start: datetime | None = None
    pool: str = ""


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision about one job, about the incremental syncing of one asset, or about its completion.

    ``job_id`` is None where the job has still to be made. ``until`` is when a decision against it may change
    by itself, None where only an event changes it. ``since`` is how long it has waited for, ``rank`` its
    priority after everything that raises or lowers it; the smaller goes first. ``rest`` is the part of the
    job's window that does not fit into one job and stays queued; ``window`` is without it. ``pool`` is the
    worker pool that plans, empty where another one takes it. ``dispatch`` names the run that does the job,
    empty where a worker does. ``only_deferred``: the job is a completion job. Rates are shares from 0 to 1.
    """

    repo_id: int
    job_type: JobType
    instance: str
    instance_slug: str
    tenant: str
    mode: Mode
    window: Window | None
    job_id: UUID | None
    attempts: int
    priority: int
    chosen: bool
    reason: DecisionReason
    since: datetime
    until: datetime | None = None
    rank: int = 0
    failure_rate: float = 0.0
    rate_limit_rate: float = 0.0
    breaker: BreakerState = BreakerState.CLOSED
    sizes: Sizes | None = None
    detail: str | None = None
    rest: Window | None = None
    pool: str = ""
    dispatch: str = ""
    only_deferred: bool = False


@dataclass(frozen=True, slots=True)
class Usage:
    """Running and queued activities at the time of the plan, and those that it adds, see :class:`Caps`."""

    running: int
    queued: int
    started: int
    by_instance: Mapping[str, int]
    by_tenant: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Plan:
    """A decision for every job and every asset, chosen ones first and in the order to start them.
    ``breakers`` are those that changed, with their new state.
    """

    decisions: Sequence[Decision]
    usage: Usage
    breakers: Sequence[Breaker]
