"""The words of the project as types: job types, modes, states, windows and the rows that readers yield.

Belongs here: frozen dataclasses and enumerations without behaviour beyond arithmetic on themselves. Does not
belong here: anything that reads, writes, decides or knows another module of this project.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Generic, NamedTuple, TypeVar
from uuid import UUID

BEGINNING = datetime(1900, 1, 1, tzinfo=UTC)
"""Where the coverage of a source's time begins: before everything that a server can date."""

FLEET = "fleet"
"""First part of the keys of the assets about the whole installation; the alias of no server."""


class Kind(StrEnum):
    """The kind of server of a repository."""

    GITLAB = "gitlab"
    SVN = "svn"


class JobType(StrEnum):
    """The kind of data that is read. ``mrs`` and ``svn`` are accepted aliases, see :meth:`parse`."""

    COMMITS = "commits"
    MERGE_REQUESTS = "merge_requests"
    REVIEWS = "reviews"
    REVISIONS = "revisions"

    @classmethod
    def parse(cls, text: str) -> JobType:
        """The job type that ``text`` names. Raises ValueError that lists the accepted names."""
        aliases = {"mrs": cls.MERGE_REQUESTS, "svn": cls.REVISIONS}
        name = text.strip().lower()
        if name in aliases:
            return aliases[name]
        try:
            return cls(name)
        except ValueError:
            known = ", ".join([*cls, *aliases])
            raise ValueError(f"unknown job type {text!r}; use one of: {known}") from None


class Mode(StrEnum):
    """Why a job reads its window. A ``probe`` compares it with what is stored and stores no fact."""

    INCREMENTAL = "incremental"
    BACKFILL = "backfill"
    REPAIR = "repair"
    PROBE = "probe"


class Depth(StrEnum):
    """How much a probe asks for: details only where lists differ, or all of them."""

    LISTING = "listing"
    DETAILS = "details"


class DifferenceKind(StrEnum):
    """How a row differs from its source: it is not stored, it is not at the source, or its values differ."""

    MISSING = "missing"
    EXTRA = "extra"
    CHANGED = "changed"


class JobStatus(StrEnum):
    """State of a job. ``failed`` is retried at ``not_before``; ``dead`` needs a person."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    DEAD = "dead"


class RunStatus(StrEnum):
    """How one attempt at a job ended. ``no_data`` is a success in which the source had nothing to read."""

    RUNNING = "running"
    COMPLETED = "completed"
    NO_DATA = "no_data"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


class Trigger(StrEnum):
    """Who started a job."""

    SENSOR = "sensor"
    UI = "ui"
    RUNNER = "runner"
    CI = "ci"
    WORKER = "worker"
    REGISTRATION = "registration"


class Access(StrEnum):
    """The access that the last visit found at the source, per (repository, job type).

    ``pending_deletion``: the server deletes the project in some days unless a person restores it. Until then
    it is read as before.

    ``replaced``: another repository answers at the known address. It has another UUID or root, a smaller
    HEAD, or other content under a stored revision number. Nothing is written until a person decides.
    """

    OK = "ok"
    EMPTY = "empty"
    DENIED = "denied"
    DISABLED = "disabled"
    ARCHIVED = "archived"
    PENDING_DELETION = "pending_deletion"
    MOVED = "moved"
    GONE = "gone"
    REPLACED = "replaced"


class Lifecycle(StrEnum):
    """Whether a repository is synced. A retired one keeps its rows, its assets and its history."""

    ACTIVE = "active"
    RETIRED = "retired"


class Visibility(StrEnum):
    """How much of a revision the server lets us see (path based authorization), poorest first."""

    HIDDEN = "hidden"
    PARTIAL = "partial"
    FULL = "full"


@dataclass(frozen=True, slots=True, order=True)
class RevisionWindow:
    """Half-open interval ``[first, end)`` of revision numbers."""

    first: int
    end: int

    def __post_init__(self) -> None:
        if self.first < 0 or self.end < self.first:
            raise ValueError(f"revision window ends before it starts: [{self.first}, {self.end})")

    def __len__(self) -> int:
        return self.end - self.first

    def __str__(self) -> str:
        return f"r{self.first}..r{self.end - 1}" if self.end > self.first else f"r{self.first}, empty"

    def pieces(self, size: int) -> Iterator[RevisionWindow]:
        """Cut into consecutive windows of at most ``size`` revisions, in order."""
        for first in range(self.first, self.end, size):
            yield RevisionWindow(first, min(first + size, self.end))


@dataclass(frozen=True, slots=True, order=True)
class TimeWindow:
    """Half-open interval ``[since, until)``, both aware and in UTC."""

    since: datetime
    until: datetime

    def __post_init__(self) -> None:
        if self.since.tzinfo is None or self.until.tzinfo is None:
            raise ValueError("a time window needs aware datetimes")
        if self.until < self.since:
            raise ValueError(f"time window ends before it starts: [{self.since}, {self.until})")

    def __str__(self) -> str:
        return f"{self.since.isoformat()}..{self.until.isoformat()}"

    @property
    def is_empty(self) -> bool:
        """True if it holds no time at all."""
        return self.since == self.until


Window = RevisionWindow | TimeWindow


@dataclass(frozen=True, slots=True)
class Repository:
    """A row of ``scm.repos``. ``svn_prefix`` is the part of the URL below the repository root, without a
    leading or trailing slash; empty for the whole repository. ``instance_slug`` (the alias of the server) and
    ``slug`` (from the path) are the first two parts of the asset keys, both fixed at registration."""

    repo_id: int
    kind: Kind
    instance: str
    instance_slug: str
    tenant: str
    slug: str
    url: str
    lifecycle: Lifecycle
    created_at: datetime
    project_id: int | None = None
    project_path: str | None = None
    svn_uuid: str | None = None
    svn_root: str | None = None
    svn_prefix: str = ""
    default_branch: str | None = None

    @property
    def spec(self) -> str:
        """The text by which a person names this repository: ``svn:<url>`` or ``gitlab:<id>``."""
        return f"svn:{self.url}" if self.kind is Kind.SVN else f"gitlab:{self.project_id}"

    @property
    def name(self) -> str:
        """The usual name of this repository: the path of the project, or the SVN URL."""
        return self.project_path or self.url


class PathChange(NamedTuple):
    """One changed path of a revision; a tuple, because there may be a million of them.

    ``path`` is absolute from the repository root. ``action`` is A, D, M or R; ``kind`` is file, dir or None
    where the server did not say. ``text_mods`` and ``prop_mods`` are None where unknown.
    """

    path: str
    action: str
    kind: str | None
    copyfrom_path: str | None
    copyfrom_rev: int | None
    text_mods: bool | None
    prop_mods: bool | None


@dataclass(frozen=True, slots=True)
class RevisionRow:
    """One revision as read. ``paths`` may be a one-shot iterable, so that memory does not grow with it.

    ``author_raw``, ``ts`` (UTC) and ``message`` are None where the revision has no such property. ``flags``
    name what had to be mended to store it: ``invalid_utf8``, ``control_characters``, ``bad_date``; and what
    http may have changed: ``line_ends_unsure``, ``paths_unsure``.
    ``revprops`` are all other revision properties as text. ``raw`` keeps, by property name, the bytes that
    text cannot carry.
    """

    rev_num: int
    author_raw: str | None
    ts: datetime | None
    message: str | None
    visibility: Visibility
    paths: Iterable[PathChange]
    flags: tuple[str, ...] = ()
    revprops: Mapping[str, str] = field(default_factory=dict)
    raw: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class QuarantinedRow:
    """A source row that cannot be stored. ``natural_key`` is for example the revision number. ``reason`` is a
    low-cardinality word, ``detail`` one line, and ``payload`` the received row after redaction.
    """

    natural_key: str
    reason: str
    detail: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class DeferredFetch:
    """A detail of a stored row that was not read, and is read later on its own.

    ``is_planned``: it was left for later, and ``error`` says why; else it could not be read. Planned ones are
    read by ``priority``, smallest first, then by ``row_updated_at`` of the row, newest first. None is read
    before ``wait`` has passed, unless a person asks for it.
    """

    natural_key: str
    detail: str
    error: str
    is_planned: bool = False
    priority: int = 100
    row_updated_at: datetime | None = None
    wait: timedelta = timedelta()


@dataclass(frozen=True, slots=True)
class Refusal:
    """A detail that the server refuses for every row of a repository. ``code`` is that of the error."""

    detail: str
    code: str
    error: str


@dataclass(frozen=True, slots=True)
class Visit:
    """The state of an SVN repository at a visit. ``head`` is the youngest revision."""

    uuid: str
    root: str
    head: int


@dataclass(frozen=True, slots=True)
class Difference:
    """A row that differs between a source and the tables, with its ``natural_key``. A row without its own key
    has that of its parent row, a colon, and its name there. ``fields`` are the columns whose values differ.
    ``position`` is that of the row among the revisions or in time. If it is None, every comparison looks for
    the row.
    """

    natural_key: str
    kind: DifferenceKind
    position: Window | None
    fields: tuple[str, ...] = ()


class BreakerState(StrEnum):
    """``closed``: everything runs. ``open``: nothing starts for a while. ``half_open``: single probes run."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class BreakerScope(StrEnum):
    """The scope of a breaker. Several apply to each job; any open one blocks it."""

    GLOBAL = "global"
    INSTANCE = "instance"
    TENANT = "tenant"
    POOL = "pool"


class DecisionReason(StrEnum):
    """Why something starts or not. The first group is chosen, the second is not."""

    NEVER_VISITED = "never_visited"
    HINT = "hint"
    INTERVAL = "interval"
    REPROBE = "reprobe"
    PENDING = "pending"
    RETRY = "retry"
    TAKEOVER = "takeover"
    COALESCED = "together"
    PROBE = "probe"
    OPEN_BACKFILL = "open_backfill"

    # Only an event changes it.
    RETIRED = "retired"
    NOT_CONFIGURED = "not_configured"
    REPLACED = "replaced"
    OTHER_POOL = "other_pool"
    SWITCHED_OFF = "switched_off"
    # Not due.
    NO_ACCESS = "no_access"
    DEAD = "dead"
    NOT_YET = "not_yet"
    NOTHING_NEW = "nothing_new"
    RUNNING = "running"
    WAITS_FOR_RETRY = "waits_for_retry"
    IN_FLIGHT = "in_flight"
    # Due, but a gate stops it.
    PAUSED = "paused"
    CREDENTIAL = "credential"
    BREAKER_OPEN = "breaker_open"
    HALF_OPEN = "half_open"
    ERROR_BUDGET = "error_budget"
    DEGRADED = "degraded"
    RATE_LIMITED = "rate_limited"
    # May start, but there is no room.
    RUNNING_CAP = "running_cap"
    QUEUE_FULL = "queue_full"
    TICK_FULL = "tick_full"
    INSTANCE_CAP = "instance_cap"
    TENANT_CAP = "tenant_cap"
    HISTORY_CAP = "history_cap"


@dataclass(frozen=True, slots=True)
class JobRequest:
    """A request for a job. ``window`` is None for an incremental job, which reads from the watermark to the
    source's end. ``reread`` also reads covered windows. ``from_raw`` (mode ``repair``) fills columns from the
    stored JSON without a request to the source; its window selects facts, not coverage. ``quarantine`` (mode
    ``repair``) are the entries of quarantine to retry, and nothing else. ``only_differences`` (mode
    ``repair``) reads only the differences in its window again. ``only_deferred`` (mode ``repair``, without a
    window) reads the planned deferred fetches of the asset, and nothing else: a completion job. ``depth`` is
    that of a ``probe``, which ends after ``max_calls`` requests to the source, if set.

    ``job_id`` is the job that a plan dispatched, which is claimed as it is. None: the job is made or found.
    """

    repo_id: int
    job_type: JobType
    mode: Mode
    trigger: Trigger
    actor: str
    reason: str
    window: Window | None = None
    job_id: UUID | None = None
    dagster_run_id: str | None = None
    reread: bool = False
    priority: int = 100
    from_raw: bool = False
    quarantine: tuple[int, ...] = ()
    only_differences: bool = False
    only_deferred: bool = False
    depth: Depth | None = None
    max_calls: int | None = None

    @property
    def is_one_off(self) -> bool:
        """True if only its starter can repeat it, because the ledger does not keep its purpose."""
        return self.from_raw or bool(self.quarantine) or self.mode is Mode.PROBE


@dataclass(frozen=True, slots=True)
class Counts:
    """Rows of a batch or run, counted by the database. ``poorer`` are rows that arrived with less detail than
    is stored, because access was lost in between, and therefore changed nothing.
    """

    read: int = 0
    inserted: int = 0
    updated: int = 0
    unchanged: int = 0
    regressed: int = 0
    quarantined: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.read + other.read,
            self.inserted + other.inserted,
            self.updated + other.updated,
            self.unchanged + other.unchanged,
            self.regressed + other.regressed,
            self.quarantined + other.quarantined,
        )

    @property
    def changed(self) -> int:
        """Rows that a reader of the tables sees differently now."""
        return self.inserted + self.updated


@dataclass(slots=True)
class Evidence:
    """Position of a batch in the source. ``position`` is a short text without a URL, such as a page. ``read``
    are the times that a replay reads again; for revisions the window of the batch is used. ``first_key`` and
    ``last_key`` are those of the first and the last row that arrived.
    """

    position: str
    read: tuple[TimeWindow, ...] = ()
    first_key: str | None = None
    last_key: str | None = None

    def note(self, *keys: str) -> None:
        """Record that rows with these keys arrived."""
        if keys:
            self.first_key = self.first_key or keys[0]
            self.last_key = keys[-1]


Rows = TypeVar("Rows", bound=Iterable[Any], covariant=True)


@dataclass(frozen=True)
class Page(Generic[Rows]):
    """Rows of a source that are committed in one transaction, with everything that is known because of them.

    ``window`` is what was requested; None: rows were requested by their names. ``covered`` is complete once
    this page and those before it are stored; None where the page does not say. ``quarantined`` rows cannot be
    stored. ``deferred`` details of the rows are fetched later. ``evidence`` says where the rows were read,
    and ``date`` is the server's clock at the answer.
    """

    window: Window | None
    rows: Rows
    covered: Window | None = None
    quarantined: tuple[QuarantinedRow, ...] = ()
    deferred: tuple[DeferredFetch, ...] = ()
    evidence: Evidence | None = None
    date: datetime | None = None


RevisionPage = Page[Iterable[RevisionRow]]
"""A page of revisions. Its rows may come from an iterator, so that memory does not grow with them."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """The traffic to a source: requests or commands, those refused with 429, and those that timed out.
    ``waited`` is the seconds spent waiting for the shared rate limit and before retries.
    """

    calls: int = 0
    rate_limited: int = 0
    timeouts: int = 0
    waited: float = 0.0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(
            self.calls + other.calls,
            self.rate_limited + other.rate_limited,
            self.timeouts + other.timeouts,
            self.waited + other.waited,
        )

    def __sub__(self, other: Traffic) -> Traffic:
        return Traffic(
            self.calls - other.calls,
            self.rate_limited - other.rate_limited,
            self.timeouts - other.timeouts,
            self.waited - other.waited,
        )


@dataclass(frozen=True, slots=True)
class JobReport:
    """The result of a job for its starter. ``watermark_*`` are the last complete revision plus one, or a UTC
    time. ``covered`` is what this run completed. ``head`` is the source's end as pinned at the start.
    """

    job_id: UUID
    run_id: UUID | None
    repo_id: int
    job_type: JobType
    mode: Mode
    window: Window | None
    job_status: JobStatus
    run_status: RunStatus
    counts: Counts = field(default_factory=Counts)
    traffic: Traffic = Traffic()
    batches: int = 0
    seconds: float = 0.0
    waited_seconds: float = 0.0
    watermark_before: int | datetime | None = None
    watermark_after: int | datetime | None = None
    head: int | None = None
    covered: tuple[Window, ...] = ()
    beyond_head: bool = False
    error_code: str | None = None
    error: str | None = None

    @property
    def calls(self) -> int:
        """Requests or commands that were sent."""
        return self.traffic.calls

    @property
    def succeeded(self) -> bool:
        """True when the whole window is covered."""
        return self.job_status is JobStatus.COMPLETED


@dataclass(frozen=True, slots=True)
class Bucket:
    """The shared rate limit of one server, or of one kind of request to it: a token bucket whose times are
    the database's clock. See ``scm.sync_rate_limits``, whose columns the fields are."""

    tokens: float
    rate: float
    refilled_at: datetime
    paused_until: datetime | None = None
    paused_at: datetime | None = None
    pause_reason: str | None = None
    changed_at: datetime | None = None
    consecutive_429: int = 0
    last_429_at: datetime | None = None
    server_limit: int | None = None
    server_remaining: int | None = None
