"""The data of the mock GitLab: groups, projects, tokens, merge requests, and the behaviour of the server.

Belongs here: plain records that the control object changes and the routes show. Merge requests, notes and
people are kept as their JSON (a *row*), so that recorded data is complete. Times, which the API shows less
precisely than the database, are beside the row. No rules about access.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any

from sync_pipeline.core import clock
from sync_pipeline_sandbox.gitlab.git import GitRepository

Row = dict[str, Any]
"""One JSON object as the API shows it."""

EXTERNAL = "https://external-url.invalid"
"""Stands for the server's own address in every stored row; each answer puts the real one in its place."""

GUEST, REPORTER, DEVELOPER, MAINTAINER, OWNER = 10, 20, 30, 40, 50


def stamp(moment: datetime) -> str:
    """A database time as the API shows it: UTC, cut (not rounded) to milliseconds."""
    utc = moment.astimezone(UTC)
    return f"{utc:%Y-%m-%dT%H:%M:%S}.{utc.microsecond // 1000:03d}Z"


def moment(text: str) -> datetime:
    """The time that a row shows. Raises ValueError when it is none."""
    return datetime.fromisoformat(text).astimezone(UTC)


@dataclass(slots=True)
class Token:
    """An access token and whose it is. ``expires_at`` is the first day on which it no longer works."""

    secret: str
    id: int
    user: Row
    name: str
    scopes: tuple[str, ...]
    created_at: datetime
    expires_at: date | None = None
    revoked: bool = False


@dataclass(slots=True, eq=False)
class Group:
    """A namespace: a group, or the personal one of a user (``kind`` ``user``)."""

    id: int
    name: str
    path: str
    parent: Group | None
    created_at: datetime
    visibility: str = "private"
    kind: str = "group"
    archived: bool = False
    members: dict[int, int] = field(default_factory=dict)
    """Access level by user id."""
    milestones: list[Row] = field(default_factory=list)

    def chain(self) -> list[Group]:
        """This group and all above it, the innermost first."""
        return [self, *(self.parent.chain() if self.parent else [])]

    @property
    def full_path(self) -> str:
        """Paths from the outermost group to this one."""
        return "/".join(group.path for group in reversed(self.chain()))

    @property
    def full_name(self) -> str:
        """Names from the outermost group to this one."""
        return " / ".join(group.name for group in reversed(self.chain()))


@dataclass(slots=True, eq=False)
class Note:
    """A note and the thread it is in."""

    row: Row
    discussion_id: str
    individual: bool


@dataclass(slots=True, eq=False)
class MergeRequest:
    """A merge request with its children. ``row`` has what lists show, ``detail`` what only the single read
    adds; the two times keep the microseconds that a row does not show."""

    row: Row
    created_at: datetime
    updated_at: datetime
    detail: Row = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    approved_by: list[Row] = field(default_factory=list)
    reviewers: list[Row] = field(default_factory=list)
    state_events: list[Row] = field(default_factory=list)
    label_events: list[Row] = field(default_factory=list)
    milestone_events: list[Row] = field(default_factory=list)
    versions: list[Row] = field(default_factory=list)
    """Oldest first."""
    commits: dict[int, list[Row]] = field(default_factory=dict)
    """Commits by version id where the project has no git repository to read them from; newest first."""

    id: int = field(init=False)
    """The number that is unique in the instance."""
    iid: int = field(init=False)
    """The number within the project."""

    def __post_init__(self) -> None:
        """Take both numbers from the row."""
        self.id, self.iid = int(self.row["id"]), int(self.row["iid"])


@dataclass(slots=True, eq=False)
class Project:
    """A project. ``repository`` is None where none exists on disk."""

    id: int
    name: str
    path: str
    group: Group
    created_at: datetime
    updated_at: datetime
    last_activity_at: datetime
    repository: GitRepository | None = None
    default_branch: str = "main"
    visibility: str = "private"
    archived: bool = False
    pending_delete: bool = False
    marked_for_deletion_on: date | None = None
    repository_access_level: str = "enabled"
    merge_requests_access_level: str = "enabled"
    creator_id: int | None = None
    members: dict[int, int] = field(default_factory=dict)
    shared_with: list[Group] = field(default_factory=list)
    merge_requests: dict[int, MergeRequest] = field(default_factory=dict)
    """By iid."""
    labels: dict[str, Row] = field(default_factory=dict)
    milestones: list[Row] = field(default_factory=list)
    events: list[Row] = field(default_factory=list)
    """Pushes and the like, oldest first."""
    commit_notes: list[Note] = field(default_factory=list)
    """What people wrote on commits, oldest first."""

    @property
    def full_path(self) -> str:
        """Path with namespace."""
        return f"{self.group.full_path}/{self.path}"


@dataclass(slots=True)
class RateLimit:
    """A throttle with fixed windows: ``limit`` requests per ``period`` seconds and token. ``headers`` says
    which answers carry RateLimit headers: ``always``, ``429`` or ``never``."""

    limit: int
    period: int = 60
    headers: str = "always"
    name: str = "throttle_authenticated_api"
    seen: dict[tuple[str, int], int] = field(default_factory=dict)


@dataclass(slots=True)
class GraphQL:
    """How the GraphQL endpoint differs from a healthy one. Rows are named by iid, fields as in the schema."""

    enabled: bool = True
    """False: 404, as a server without GraphQL answers."""
    max_complexity: int | None = None
    """The complexity that everybody may use; None: GitLab's own limits."""
    max_rows: int | None = None
    """A page with more merge requests runs into the time limit."""
    missing_fields: frozenset[str] = frozenset()
    """Fields that this version does not know, such as ``Note.imported``."""
    null_rows: set[int] = field(default_factory=set)
    """Merge requests that are null without an error."""
    null_fields: dict[int, tuple[str, ...]] = field(default_factory=dict)
    """Fields of a merge request that are null, without an error where the schema allows it."""
    failing_fields: dict[int, tuple[str, ...]] = field(default_factory=dict)
    """Fields of a merge request that fail, with an error for them only."""


@dataclass(slots=True)
class Behaviour:
    """How this server differs from others: its version and edition, its limits, and the answers about which
    real servers disagree."""

    version: str = "17.11.2-ee"
    enterprise: bool = True
    premium: bool = False
    old: bool = False
    """Leave out the fields that came late: reviewers, merge_user, internal, detailed_merge_status, ..."""
    external_url: str | None = None
    """Scheme, host and port in links and web addresses; None: those of each request."""
    max_offset: int = 50_000
    total_limit: int = 10_000
    """Rows above which totals are left out."""
    first_page_quirk: bool = True
    """Page 1 of branches and tags always announces a page 2."""
    missing_ref: int = 200
    """Status for commits of a ref that names nothing: 200 (an empty list) or 404."""
    unstable_ties: bool = False
    """Merge requests that are equal in what they are ordered by come in another order with each answer."""
    names_before_ids: bool = False
    """Where a branch or tag is named like the id of a commit, ``ref_name`` means the branch or tag."""
    empty_repository: int = 200
    """Status for commits of an empty repository: 200 (an empty list) or 404."""
    decoding_proxy: bool = False
    """A proxy in front turns %2F into a slash, so that paths in place of ids match no route."""
    latency: float = 0.0
    """Seconds that every answer takes at least."""
    rate_limit: RateLimit | None = None
    graphql: GraphQL = field(default_factory=GraphQL)


@dataclass(slots=True)
class Clock:
    """The server's time. Set ``fixed`` to hold it still; tests move it instead of waiting."""

    fixed: datetime | None = None
    system: Callable[[], datetime] = clock.now

    def now(self) -> datetime:
        """Now, in UTC."""
        return self.fixed or self.system()
