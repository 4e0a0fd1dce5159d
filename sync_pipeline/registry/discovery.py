"""Discovery: groups and memberships whose projects enter the catalog, move in it and leave it by themselves.

Belongs here: adding and retiring a root, one visit to it, and what a complete listing says about the catalog.
Does not belong here: when roots are visited by themselves (``orchestration``), what registering one project
means (:mod:`sync_pipeline.registry.projects`), printing.

One listing never retires a project. It must be missing from several complete listings over a long time. Then
the server must answer that no project has its number.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from sync_pipeline.core import catalog, clock
from sync_pipeline.core.catalog import RootSpec
from sync_pipeline.core.errors import Cancelled, ConfigurationError, SourceGone, SyncError
from sync_pipeline.core.model import Kind, Lifecycle, Repository
from sync_pipeline.database.pool import Database
from sync_pipeline.ledger import discovery as store
from sync_pipeline.ledger import jobs, repos
from sync_pipeline.ledger.discovery import KnownProject, Root
from sync_pipeline.registry import projects
from sync_pipeline.registry.projects import ClientOf
from sync_pipeline.settings import Settings
from sync_pipeline.sources.gitlab.project import ProjectInfo, get_group, get_project, list_projects
from sync_pipeline.sources.gitlab.transport import Client


@dataclass(frozen=True, slots=True)
class Listing:
    """The listing of a root: its ``projects`` by id, and the path of its group (None for a membership)."""

    projects: Mapping[int, ProjectInfo]
    group_path: str | None


@dataclass(frozen=True, slots=True)
class DiscoveryPlan:
    """The conclusions from a listing. ``new`` and ``returned`` match the patterns and have to be registered
    or made active again. The others are active repositories by ``repo_id``. ``changed`` ones look different,
    ``seen`` ones belong to the root and are listed, ``missed`` ones are not listed. ``adopted`` ones have no
    other root and match the patterns.
    """

    new: tuple[ProjectInfo, ...]
    returned: tuple[ProjectInfo, ...]
    changed: Mapping[int, ProjectInfo]
    seen: tuple[int, ...]
    missed: Mapping[int, KnownProject]
    adopted: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Discovered:
    """The result of a visit to a root. ``listed`` and ``matching`` count projects. ``vanished`` are missing
    for the first time. ``left`` are no longer listed but still exist, and stay. ``moved`` have another path.
    ``error`` is why the visit failed (then nothing was retired), None if it did not.
    """

    root: Root
    listed: int = 0
    matching: int = 0
    registered: tuple[Repository, ...] = ()
    returned: tuple[Repository, ...] = ()
    moved: tuple[Repository, ...] = ()
    vanished: tuple[Repository, ...] = ()
    left: tuple[Repository, ...] = ()
    retired: tuple[Repository, ...] = ()
    updated: int = 0
    error: SyncError | None = field(default=None, compare=False)

    @property
    def changed(self) -> bool:
        """True if the catalog is another one now: the snapshot has to be exported and the code location
        reloaded."""
        return bool(self.registered or self.returned or self.moved or self.retired or self.updated)


@dataclass(frozen=True, slots=True)
class AddedRoot:
    """The result of adding a root, or of its dry run: ``root`` is None then. ``created`` is False if it was
    active before, and only its patterns were replaced. ``would_register`` are paths of a dry run.
    """

    spec: str
    created: bool
    root: Root | None
    discovered: Discovered | None = None
    listed: int = 0
    would_register: tuple[str, ...] = ()


# Decisions ------------------------------------------------------------------------------------------------


def matches(path: str, include: Collection[str], exclude: Collection[str]) -> bool:
    """True if a root with these shell patterns registers the project at ``path``. A ``*`` reaches over
    slashes; case does not count, as in GitLab; ``exclude`` wins."""
    folded = path.casefold()

    def any_of(patterns: Iterable[str]) -> bool:
        return any(fnmatchcase(folded, pattern.casefold()) for pattern in patterns)

    return (not include or any_of(include)) and not any_of(exclude)


def decide(root: Root, listed: Mapping[int, ProjectInfo], known: Mapping[int, KnownProject]) -> DiscoveryPlan:
    """The conclusions from a complete listing of ``root`` for the catalog of its server."""
    wanted = [one for one in listed.values() if matches(one.path, root.include, root.exclude)]
    active = {
        number: project
        for number, project in known.items()
        if project.lifecycle is Lifecycle.ACTIVE and number in listed
    }
    return DiscoveryPlan(
        new=tuple(one for one in wanted if one.project_id not in known),
        returned=tuple(
            one
            for one in wanted
            if (project := known.get(one.project_id)) is not None
            and project.lifecycle is Lifecycle.RETIRED
            and project.is_vanished
        ),
        changed={
            project.repo_id: listed[number]
            for number, project in active.items()
            if _differs(listed[number], project)
        },
        seen=tuple(project.repo_id for project in active.values() if project.root_id == root.root_id),
        missed={
            project.repo_id: project
            for number, project in known.items()
            if project.lifecycle is Lifecycle.ACTIVE
            and project.root_id == root.root_id
            and number not in listed
        },
        adopted=tuple(
            project.repo_id
            for number, project in active.items()
            if not project.has_active_root and matches(listed[number].path, root.include, root.exclude)
        ),
    )


def _differs(info: ProjectInfo, known: KnownProject) -> bool:
    return (
        bool(info.path and info.path != known.project_path)
        or bool(info.default_branch and info.default_branch != known.default_branch)
        or info.is_archived != known.is_archived
        or info.marked_on != known.marked_on
    )


# Visits ---------------------------------------------------------------------------------------------------


def visit_root(database: Database, settings: Settings, client: Client, root: Root, actor: str) -> Discovered:
    """List ``root`` to its end and update the catalog. Matching new projects are registered. Renamed ones
    keep their number, assets and history. Missing ones are searched and in the end retired, returned ones
    become active again. A failing source is recorded at the root and in the result, not raised.
    """
    try:
        _require_alias(database, settings, root.instance)
        listing = _list(client, root.group_id)
    except Cancelled:
        raise
    except SyncError as error:
        return _failed(database, root, error)
    return _take(database, settings, client, root, listing, actor)


def _require_alias(database: Database, settings: Settings, instance: str) -> None:
    """Raise ConfigurationError where the name of the server is the alias of another one."""
    with database.connection() as conn:
        repos.alias_of(conn, Kind.GITLAB, instance, settings.server_name(Kind.GITLAB, instance))


def rediscover(
    database: Database,
    settings: Settings,
    client_of: ClientOf,
    actor: str,
    *,
    roots: Sequence[Root] | None = None,
) -> list[Discovered]:
    """Visit every root that is due, or all of ``roots``, one after the other; a failing one does not stop the
    others. If a result has ``changed``, the caller exports the snapshot and reloads.
    """
    if roots is None:
        with database.connection() as conn:
            roots = store.due_roots(conn, settings.discovery.interval_seconds)
    done: list[Discovered] = []
    for root in roots:
        try:
            client = client_of(root.instance)
        except ConfigurationError as error:
            done.append(_failed(database, root, error))
            continue
        done.append(visit_root(database, settings, client, root, actor))
    return done


def _list(client: Client, group_id: int | None) -> Listing:
    group_path = get_group(client, group_id).path if group_id is not None else None
    # Many rows are held at once, and nothing reads what they looked like.
    listed = (replace(one, raw={}) for one in list_projects(client, group_id))
    return Listing({one.project_id: one for one in listed}, group_path)


def _take(
    database: Database, settings: Settings, client: Client, root: Root, listing: Listing, actor: str
) -> Discovered:
    """Bring the catalog in line with a complete listing."""
    with database.connection() as conn:
        plan = decide(root, listing.projects, store.projects(conn, root.instance))
    if plan.missed and not listing.projects:
        lost = ConfigurationError(
            f"{root} lists no project any more, and {len(plan.missed)} of the catalog came from it; check "
            "the rights of the token's user, or retire the root",
            code="empty_listing",
        )
        return _failed(database, root, lost)
    done = _apply(database, settings, client, root, listing, plan, actor)
    with database.connection() as conn:
        store.record_visit(conn, root.root_id, group_path=listing.group_path)
    return done


def _failed(database: Database, root: Root, error: SyncError) -> Discovered:
    with database.connection() as conn:
        store.record_visit(conn, root.root_id, error_code=error.code, error=str(error))
    return Discovered(root, error=error)


def _apply(
    database: Database,
    settings: Settings,
    client: Client,
    root: Root,
    listing: Listing,
    plan: DiscoveryPlan,
    actor: str,
) -> Discovered:
    found = Discovered(
        root,
        listed=len(listing.projects),
        matching=sum(matches(one.path, root.include, root.exclude) for one in listing.projects.values()),
    )
    found = _register(database, settings, client, root, plan, actor, found)
    with database.connection() as conn, conn.transaction():
        moved: list[Repository] = []
        updated = 0
        for repo_id, info in plan.changed.items():
            changes = repos.record_project(conn, repo_id, info, actor=actor)
            updated += "default_branch" in changes
            moved += [repos.get(conn, repo_id)] if "moved" in changes else []
        store.adopt(conn, root.root_id, plan.adopted)
        for repo_id in store.record_seen(conn, plan.seen):
            repos.record_event(conn, repo_id, "returned", actor=actor)
        missed = store.record_missed(
            conn,
            list(plan.missed),
            confirmations=settings.discovery.missing_confirmations,
            after=settings.discovery.missing_after_seconds,
        )
        mine = (*plan.seen, *plan.adopted, *(one.repo_id for one in (*found.registered, *found.returned)))
        updated += len(projects.add_job_types(conn, mine, settings.gitlab.optional_job_types, actor=actor))
        news = [one.repo_id for one in missed if one.is_news]
        for repo_id in news:
            repos.record_event(conn, repo_id, "vanished", actor=actor, old=str(root))
        vanished = tuple(repos.get(conn, repo_id) for repo_id in news)
    found = replace(found, moved=tuple(moved), updated=updated, vanished=vanished)
    for one in missed:
        if one.is_ripe:
            found = _find_missing(database, client, root, plan.missed[one.repo_id], actor, found)
    return found


def _register(
    database: Database,
    settings: Settings,
    client: Client,
    root: Root,
    plan: DiscoveryPlan,
    actor: str,
    found: Discovered,
) -> Discovered:
    """Register what is new and take up what returned; each on its own, so that an interruption costs only the
    rest."""
    registered: list[Repository] = []
    returned: list[Repository] = []
    for info in (*plan.new, *plan.returned):
        with database.connection() as conn, conn.transaction():
            made = projects.register(
                conn,
                settings,
                client.instance.url,
                info,
                origin=projects.origin_of(info.date or clock.now(), settings),
                oldest=info.created_at,
                tenant=root.tenant,
                root_id=root.root_id,
                actor=actor,
                only_vanished=True,
            )
        if made.repository is not None:
            (returned if made.again else registered).append(made.repository)
    return replace(found, registered=tuple(registered), returned=tuple(returned))


def _find_missing(
    database: Database, client: Client, root: Root, missed: KnownProject, actor: str, found: Discovered
) -> Discovered:
    """Ask for a project that many listings did not show. Gone too: it is retired. Still there: it left the
    root and stays. No clear answer: it is asked for again at the next visit."""
    try:
        info: ProjectInfo | None = get_project(client, missed.project_id)
    except SourceGone as error:
        if error.code != "not_found":
            return found
        info = None
    except Cancelled:
        raise
    except SyncError:
        return found
    with database.connection() as conn, conn.transaction():
        if info is not None:
            repos.record_project(conn, missed.repo_id, info, actor=actor)
            repos.record_event(conn, missed.repo_id, "returned", actor=actor, new=info.path)
            store.leave(conn, missed.repo_id)
            return replace(found, left=(*found.left, repos.get(conn, missed.repo_id)))
        reason = f"{root} no longer lists it and the server has no project {missed.project_id}"
        if repos.retire(conn, missed.repo_id, f"{reason} ({actor})", vanished=True):
            repos.record_event(conn, missed.repo_id, "retired", actor=actor, new=reason)
            jobs.cancel_pending(conn, missed.repo_id, f"repository retired by {actor}: {reason}")
        return replace(found, retired=(*found.retired, repos.get(conn, missed.repo_id)))


# Roots ----------------------------------------------------------------------------------------------------


def add_root(
    database: Database,
    settings: Settings,
    spec: RootSpec,
    *,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    tenant: str | None = None,
    actor: str,
    client_of: ClientOf,
    dry_run: bool = False,
) -> AddedRoot:
    """Make a root and visit it for the first time. One that is there takes the new patterns; what no longer
    matches stays in the catalog. Raises ConfigurationError for what a person has to change, Transient if the
    server does not answer now; then there is no root."""
    for pattern in (*include, *exclude):
        if not pattern.strip():
            raise ConfigurationError("a pattern is empty; write one like 'platform/*'")
    collection = "groups/" if spec.address.isdigit() else ""
    form = f"gitlab:{spec.scope}:{{}}" + (f"/{collection}{spec.address}" if spec.scope == "group" else "")
    server, rest = projects.server_of(settings.gitlab_servers(), spec.address, form)
    _require_alias(database, settings, catalog.instance_of(server.url))
    client = client_of(catalog.instance_of(server.url))
    group_id: int | None = None
    with projects.refusals(client):
        if spec.scope == "group":
            group_id = _group_id(client, spec, projects.number_or_path(rest, "groups"))
        elif rest:
            raise ConfigurationError(f"{spec}: write gitlab:membership:{server.url}")
        listing = _list(client, group_id)
    if dry_run:
        paths = sorted(one.path for one in listing.projects.values() if matches(one.path, include, exclude))
        with database.connection() as conn:
            known = store.projects(conn, catalog.instance_of(server.url))
        fresh = {one.path for one in listing.projects.values() if one.project_id not in known}
        return AddedRoot(
            str(spec), True, None, None, len(listing.projects), tuple(path for path in paths if path in fresh)
        )
    with database.connection() as conn:
        root, created = store.add_root(
            conn,
            instance=catalog.instance_of(server.url),
            scope=spec.scope,
            group_id=group_id,
            group_path=listing.group_path,
            include=[pattern.strip() for pattern in include],
            exclude=[pattern.strip() for pattern in exclude],
            tenant=tenant,
        )
    discovered = _take(database, settings, client, root, listing, actor)
    return AddedRoot(str(spec), created, root, discovered, discovered.listed)


def _group_id(client: Client, spec: RootSpec, named: int | str) -> int:
    try:
        return get_group(client, named).group_id
    except SourceGone as error:
        if error.code != "not_found":
            raise
        advice = "check the name, and that the token's user is a member"
        try:
            project = get_project(client, named)
            advice = f"{named} is a project; run: scm-sync repo add gitlab:{project.project_id}"
        except SourceGone:
            pass
        raise ConfigurationError(f"{spec}: the server has no such group; {advice}", code=error.code) from None


def find_root(database: Database, settings: Settings, text: str) -> Root:
    """The root that ``text`` names: its ``root_id``, or its specification. Raises ConfigurationError."""
    with database.connection() as conn:
        if text.isascii() and text.isdigit():
            return store.get_root(conn, int(text))
        spec = catalog.parse_root(text)
        bases = {catalog.instance_of(server.url): server.url for server in settings.gitlab_servers()}
        found = [
            root
            for root in store.list_roots(conn, retired=True)
            if _is_named(root, spec, bases.get(root.instance))
        ]
    found = [root for root in found if root.lifecycle is Lifecycle.ACTIVE] or found
    if len(found) > 1:
        numbers = ", ".join(f"{root.root_id} ({root.instance})" for root in found)
        raise ConfigurationError(f"several roots are called {spec}; write the number instead: {numbers}")
    if not found:
        raise ConfigurationError(f"there is no root {spec}; see: scm-sync root list", code="unknown_root")
    return found[0]


def _is_named(root: Root, spec: RootSpec, base: str | None) -> bool:
    if root.scope != spec.scope:
        return False
    rest: str | None = spec.address
    if "://" in spec.address:
        rest = catalog.below(spec.address, base) if base is not None else None
    if rest is None or root.scope == "membership":
        return rest == ""
    return rest.removeprefix("groups/").casefold() in (str(root.group_id), (root.group_path or "").casefold())


def retire_root(database: Database, root_id: int) -> bool:
    """Visit a root no more; its repositories stay in the catalog and are synced. False if it was retired
    before."""
    with database.connection() as conn:
        return store.retire_root(conn, root_id)
