"""The documents about jobs and runs: ``admin jobs``, ``admin runs``, ``scheduler``, ``worker``, ``reaper``,
``admin retention``, ``admin full-sync`` and ``admin repair-recent``.

Belongs here: rows of the ledger as they are printed. Does not belong here: the runner's own documents
(:mod:`sync_pipeline.core.documents.runner`).
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

from sync_pipeline.core.documents.common import Count, Id, Number, RowCounts, Share, Time, WindowRange
from sync_pipeline.core.model import (
    BreakerScope,
    BreakerState,
    DecisionReason,
    JobStatus,
    JobType,
    Mode,
    RunStatus,
)

ActionName = Literal["reset", "drop", "release"]
BatchStatus = Literal["changed", "unchanged", "empty", "quarantined"]


class Job(TypedDict):
    """A job."""

    job_id: Id
    repo: str
    """As `scm-sync repo list` writes it."""
    path: str
    """Path of the project, or URL."""
    repo_id: Count
    instance: str
    tenant: str
    job: JobType
    mode: Mode
    window: WindowRange | None
    """Null: from the watermark on."""
    status: JobStatus
    priority: int
    """Smaller runs first."""
    attempts: Count
    max_attempts: Count
    age_seconds: float
    """Since the claim where it runs, since its end where it is over, else since it was made."""
    missing: bool
    """It is to complete a window that is not complete."""
    created_at: Time
    planned_at: Time | None
    """When a plan last dispatched it (the column dispatched_at)."""
    not_before: Time | None
    """Earliest time of the next attempt."""
    worker: str | None
    """host:pid of its owner."""
    claimed_at: Time | None
    claim_expires_at: Time | None
    dagster_run_id: str | None
    finished_at: Time | None
    trigger: str
    actor: str
    reason: str
    error_code: str | None
    error: str | None


class JobList(TypedDict):
    """scm-sync admin jobs list --json."""

    counts: dict[str, int]
    """Jobs by status, 10,000 at most."""
    oldest_seconds: dict[str, float]
    more: Count
    """Jobs that are not printed."""
    jobs: list[Job]


class HandledJob(Job):
    """A job that a person reset, dropped or released."""

    done: bool
    why_not: str | None


class JobAction(TypedDict):
    """scm-sync admin jobs reset, drop and release with --json."""

    action: ActionName
    dry_run: bool
    done: Count
    left: Count
    missing: Count
    """Dropped jobs whose window stays a gap."""
    jobs: list[HandledJob]
    exit_code: Literal[0, 1]


class JobSettings(TypedDict):
    """The settings of a job."""

    hash: str
    settings: dict[str, Any] | None
    """The numbers, switches and dates by name; null where an earlier version kept the hash alone."""
    changed: dict[str, Any] | None
    """Those that are not the defaults of this version."""


class Attempt(TypedDict):
    """An attempt at a job."""

    run_id: Id
    """For `scm-sync admin runs show`."""
    attempt: Count
    status: str
    started_at: Time
    finished_at: Time | None
    worker: str | None
    dagster_run_id: str | None
    batches: Count
    rows_read: Count
    calls: Count
    rate_limited: Count
    timeouts: Count
    waited_seconds: float
    degradation: dict[str, Any] | None
    error_code: str | None
    error: str | None


class JobEvent(TypedDict):
    """An action of a person."""

    created_at: Time
    action: str
    old_status: JobStatus
    new_status: JobStatus
    actor: str
    reason: str


class ShownJob(Job):
    """scm-sync admin jobs show --json."""

    decision: dict[str, Any] | None
    """The facts from which the scheduler started the job."""
    configuration: JobSettings | None
    """The settings of the latest claim, or those that the job was made with; null where nothing is known."""
    history: list[Attempt]
    events: list[JobEvent]


JobDocument = JobList | JobAction | ShownJob


class Run(RowCounts):
    """A run."""

    run_id: Id
    job_id: Id
    attempt: Count
    status: RunStatus
    started_at: Time
    finished_at: Time | None
    worker: str
    """host:pid."""
    dagster_run_id: str | None
    repo: str
    """As `scm-sync repo list` writes it."""
    path: str
    """Path of the project, or URL."""
    job: JobType
    mode: Mode
    window: WindowRange | None
    """The window of the job; null: from the watermark on."""
    trigger: str
    actor: str
    reason: str
    batch_count: Count
    """Transactions committed."""
    calls: Count
    """Requests to GitLab, or svn commands."""
    seconds: float
    error_code: str | None
    error: str | None
    notice: str | None
    """Why it read in another way than usual, such as by REST instead of GraphQL."""
    code_version: str


class RunList(TypedDict):
    """scm-sync admin runs list --json."""

    runs: list[Run]


class Batch(RowCounts):
    """A batch of a run."""

    batch_id: Count
    """For `scm-sync admin runs replay --batch`."""
    batch_no: Count
    """Number within the run, from 1."""
    committed_at: Time
    status: BatchStatus
    """Some rows were quarantined, some were new or changed, none was, or none arrived."""
    position: str | None
    """Where in the source it was read, such as a page. Null where it read no rows, and up to 0.6.0."""
    first_key: str | None
    """Revision, commit, or number of the merge request; at most 200 characters."""
    last_key: str | None
    window: WindowRange | None
    """The requested window."""
    covered: WindowRange | None
    """The window that is complete since then."""
    replay: list[WindowRange]
    """The windows that a replay of the batch reads."""
    owed: Count | None
    """Details of its rows that are read later."""
    calls: Count | None
    """Requests, or svn commands, since the batch before."""
    seconds: float | None
    """Since the batch before."""


class ShownRun(Run):
    """scm-sync admin runs show --json."""

    more: Count
    """Batches that are not printed."""
    batches: list[Batch]


RunDocument = RunList | ShownRun


class Caps(TypedDict):
    """The limits of a plan."""

    running: Count
    queued: Count
    per_scan: Count
    per_instance: Count
    per_tenant: Count
    history: Count | None
    """Null: no limit."""


class EvaluatedBreaker(TypedDict):
    """A breaker as a plan evaluated it."""

    scope: BreakerScope
    key: str
    state: BreakerState
    reason: str | None


class Decision(TypedDict):
    """A job or (repository, job type), and why it is started or not."""

    repo: str
    job: JobType
    mode: Mode
    window: NotRequired[str | None]
    rest: NotRequired[str | None]
    """The part of a window longer than scheduler_max_backfill_window_hours that stays queued."""
    job_id: NotRequired[Id | None]
    """Null where the job has still to be made."""
    chosen: bool
    reason: DecisionReason
    detail: NotRequired[str | None]
    """The obstacle, in words."""
    since: NotRequired[Time]
    """When the job was made, or the last visit; the moment of the plan where there was none."""
    until: Time | None
    """When a decision against it may change by itself."""
    priority: NotRequired[int]
    rank: NotRequired[int]
    """Its priority after everything that raises or lowers it; the smaller goes first."""
    instance: NotRequired[str]
    tenant: NotRequired[str]
    failure_rate: NotRequired[Share]
    rate_limit_rate: NotRequired[Share]
    breaker: NotRequired[BreakerState]


class SchedulerRound(TypedDict):
    """scm-sync scheduler --json, also with --dry-run. docs/scheduling.md explains the reasons."""

    at: Time
    """When it was printed, by this machine."""
    dry_run: bool
    skipped: str | None
    """Why there is no plan; null where there is one."""
    now: NotRequired[Time]
    """The moment of the plan, by the database's clock."""
    pool: NotRequired[str]
    started: Count
    """Jobs handed to the workers; in a dry run, that would be."""
    running: NotRequired[Count]
    """Activities at work."""
    queued: NotRequired[Count]
    """Activities that wait for a worker or are at work."""
    caps: NotRequired[Caps]
    breakers: NotRequired[list[EvaluatedBreaker]]
    """Breakers that this plan evaluated."""
    decisions: list[Decision]


class WorkerJob(TypedDict):
    """scm-sync worker --json: a line for each job when it ends."""

    at: Time
    job_id: Id
    repo: str
    """As `scm-sync repo list` writes it."""
    repo_id: Count
    job: JobType
    mode: Mode
    status: JobStatus
    rows: Count
    """Rows read."""
    seconds: Number
    error_code: str | None
    error: str | None


class WaitingJob(TypedDict):
    """A job that a worker would take."""

    repo: str
    job: JobType
    mode: Mode
    window: str | None
    reason: str


class WorkerPlan(TypedDict):
    """scm-sync worker --dry-run --json, and a worker that found no job."""

    dry_run: bool
    """False: there was no job to do."""
    pool: str
    """Name of this worker pool."""
    jobs: list[WaitingJob]


WorkerDocument = WorkerJob | WorkerPlan


class ReapedItem(TypedDict):
    """An item that the reaper ended, or would end."""

    kind: str
    """job, run, lease, wish, waiting, dagster run, dagster slot or dagster backfill."""
    name: str
    outcome: str
    line: str
    """The same in words."""


class ReaperPass(TypedDict):
    """scm-sync reaper --json: one document, with --loop one in each line."""

    at: Time
    dry_run: bool
    skipped: str | None
    """Why the pass did nothing, such as another one at work."""
    processed: Count
    """How many items it ended, or would end."""
    to_failed: Count
    to_pending: Count
    to_dead: Count
    to_completed: Count
    """Jobs of lost workers, by their new status."""
    runs_closed: Count
    leases_released: Count
    wishes_forgotten: Count
    """Queue places of processes that no longer ask for a lease."""
    expired: Count
    """Waiting jobs that were given up."""
    dagster_runs_ended: Count
    dagster_slots_freed: Count
    dagster_backfills_stuck: Count
    """Reported, not ended."""
    errors: list[str]
    items: list[ReapedItem]
    exit_code: Literal[0, 1, 2]


class Records(TypedDict):
    """Records of one kind."""

    kind: str
    kept_days: int | None
    """Null: kept for ever."""
    found: Count
    deleted: Count
    kept: Count
    """Older, and still needed."""


class RetentionPass(TypedDict):
    """scm-sync admin retention --json, with --execute or without."""

    execute: bool
    """False: it only counted."""
    stopped: bool
    """It ended before everything was deleted; the next pass goes on."""
    records: list[Records]
    errors: list[str]
    exit_code: Literal[0, 1, 2]


class ResyncJob(TypedDict):
    """A window that is read again."""

    repo: str
    """svn:<url> or gitlab:<id>."""
    job: JobType
    window: str
    """since..until in UTC, or first and last revision."""


class OmittedCounts(TypedDict):
    """Number of (repository, job type) without a window now, by why."""

    still_queued: Count
    """Jobs of an earlier set wait or run."""
    done: Count
    """Had their set this night, or since the outage."""
    nothing_complete: Count
    """Nothing is complete yet."""


class ResyncSet(TypedDict):
    """scm-sync admin full-sync --json and scm-sync admin repair-recent --json."""

    what: Literal["full_sync", "repair_recent"]
    execute: bool
    """Whether the jobs were queued, or only shown."""
    now: Time
    """The database's clock."""
    skipped: str | None
    """Why nothing was considered."""
    jobs: list[ResyncJob]
    busy: list[ResyncJob]
    """Left out: a job that does other work has the same window."""
    left_out: OmittedCounts
