"""The documents of ``admin quarantine``, ``reconcile``, ``admin verify`` and ``completeness``.

Belongs here: what is missing, wrong or could not be stored. Does not belong here: health, which is in the
status report (``docs/status.md``).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from sync_pipeline.core.documents.common import Count, Id, Number, Share, Text, Time, WindowRange
from sync_pipeline.core.model import Depth, DifferenceKind, JobStatus, JobType

Positive = Annotated[int, Field(ge=1)]


class QuarantineEntry(TypedDict):
    """A row of a source that could not be stored."""

    id: Positive
    """By which show and retry name it."""
    repo_id: Positive
    repo: Text
    """By which a person names the repository, such as gitlab:123 or svn:<url>."""
    job: JobType
    key: str
    """Key of the row at its source, such as the revision number; raw:... is an unreadable stored raw."""
    reason: Text
    """Word for the cause, such as unstorable, unreadable, corrupt."""
    detail: str
    """One line for a person."""
    seen: Positive
    """How often it was met."""
    first_seen_at: Time
    last_seen_at: Time
    resolved_at: Time | None
    """When it left quarantine; null while it is there."""
    batch_id: int | None
    """The batch that last met it."""
    run_id: Id | None
    """The run of that batch, a row of scm.sync_runs."""
    window: WindowRange | None
    """The window that the batch requested from the source."""
    payload_bytes: Count
    """Length of the row as received."""
    how: NotRequired[str]
    """show, and retry --dry-run: the way of a retry."""
    payload: NotRequired[str]
    """show: the row as received, after redaction. Bytes that are not UTF-8 or not visible are written out."""
    payload_base64: NotRequired[Annotated[str, Field(json_schema_extra={"contentEncoding": "base64"})]]
    """show: the same, byte by byte."""
    outcome: NotRequired[Literal["stored", "gone", "remains", "failed"]]
    """retry: stored; no longer at the source; quarantined again; or not tried to the end."""
    error: NotRequired[str | None]
    """retry: why it was not tried to the end."""


class QuarantineList(TypedDict):
    """scm-sync admin quarantine list --json."""

    version: Text
    """Of this program."""
    generated_at: Time
    """Now, by the database's clock."""
    total: Count
    """Entries that fit; more than are listed where --limit cut them."""
    entries: list[QuarantineEntry]
    """The latest met first."""


class RetryJob(TypedDict):
    """A job of a retry, or with --dry-run a planned one."""

    repo: Text
    job: JobType
    entries: NotRequired[Positive]
    """--dry-run: how many it would try."""
    from_raw: NotRequired[bool]
    """--dry-run: whether it would derive rows from their stored raw and ask no source."""
    job_id: NotRequired[Id | None]
    """A row of scm.sync_jobs; null where none was made."""
    run_id: NotRequired[Id | None]
    """A row of scm.sync_runs."""
    status: NotRequired[JobStatus | None]
    error_code: NotRequired[str | None]
    error: NotRequired[str | None]
    read: NotRequired[Count]
    inserted: NotRequired[Count]
    updated: NotRequired[Count]
    unchanged: NotRequired[Count]
    quarantined: NotRequired[Count]
    calls: NotRequired[Count]
    """Requests to GitLab, or svn commands."""


class RetrySummary(TypedDict):
    """Entries by outcome."""

    entries: Count
    stored: NotRequired[Count]
    gone: NotRequired[Count]
    remains: NotRequired[Count]
    failed: NotRequired[Count]


class QuarantineRetry(TypedDict):
    """scm-sync admin quarantine retry --json, also with --dry-run."""

    dry_run: bool
    entries: list[QuarantineEntry]
    jobs: list[RetryJob]
    """One job of mode repair for each (repository, job type); stored raws have one of their own."""
    summary: RetrySummary
    exit_code: Literal[0, 1, 2]
    """0: none is left in quarantine, 1: some are, 2: all are."""


ReconcileStatus = Literal["clean", "mismatch", "inconclusive"]


class PlannedComparison(TypedDict):
    """A comparison of one job type that --dry-run announces."""

    job: JobType
    window: WindowRange
    depth: Depth
    stored: Count
    """Revisions, commits or merge requests that are stored in the window."""
    calls: Count
    """Requests, or svn commands, about."""


class Difference(TypedDict):
    """A row that differs from its source."""

    key: str
    """A revision number, a sha, branch:<name>, the iid of a merge request, or <iid>:<event>,
    <iid>:approval:<person>, <iid>:reviewer:<person>."""
    kind: DifferenceKind
    fields: list[str]
    """changed: the columns that differ."""
    place: WindowRange | None
    found_at: Time
    looks: Positive
    repairs: Count
    next: Literal["read", "delete", "wait", "escalate"]
    believed_at: Time | None
    """wait: when it is old enough to become a tombstone."""


class Repair(TypedDict):
    """The repair of the differences."""

    job_id: Id
    status: Literal["queued", "pending", "running", "completed", "failed", "dead"]
    window: WindowRange | None
    inserted: Count
    updated: Count
    """Tombstones count as well."""
    calls: Count
    error: str | None


class Comparison(TypedDict):
    """The comparison of one job type."""

    job: JobType
    status: ReconcileStatus
    depth: Depth
    details: list[str]
    """The parts of each row that were compared."""
    details_left_out: list[str]
    """The parts of a row that this depth does not compare, unless something else of the row differs."""
    notice: str | None
    """Why the source was read in another way than usual."""
    window: WindowRange
    """The requested window: merge requests and reviews by last update, commits by commit date."""
    compared: list[WindowRange]
    """The compared part."""
    uncovered: list[WindowRange]
    """The part that was never read: a gap and no mismatch."""
    expected: Count
    """Rows at the source."""
    stored: Count
    """Rows that are stored, without tombstones."""
    missing: Count
    extra: Count
    changed: Count
    newer: Count
    """Rows that are newer than the latest visit; the next one reads them."""
    unreadable: Count
    """Rows that the source could not give."""
    hidden: Count
    """Stored rows that the token may not see now; nothing is known of them."""
    differences: list[Difference]
    """The first ones; missing, extra and changed count all."""
    calls: Count
    seconds: Number
    job_id: Id
    run_id: Id | None
    complete: bool
    """False where it stopped before the end of the window."""
    detail: str | None
    """Why it is inconclusive."""


class RepairedComparison(Comparison):
    """The comparison of one job type, with its repair."""

    repair: Repair | None
    after: Comparison | None
    """The comparison after the repair."""


class ReconcilePlan(TypedDict):
    """scm-sync reconcile --dry-run --json."""

    repo: Text
    dry_run: Literal[True]
    results: Annotated[list[PlannedComparison], Field(min_length=1)]
    exit_code: Literal[0]


class ReconcileRun(TypedDict):
    """scm-sync reconcile --json: one result for each job type."""

    repo: Text
    path: str
    """Path of the project, or URL."""
    status: ReconcileStatus
    """The worst of the results, after repairs."""
    results: Annotated[list[RepairedComparison], Field(min_length=1)]
    exit_code: Literal[0, 1, 2]
    """0 all clean, 1 something differs or was not compared, 2 nothing could be compared.
    3 and 130 come without a document."""


Reconcile = ReconcilePlan | ReconcileRun


class Proof(TypedDict):
    """A proof over our own records."""

    name: Annotated[str, Field(pattern="^[a-z_]+$")]
    """As in docs/verify.md."""
    about: Text
    """The meaning of a row."""
    passed: bool
    """True if no row disagrees."""
    disagreeing: Count
    """How many rows disagree."""
    rows: Annotated[list[dict[str, Any]], Field(max_length=20)]
    """The first of them; their keys differ from proof to proof and are for people."""


class OpenRecords(TypedDict):
    """Records that wait."""

    what: Literal["discrepancies", "obligations", "quarantine"]
    open: Count
    """How many are open."""
    oldest_at: Time | None
    """Since when the oldest is; null where none is."""
    oldest_seconds: Number | None
    """Its age."""


class Verification(TypedDict):
    """scm-sync admin verify --json."""

    version: Text
    """Of this program."""
    generated_at: Time
    """Now, by the database's clock."""
    environment: Text
    """SCM_ENVIRONMENT."""
    passed: bool
    """True if every proof holds."""
    proofs: Annotated[list[Proof], Field(min_length=1)]
    """Every proof, in the order of the names."""
    open: list[OpenRecords]
    """Records that wait; they make no proof fail."""
    exit_code: Literal[0, 2]
    """0 if every proof holds, 2 if not; also of the process."""


class Uncovered(TypedDict):
    """Windows that are not covered."""

    units: Count
    windows: Count
    revisions: Count


class Unknown(TypedDict):
    """Parts about which nothing is known."""

    denied: Count
    never_read: Count
    uncovered: Uncovered
    hidden: Count
    quarantined: Count
    owed: Count
    planned: Count
    unreadable: Count


class LevelCounts(TypedDict):
    """Units by the level of what is covered of them."""

    usable: Count
    complete: Count


class Verified(TypedDict):
    """Parts that a comparison verified lately."""

    units: Count
    rows: Count
    share: Share | None
    oldest_at: Time | None


class Completeness(TypedDict):
    """Expected and stored rows."""

    repositories: Count
    units: Count
    disabled: Count
    complete: bool
    levels: LevelCounts
    complete_until: Time | None
    expected: int
    stored: Count
    missing: Count
    extra: Count
    changed: Count
    deleted: Count
    unknown: Unknown
    verified: Verified


class OfInstance(Completeness):
    """Expected and stored rows of a server."""

    instance: Text


class OfTenant(Completeness):
    """Expected and stored rows of a tenant."""

    tenant: str


class OfJobType(Completeness):
    """Expected and stored rows of a job type."""

    job_type: JobType


class OfGroup(OfInstance, OfTenant, OfJobType):
    """Expected and stored rows of a job type of a tenant at a server."""


class UnreadableDetail(TypedDict):
    """A detail that a server refuses for every row of a repository."""

    spec: str
    job_type: str
    text: Text


class CompletenessStatement(TypedDict):
    """scm-sync completeness --json. docs/completeness.md explains each key."""

    version: Text
    """Of this program."""
    generated_at: Time
    """Now, by the database's clock."""
    environment: Text
    """SCM_ENVIRONMENT."""
    retired_repositories: Count
    """Left out of everything below."""
    unreadable: list[UnreadableDetail]
    total: Completeness
    instances: list[OfInstance]
    tenants: list[OfTenant]
    job_types: list[OfJobType]
    groups: list[OfGroup]
