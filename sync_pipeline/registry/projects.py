"""GitLab projects on their way into the catalog: which server, what a look finds, the rows, the estimate.

Belongs here: what registering one project (:mod:`sync_pipeline.registry.registration`) and finding many
(:mod:`sync_pipeline.registry.discovery`) have in common. Does not belong here: either of the two, and what
a sync does with a project that is registered.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta

from sync_pipeline.core import catalog, clock
from sync_pipeline.core.errors import (
    AccessDenied,
    ConfigurationError,
    Permanent,
    RowUnreadable,
    SourceGone,
    SyncError,
    Transient,
)
from sync_pipeline.core.job_types import DECLARED, JOB_TYPES_OF_KIND, job_types_of
from sync_pipeline.core.model import (
    BEGINNING,
    JobRequest,
    JobType,
    Kind,
    Mode,
    Repository,
    RevisionWindow,
    TimeWindow,
    Trigger,
    Window,
)
from sync_pipeline.database.pool import Connection
from sync_pipeline.ledger import jobs, repos, watermarks
from sync_pipeline.policy import history
from sync_pipeline.settings import GitLabServer, Settings
from sync_pipeline.sources.gitlab.fields import Fields
from sync_pipeline.sources.gitlab.page_bisect import PER_PAGE
from sync_pipeline.sources.gitlab.project import ProjectInfo, get_group, get_project, get_token
from sync_pipeline.sources.gitlab.transport import Client, Params, project_path

ClientOf = Callable[[str], Client]
"""Makes the client of an instance. Raises ConfigurationError where the settings know no such server."""

# Others need no history jobs: each of their jobs reads the whole list, or every ref to its root.
_WITH_HISTORY = tuple(one for one in JOB_TYPES_OF_KIND[Kind.GITLAB] if DECLARED[one].by_time)
# Something else than a GitLab answers; asking again later would not help.
_NO_GITLAB = frozenset({"not_json", "redirect"})

ESTIMATE_SECONDS = 10.0
"""Longest wait for an answer that only an estimate needs."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """The cost of reading a whole project until it is complete: ``requests`` and ``hours``. The speed is that
    of the requests just made, or the rate of the settings if that is slower. ``usable_requests`` and
    ``usable_hours`` are those until it is usable. The two counts are None if the server does not send them.
    """

    merge_requests: int | None
    commits: int | None
    requests: int
    hours: float
    usable_requests: int
    usable_hours: float


@dataclass(frozen=True, slots=True)
class NewProject:
    """The result of a registration: the ``repository`` (None if another process registered it meanwhile).
    ``again``: a retired one became active again. ``history`` are the windows queued as low-priority backfill,
    for merge requests and reviews alike, newest first.
    """

    repository: Repository | None
    again: bool
    history: tuple[TimeWindow, ...]


# Which server ---------------------------------------------------------------------------------------------


def server_of(servers: Sequence[GitLabServer], address: str, form: str) -> tuple[GitLabServer, str]:
    """The server that ``address`` of a specification is on, and what of it is left below the server's URL.
    ``form`` is the specification with ``{}`` where the URL belongs, for the message of an ambiguous one.
    Raises ConfigurationError where there is none or more than one."""
    if not servers:
        raise ConfigurationError(
            "no GitLab is configured; set SCM_GITLAB_URL and SCM_GITLAB_TOKEN, or add a [[gitlab]] table to "
            "the TOML file",
            code="no_gitlab",
        )
    if "://" not in address:
        if len(servers) == 1:
            return servers[0], address
        forms = " or ".join(form.format(server.url) for server in servers)
        raise ConfigurationError(f"several GitLab servers are configured; write {forms}", code="ambiguous")
    found = [(server, rest) for server in servers if (rest := catalog.below(address, server.url)) is not None]
    if not found:
        known = ", ".join(server.url for server in servers)
        raise ConfigurationError(
            f"no GitLab is configured for {address}, only {known}; correct the URL, or add a [[gitlab]] "
            "table to the TOML file",
            code="no_gitlab",
        )
    return max(found, key=lambda pair: len(pair[0].url))


def number_or_path(rest: str, collection: str) -> int | str:
    """A project (``collection`` is ``projects``) or group as the API wants it named."""
    plain = rest.removeprefix(f"{collection}/")
    return int(plain) if plain.isdigit() else plain


# A look at the source -------------------------------------------------------------------------------------


@contextmanager
def refusals(client: Client) -> Iterator[None]:
    """Raise refusals of a GitLab inside the block as ConfigurationError: one line with the remedy. Transient
    errors pass.
    """
    base = client.instance.url
    try:
        yield
    except RowUnreadable:
        raise ConfigurationError(
            f"{base} answers with something that no GitLab says; check the URL", code="no_gitlab"
        ) from None
    except AccessDenied as error:
        raise ConfigurationError(_scopes(client, error) or str(error), code=error.code) from None
    except Permanent as error:
        raise ConfigurationError(str(error), code=error.code) from None
    except Transient as error:
        if error.code not in _NO_GITLAB:
            raise
        raise ConfigurationError(str(error), code=error.code) from None


def _scopes(client: Client, refused: AccessDenied) -> str | None:
    """The remedy for a token with too few scopes, if the server lists its scopes."""
    if refused.code != "scope":
        return None
    try:
        token = get_token(client)
    except SyncError:
        return None
    if token is None:
        return None
    return (
        f"{client.instance.url}: the token {token.name!r} has the scope {', '.join(token.scopes) or 'none'}; "
        "create one with scope read_api"
    )


def find_project(client: Client, project: int | str) -> ProjectInfo:
    """The project with this number or path, for a person who named it. Raises ConfigurationError that says
    what is wrong with the name, the token or the server, Transient if it does not answer now."""
    with refusals(client):
        try:
            return get_project(client, project)
        except SourceGone as error:
            raise _not_a_project(client, project, error) from None


def _not_a_project(client: Client, project: int | str, error: SourceGone) -> SyncError:
    base = client.instance.url
    if error.code != "not_found":
        advice = "check the URL of the server"
        if isinstance(project, str):
            advice += ", or name the project by its number: a proxy may decode the %2F of paths"
        return ConfigurationError(f"{base} has no API of a GitLab at this place; {advice}", code="no_gitlab")
    try:
        group = get_group(client, project)
    except (SourceGone, RowUnreadable):
        who = "the token's user may" if client.instance.token() else "without a token one may"
        return ConfigurationError(
            f"{base} has no project {project}, or {who} not see it; check the name and the membership",
            code=error.code,
        )
    return ConfigurationError(
        f"{project} is a group; register all of its projects with: "
        f"scm-sync root add gitlab:group:{group.path or group.group_id}",
        code="group",
    )


def oldest_merge_request(client: Client, project_id: int) -> datetime | None:
    """When the oldest merge request was created (UTC); None where there is none or it may not be seen. Takes
    one request."""
    found, _ = _one_merge_request(client, project_id, "asc")
    return found.moment("created_at") if found else None


def estimate(client: Client, project_id: int, parallel: int, rate: float) -> Estimate:
    """Estimate what reading all of a project takes, with ``parallel`` requests at a time and at most ``rate``
    a second. Sends two or three requests. Raises as the transport does; Transient where one takes longer than
    :data:`ESTIMATE_SECONDS`.
    """
    client = client.instance.client(patience=ESTIMATE_SECONDS)
    clock, asked = client.instance.monotonic, client.calls
    started = clock()
    newest, total = _one_merge_request(client, project_id, "desc")
    merge_requests = total if total is not None else newest.integer("iid") if newest else 0
    commits = count_commits(client, project_id)
    pace = (clock() - started) / max(client.calls - asked, 1)
    rows = {"commit": commits or 0, "merge request": merge_requests or 0}
    job_types = [one for one in JOB_TYPES_OF_KIND[Kind.GITLAB] if not DECLARED[one].optional]
    complete = sum(requests_for(one, rows.get(DECLARED[one].row, 0)) for one in job_types)
    usable = sum(requests_for(one, rows.get(DECLARED[one].row, 0), usable=True) for one in job_types)
    seconds = max(pace / parallel, 1 / rate)
    return Estimate(
        merge_requests, commits, complete, complete * seconds / 3600, usable, usable * seconds / 3600
    )


def count_merge_requests(client: Client, project_id: int, window: TimeWindow) -> int | None:
    """How many merge requests were last changed in ``window``; None where the server does not say. Takes one
    request."""
    query: Params = {"updated_after": window.since.isoformat(), "updated_before": window.until.isoformat()}
    return _one_merge_request(client, project_id, "asc", query)[1]


def _one_merge_request(
    client: Client, project_id: int, sort: str, only: Params | None = None
) -> tuple[Fields | None, int | None]:
    """The first or last merge request, and how many there are; None where the server does not say."""
    query = {
        "scope": "all",
        "state": "all",
        "order_by": "created_at",
        "sort": sort,
        "per_page": 1,
        **(only or {}),
    }
    path = project_path(project_id, "merge_requests")
    try:
        response = client.get(path, query)
    except (AccessDenied, SourceGone) as error:
        if isinstance(error, AccessDenied) and error.is_of_the_token:
            raise
        return None, None
    rows = response.data
    first = rows[0] if isinstance(rows, list) and rows else None
    return Fields(first) if isinstance(first, dict) else None, response.total


def count_commits(client: Client, project_id: int) -> int | None:
    """How many commits the default branch has; None where the server does not say. Takes one request."""
    answer = client.get(project_path(project_id), {"statistics": "true"})
    return Fields(Fields(answer.data).object("statistics") or {}).integer("commit_count")


# The rows -------------------------------------------------------------------------------------------------


def origin_of(now: datetime, settings: Settings) -> datetime:
    """Where live syncing of a project begins that is registered ``now``: midnight UTC, some days before."""
    day = now.astimezone(UTC) - timedelta(days=settings.gitlab.origin_days)
    return day.replace(hour=0, minute=0, second=0, microsecond=0)


def history_before(
    origin: datetime, oldest: datetime | None, now: datetime, settings: Settings
) -> tuple[TimeWindow, ...]:
    """The history before ``origin`` as it is queued ``now``; ``oldest`` as for :func:`register`."""
    window = TimeWindow(BEGINNING, origin)
    return tuple(history.pieces(window, now, _oldest(origin, oldest, settings)))


def _oldest(origin: datetime, oldest: datetime | None, settings: Settings) -> datetime:
    floor = datetime.combine(settings.gitlab.history_floor, time.min, tzinfo=UTC)
    return max(min(oldest or origin, origin), floor)


def register(
    conn: Connection,
    settings: Settings,
    base: str,
    project: ProjectInfo,
    *,
    origin: datetime,
    oldest: datetime | None,
    tenant: str | None,
    root_id: int | None,
    actor: str,
    only_vanished: bool = False,
) -> NewProject:
    """Make the rows of a project on the server at ``base``, in the caller's transaction. They are the
    repository, coverage with ``origin`` for its job types, history jobs, and events.

    A retired project becomes active again instead; with ``only_vanished`` only one that discovery retired.
    ``oldest`` is when its oldest merge request may have been created. It affects only the cuts of the
    history, never its start.
    """
    instance = catalog.instance_of(base)
    repository = repos.reactivate_gitlab(
        conn,
        instance=instance,
        project_id=project.project_id,
        root_id=root_id,
        only_vanished=only_vanished,
    )
    again = repository is not None
    if repository is None:
        path = project.path or str(project.project_id)
        repository = repos.insert_gitlab(
            conn,
            url=f"{base}/projects/{project.project_id}",
            instance=instance,
            tenant=tenant or catalog.tenant_of(path),
            project_id=project.project_id,
            project_path=path,
            default_branch=project.default_branch,
            root_id=root_id,
            name=settings.server_name(Kind.GITLAB, instance),
        )
    if repository is None:
        return NewProject(None, False, ())
    event, reason = ("reactivated", "taken up again") if again else ("registered", "registered")
    repos.record_event(conn, repository.repo_id, event, actor=actor, new=project.path or None)
    repos.record_project(conn, repository.repo_id, project, actor=actor)
    for job_type in job_types_of(repository):
        watermarks.register(
            conn,
            repo_id=repository.repo_id,
            job_type=job_type,
            origin_time=origin,
            actor=actor,
            reason=reason,
        )
    if known := [moment for moment in (oldest, project.created_at) if moment is not None]:
        repos.begin_history(conn, min(known).date(), settings.gitlab.history_floor)
    now = project.date or clock.now()
    queued = _queue_history(conn, settings, repository, oldest, now, actor, f"history before it was {reason}")
    return NewProject(repos.get(conn, repository.repo_id), again, queued)


def add_job_types(
    conn: Connection, repo_ids: Sequence[int], job_types: Collection[JobType], *, actor: str
) -> list[Repository]:
    """Switch optional job types on for active GitLab projects, in the caller's transaction. Returns those
    that lacked some of them, as they are now. Nothing is switched off."""
    changed = repos.add_job_types(conn, repo_ids, job_types) if job_types else []
    for repository in changed:
        origin = watermarks.get(conn, repository.repo_id, JobType.COMMITS).origin
        assert isinstance(origin, datetime)
        for job_type in repository.optional_job_types:
            watermarks.register(
                conn,
                repo_id=repository.repo_id,
                job_type=job_type,
                origin_time=origin,
                actor=actor,
                reason="switched on",
            )
        names = " ".join(repository.optional_job_types)
        repos.record_event(conn, repository.repo_id, "job_types", actor=actor, new=names)
    return changed


def _queue_history(
    conn: Connection,
    settings: Settings,
    repository: Repository,
    oldest: datetime | None,
    now: datetime,
    actor: str,
    reason: str,
) -> tuple[TimeWindow, ...]:
    """Queue what is not covered before the origin; returns the windows of the first job type."""
    queued: list[tuple[TimeWindow, ...]] = []
    for job_type in _WITH_HISTORY:
        origin = watermarks.get(conn, repository.repo_id, job_type).origin
        assert isinstance(origin, datetime)
        expected_from = _oldest(origin, oldest, settings)
        gaps = watermarks.missing(conn, repository.repo_id, job_type, TimeWindow(BEGINNING, origin))
        windows = tuple(
            window
            for gap in reversed(gaps)
            if isinstance(gap, TimeWindow)
            for window in history.pieces(gap, now, expected_from)
        )
        queued.append(windows)
        for window in windows:
            jobs.enqueue(
                conn,
                JobRequest(
                    repo_id=repository.repo_id,
                    job_type=job_type,
                    mode=Mode.BACKFILL,
                    trigger=Trigger.REGISTRATION,
                    actor=actor,
                    reason=reason,
                    window=window,
                    priority=history.priority(window, now),
                ),
                max_attempts=settings.jobs.max_attempts,
            )
    return max(queued, key=len)


# The cost of reading -------------------------------------------------------------------------------------


def requests_for(job_type: JobType, rows: int, *, usable: bool = False) -> int:
    """How many requests to GitLab reading so many commits or merge requests takes, about. A merge request is
    read with all its details, or until it is ``usable``. Where two job types share a reader, its pages count
    twice."""
    declared = DECLARED[job_type]
    row_calls = declared.usable_row_calls if usable else declared.row_calls
    return declared.visit_calls + -(-rows // PER_PAGE) + math.ceil(round(rows * row_calls, 6))


def commands_for(missing: Sequence[Window], chunk_revisions: int) -> int:
    """How many svn commands reading these windows takes, about."""
    lengths = (len(gap) for gap in missing if isinstance(gap, RevisionWindow))
    return DECLARED[JobType.REVISIONS].visit_calls + sum(-(-length // chunk_revisions) for length in lengths)
