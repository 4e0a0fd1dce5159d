"""The documents of ``scm-sync runner``, ``repair remap`` and ``admin runs replay``.

Belongs here: a plan and a run of one job type, and the document over several. Does not belong here: the rows
of the ledger (:mod:`sync_pipeline.core.documents.ledger`).
"""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from sync_pipeline.core.documents.common import (
    ChangedRows,
    Count,
    Id,
    Number,
    Outcome,
    Revision,
    RowCounts,
    Text,
    Time,
    WindowRange,
)
from sync_pipeline.core.model import JobType

Phase = Literal["incremental", "backfill"]
ExitCode = Literal[0, 1, 2, 130]
ChunkState = Literal["missing", "covered"]
Watermark = Annotated[int, Field(ge=0, le=2**31)] | Time | None


class Expected(TypedDict):
    """Estimate for reading the missing part; null if it is unknown beforehand."""

    rows: Count | None
    """Revisions, commits or merge requests, the latter also of reviews."""
    requests: Count | None
    """Requests to GitLab, or svn commands."""
    seconds: Number | None
    problem: str | None
    """Why the source gave no estimate."""


class PlannedChunk(TypedDict):
    """A piece of a plan."""

    chunk_index: Count
    """Counted from 0."""
    window: WindowRange
    state: ChunkState
    """missing where any part of it is."""
    missing: list[WindowRange]
    """Its parts that are not covered."""


class PlannedJob(TypedDict):
    """scm-sync runner incremental|backfill --dry-run --json, for one job type."""

    phase: Phase
    repo: Text
    """By which a person names the repository, such as gitlab:123 or svn:<url>."""
    job: JobType
    dry_run: Literal[True]
    head: Revision | None
    """SVN: the newest revision; null for GitLab."""
    window: WindowRange | None
    """The requested window; of an incremental all since the origin. Null where there is nothing."""
    total_chunks: Count
    missing_chunks: Count
    """Chunks that would be read."""
    expected: Expected
    chunks: list[PlannedChunk]
    exit_code: Literal[0]


class PlannedRevisions(PlannedJob):
    """scm-sync runner incremental|backfill --dry-run --json, for revisions."""

    missing_items: Count
    """Revisions that are not covered."""


class PlannedTime(PlannedJob):
    """scm-sync runner incremental|backfill --dry-run --json, for a job type of GitLab."""

    missing_days: Number
    """Days that are not covered."""


class Result(TypedDict):
    """How a sync ended."""

    repo: Text
    """By which a person names the repository, such as gitlab:123 or svn:<url>."""
    status: Outcome
    """partial: completed parts stay; skipped: another process works on it."""
    items_synced: Count
    """Rows inserted or updated."""
    items_skipped: Count
    """Rows that were stored already, as good or better."""
    message: str
    """One line for a person."""
    error: str | None
    """One line, or null."""
    started_at: Time
    finished_at: Time
    vfacts_refreshed: bool
    """False: scm.v_facts is a view that is always current."""
    exit_code: ExitCode
    """0 success, 1 partial or skipped, 2 failed, or cancelled elsewhere, 130 stopped by Ctrl-C or SIGTERM."""


class RunOfJobType(Result, ChangedRows):
    """How a sync of one job type ended."""

    job: JobType
    calls: Count
    """Requests to GitLab, or svn commands."""
    watermark_before: Watermark
    """The end of the covered range that contains the origin: the first revision outside, or a time."""
    watermark_after: Watermark
    missing: NotRequired[list[WindowRange]]
    """Of a run that was stopped: its windows that are not covered; empty for a round of a loop."""


class Incremental(RunOfJobType):
    """scm-sync runner incremental --json, for one job type."""

    phase: Literal["incremental"]
    window: WindowRange | None
    """The window that was covered. Null where there was nothing."""


class Chunk(ChangedRows):
    """A piece of a backfill."""

    chunk_index: Count
    """Counted from 0, in the order of the windows."""
    status: Outcome
    synced_count: Count
    """Rows inserted or updated."""
    window: WindowRange | None
    """The window that was read under one lease; of a chunk that failed, its missing part."""
    error: str | None
    state: ChunkState
    """Before the run. A covered chunk is not read, but commits are searched in each branch and tag."""
    rows_read: Count
    """Rows that arrived from the source."""
    calls: Count
    """Requests to GitLab, or svn commands."""
    batches: Count
    """Transactions that stored it; see scm-sync admin runs show."""
    seconds: Number
    """From the end of the chunk before to the end of this one."""


class Backfill(RunOfJobType):
    """scm-sync runner backfill --json, for one job type."""

    phase: Literal["backfill"]
    window: WindowRange | None
    """The requested window. Null where there was nothing to read."""
    total_chunks: Count
    success_chunks: Count
    partial_chunks: Count
    failed_chunks: Count
    """Failed, skipped, cancelled, or not tried because an earlier one could not succeed either."""
    total_items_synced: Count
    """As items_synced."""
    total_items_skipped: Count
    """As items_skipped."""
    total_items_failed: Count
    """As quarantined."""
    chunk_results: list[Chunk]
    errors: list[str]
    """One line for each chunk that has one."""
    watermark_updated: bool
    """The run changed the origin or the watermark."""


Planned = PlannedRevisions | PlannedTime
Run = Incremental | Backfill


class PlannedJobs(TypedDict):
    """A plan for several job types."""

    phase: Phase
    repo: Text
    job: None
    dry_run: Literal[True]
    exit_code: Literal[0]
    jobs: Annotated[list[Planned], Field(min_length=2)]


class Runs(Result):
    """A run of several job types. Counts are the sums over the jobs, the error is the first of them."""

    phase: Phase
    job: None
    jobs: Annotated[list[Run], Field(min_length=2)]


RunnerResult = Planned | Run | PlannedJobs | Runs


class RemapWindow(TypedDict):
    """The requested facts, by their time at the source."""

    since: Time | None
    """Null: all."""
    until: None


class RemapPlan(TypedDict):
    """scm-sync repair remap --dry-run --json, for one job type."""

    phase: Literal["repair"]
    repo: Text
    job: JobType
    dry_run: Literal[True]
    window: RemapWindow
    rows_read: Count
    rows_to_change: Count
    rows_unchanged: Count
    rows_unreadable: Count
    """Rows whose raw cannot be read."""
    exit_code: Literal[0]


class RemapRun(RunOfJobType):
    """scm-sync repair remap --json, for one job type; quarantined rows are those whose raw cannot be read."""

    phase: Literal["repair"]
    window: RemapWindow
    calls: Literal[0]  # type: ignore[misc]
    """No server is asked."""


class RemapPlans(TypedDict):
    """A plan for several job types."""

    phase: Literal["repair"]
    repo: Text
    job: None
    dry_run: Literal[True]
    exit_code: Literal[0]
    jobs: Annotated[list[RemapPlan], Field(min_length=2)]


class RemapRuns(Result):
    """A run of several job types."""

    phase: Literal["repair"]
    job: None
    jobs: Annotated[list[RemapRun], Field(min_length=2)]


Remap = RemapPlan | RemapRun | RemapPlans | RemapRuns


class ReplayJob(RowCounts):
    """A job of a replay."""

    job_id: Id
    run_id: Id | None
    window: WindowRange | None
    status: Outcome
    calls: Count
    seconds: float
    error: str | None


class ReplayBase(TypedDict):
    """The subject of a replay."""

    run_id: Id
    """The run that is read again, or that wrote the batch."""
    batch_id: int | None
    """The batch; null for a whole run."""
    repo: str
    job: JobType
    actor: str
    """Who replays it; kept with the jobs."""
    reason: str
    """The run or batch, and why it is replayed; kept with the jobs."""
    windows: Annotated[list[WindowRange], Field(min_length=1)]
    """The windows to read, a job each; of revisions one for each block."""
    before: RowCounts
    """Rows of the first run or batch."""


class ReplayPlan(ReplayBase):
    """scm-sync admin runs replay --dry-run --json."""

    dry_run: Literal[True]
    exit_code: Literal[0]


class ReplayRun(ReplayBase, RowCounts):
    """scm-sync admin runs replay --json."""

    dry_run: Literal[False]
    status: Outcome
    calls: Count
    error: str | None
    jobs: list[ReplayJob]
    not_tried: list[WindowRange]
    """Windows left out because an earlier one could not succeed either."""
    exit_code: Literal[0, 1, 2]
    """As those of the runner."""


Replay = ReplayPlan | ReplayRun
