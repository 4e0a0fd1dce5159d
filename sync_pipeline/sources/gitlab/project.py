"""The properties of a project, and the rights of the token.

Belongs here: reading a project, a group, the token, the lists of projects and their newest activity, and the
access state of each job type. Does not belong here: how often a project must be missing before it counts as
gone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date as date_type
from datetime import datetime
from typing import Any

from sync_pipeline.core.errors import AccessDenied, Permanent, SourceGone, Transient
from sync_pipeline.core.gitlab_rows import Raw
from sync_pipeline.core.job_types import DECLARED
from sync_pipeline.core.model import Access, JobType
from sync_pipeline.sources.gitlab.children import OWN_ERRORS, REFUSED
from sync_pipeline.sources.gitlab.fields import Fields
from sync_pipeline.sources.gitlab.page_bisect import PER_PAGE
from sync_pipeline.sources.gitlab.paging import pages, rows
from sync_pipeline.sources.gitlab.transport import Client, project_path

# Fields of a project that may hold secrets; never stored.
_SECRET = frozenset({"runners_token", "import_url", "_links"})


@dataclass(frozen=True, slots=True)
class ProjectInfo:
    """A project as it is now. Times in UTC. ``default_branch`` is None where the token may not read code.
    ``date`` is the server's clock.
    ``marked_on`` is the day that the project was marked for deletion on."""

    project_id: int
    path: str
    web_url: str | None
    default_branch: str | None
    is_archived: bool
    is_empty: bool
    created_at: datetime | None
    last_activity_at: datetime | None
    date: datetime | None
    raw: Raw
    marked_on: date_type | None = None

    def disabled(self, feature: str) -> bool:
        """True if the project has ``feature`` switched off, such as ``merge_requests``."""
        fields = Fields(self.raw)
        level = fields.text(f"{feature}_access_level")
        # Old servers have no levels.
        return level == "disabled" or (level is None and fields.boolean(f"{feature}_enabled") is False)


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """A group as it is now; ``path`` is the full one."""

    group_id: int
    path: str


@dataclass(frozen=True, slots=True)
class TokenInfo:
    """The token's own data: ``expires_at`` is the first day on which it no longer works, None for never."""

    name: str | None
    scopes: tuple[str, ...]
    expires_at: date_type | None


def get_project(client: Client, project: int | str) -> ProjectInfo:
    """The project with this number or, once, to learn the number, this path. Raises as the transport does,
    and SourceGone with code ``not_found`` if the token sees no such project this once.
    """
    path = project_path(project) if isinstance(project, int) else f"/projects/{_quoted(project)}"
    answer = client.get(path)
    return parse_project(answer.data, answer.date)


def projects_of(group_id: int | None) -> tuple[str, dict[str, str]]:
    """Path and query of the list of all projects of a group and its subgroups; with None those of the token's
    user.
    """
    if group_id is None:
        return "/projects", {"membership": "true"}
    return f"/groups/{group_id:d}/projects", {"include_subgroups": "true", "with_shared": "false"}


def list_projects(client: Client, group_id: int | None) -> Iterator[ProjectInfo]:
    """Every project of a group and its subgroups, archived ones too; with None every project of the token's
    user. Raises as the transport does.
    """
    path, query = projects_of(group_id)
    if group_id is None:
        query["pagination"] = "keyset"
    for answer in pages(client, path, query | {"order_by": "id", "sort": "asc"}):
        for row in answer.data:
            yield parse_project(row, answer.date)


def parse_project(data: Any, date: datetime | None) -> ProjectInfo:
    """A project as the server returned it at ``date``. Raises as :class:`Fields` does."""
    fields = Fields(data)
    return ProjectInfo(
        project_id=fields.required("id"),
        path=fields.text("path_with_namespace") or "",
        web_url=fields.text("web_url"),
        default_branch=fields.text("default_branch"),
        is_archived=fields.boolean("archived") is True,
        is_empty=fields.boolean("empty_repo") is True,
        created_at=fields.moment("created_at"),
        last_activity_at=fields.moment("last_activity_at"),
        date=date,
        marked_on=_marked_on(fields),
        raw={name: value for name, value in fields.data.items() if name not in _SECRET},
    )


def milestone_paths(info: ProjectInfo) -> tuple[str, ...]:
    """The lists of milestones that merge requests of the project may have: its own, and those of its ancestor
    groups."""
    namespace = info.raw.get("namespace")
    fields = Fields(namespace if isinstance(namespace, dict) else {})
    path = fields.text("full_path")
    if path is None or fields.text("kind") == "user":
        groups: list[str] = []
    else:
        parts = path.split("/")
        groups = ["/".join(parts[: length + 1]) for length in range(len(parts))]
    return (
        project_path(info.project_id, "milestones"),
        *(f"/groups/{_quoted(group)}/milestones" for group in groups),
    )


def has_milestones(client: Client, info: ProjectInfo) -> bool:
    """Whether the project or one of its ancestor groups has a milestone. True too where a list cannot be
    read. Raises as the transport does for errors that concern more than this list.
    """
    try:
        return any(client.get(path, {"per_page": "1"}).data != [] for path in milestone_paths(info))
    except (SourceGone, AccessDenied, Permanent, Transient) as error:
        if error.code not in OWN_ERRORS | REFUSED:
            raise
        return True


def _marked_on(fields: Fields) -> date_type | None:
    # Old servers call it marked_for_deletion_at; both are days.
    text = fields.text("marked_for_deletion_on") or fields.text("marked_for_deletion_at")
    try:
        return None if text is None else date_type.fromisoformat(text[:10])
    except ValueError:
        return None


def get_group(client: Client, group: int | str) -> GroupInfo:
    """The group with this number or path. Raises as the transport does, and SourceGone with code
    ``not_found`` if the token sees no such group this once.
    """
    answer = client.get(f"/groups/{_quoted(str(group))}", {"with_projects": "false"})
    fields = Fields(answer.data)
    return GroupInfo(fields.required("id"), fields.text("full_path") or "")


def get_token(client: Client) -> TokenInfo | None:
    """The rights and the expiry of the token; None if the server does not tell (old servers, other kinds of
    token). Raises AccessDenied if it is rejected.
    """
    try:
        fields = Fields(client.get("/personal_access_tokens/self").data)
    except SourceGone:
        return None
    try:
        expires = date_type.fromisoformat(fields.text("expires_at") or "")
    except ValueError:
        expires = None
    return TokenInfo(fields.text("name"), tuple(map(str, fields.items("scopes"))), expires)


def access(info: ProjectInfo, job_type: JobType) -> Access:
    """The access state of one job type. A switched-off feature goes before a project that waits
    to be deleted, and that goes before an archived or empty one."""
    declared = DECLARED[job_type]
    if info.disabled(declared.feature):
        return Access.DISABLED
    if info.marked_on is not None:
        return Access.PENDING_DELETION
    if info.is_archived:
        return Access.ARCHIVED
    if info.is_empty and declared.needs_commits:
        return Access.EMPTY
    return Access.OK


def _quoted(path: str) -> str:
    return project_path(0, path).rpartition("/")[2]


# Change detection -----------------------------------------------------------------------------------------
#
# The newest activity of many projects in one page is a hint where something may have changed. The server's
# last_activity_at may lag an hour and misses some kinds of change, so it never proves that nothing happened.


@dataclass(frozen=True, slots=True)
class Activity:
    """Time of the last activity of projects, by their number. Other projects were not active after
    ``down_to``, in the server's time; None: there are no others.
    """

    projects: Mapping[int, datetime]
    down_to: datetime | None


def newest_activity(client: Client, group_id: int | None) -> Activity:
    """The most recently active projects of a group and its subgroups; with None those of the token's user.
    Raises as the transport does.
    """
    path, query = projects_of(group_id)
    newest = {"order_by": "last_activity_at", "sort": "desc", "simple": "true", "per_page": str(PER_PAGE)}
    answer = client.get(path, query | newest)
    found: dict[int, datetime] = {}
    for row in rows(answer, path):
        fields = Fields(row)
        moment = fields.moment("last_activity_at")
        if moment is not None:
            found[fields.required("id")] = moment
    return Activity(found, min(found.values(), default=None) if answer.next_query is not None else None)
