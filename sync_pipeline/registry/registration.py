"""Taking repositories into the catalog and out of it.

Belongs here: the work of ``scm-sync repo add|retire`` and ``scm-sync catalog export``. They visit the source,
create the rows of a new repository, queue its history, read ``repos.toml`` and write the snapshot file. Does
not belong here: GitLab projects (:mod:`sync_pipeline.registry.projects`), discovery roots, the reload of
Dagster (``orchestration.catalog_changes``), printing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Protocol

from sync_pipeline.core import catalog, clock
from sync_pipeline.core import job_types as declared
from sync_pipeline.core.catalog import RepositorySpec
from sync_pipeline.core.errors import ConfigurationError, Permanent, SyncError
from sync_pipeline.core.formatting import given_reason
from sync_pipeline.core.model import (
    JobRequest,
    JobType,
    Kind,
    Mode,
    Repository,
    RevisionWindow,
    Trigger,
    Visit,
    Window,
)
from sync_pipeline.database.pool import Connection, Database
from sync_pipeline.ledger import jobs, repos, watermarks
from sync_pipeline.policy.history import HISTORY_PRIORITY
from sync_pipeline.registry import projects
from sync_pipeline.registry.projects import ClientOf, Estimate
from sync_pipeline.runtime import environment
from sync_pipeline.settings import Settings
from sync_pipeline.settings.files import parse_toml
from sync_pipeline.sync.readers import Readers


class Visitor(Protocol):
    """Whatever can look at an SVN repository's front door."""

    def visit(self) -> Visit:
        """UUID, root and HEAD. Raises the exceptions of :mod:`sync_pipeline.core.errors`."""
        ...


ReaderFactory = Callable[[str], Visitor]
"""Makes the visitor of a URL."""


@dataclass(frozen=True, slots=True)
class Registered:
    """The result of registering a repository, or of its ``dry_run``.

    ``repository`` is None only for a dry run of a new one. ``created`` is False if it existed before; then
    nothing was changed. ``again``: a retired one became active again. ``origin`` is where live syncing
    begins, a revision or a UTC time. ``history`` are the windows queued as low-priority backfill, for merge
    requests and reviews alike. ``path`` and ``estimate`` are a GitLab project's, the latter of a dry run.
    ``added`` are optional job types that it did not have.
    """

    spec: RepositorySpec
    created: bool
    dry_run: bool
    repository: Repository | None
    head: int | None = None
    origin: int | datetime | None = None
    history: tuple[Window, ...] = ()
    again: bool = False
    path: str | None = None
    estimate: Estimate | None = None
    tenant_before: str | None = None
    added: tuple[JobType, ...] = ()


@dataclass(frozen=True, slots=True)
class Listed:
    """An entry of ``repos.toml``: what it says, or why it cannot be used."""

    text: str
    spec: RepositorySpec | None = None
    tenant: str | None = None
    job_types: tuple[JobType, ...] = ()
    problem: str | None = None


def add_repository(
    database: Database,
    settings: Settings,
    spec: RepositorySpec,
    *,
    tenant: str | None = None,
    job_types: Collection[JobType] = (),
    actor: str,
    reader_factory: ReaderFactory,
    client_of: ClientOf | None = None,
    dry_run: bool = False,
    second_copy: bool = False,
) -> Registered:
    """Register ``spec``, as :func:`_add` does. A given ``tenant`` also replaces that of a registered
    repository. ``job_types`` and those of the settings are optional ones that it gets as well."""
    if job_types and spec.kind is not Kind.GITLAB:
        raise ConfigurationError(f"{spec} cannot sync {' and '.join(job_types)}; this is for GitLab projects")
    found = _add(database, settings, spec, tenant, actor, reader_factory, client_of, dry_run, second_copy)
    found = _with_job_types(database, found, {*job_types, *settings.gitlab.optional_job_types}, actor)
    known = found.repository
    if tenant is None or known is None or known.tenant == tenant:
        return found
    if not dry_run:
        with database.connection() as conn, conn.transaction():
            repos.set_tenant(conn, known.repo_id, tenant, actor=actor)
    return replace(found, repository=replace(known, tenant=tenant), tenant_before=known.tenant)


def _with_job_types(
    database: Database, found: Registered, job_types: Collection[JobType], actor: str
) -> Registered:
    """Add the optional job types that a GitLab project lacks."""
    known = found.repository
    own = () if known is None else known.optional_job_types
    added = tuple(sorted(set(job_types) - set(own)))
    if not added or found.spec.kind is not Kind.GITLAB:
        return found
    if known is not None and not found.dry_run:
        with database.connection() as conn, conn.transaction():
            for changed in projects.add_job_types(conn, [known.repo_id], added, actor=actor):
                known = changed
    return replace(found, repository=known, added=added)


def _add(
    database: Database,
    settings: Settings,
    spec: RepositorySpec,
    tenant: str | None,
    actor: str,
    reader_factory: ReaderFactory,
    client_of: ClientOf | None,
    dry_run: bool,
    second_copy: bool,
) -> Registered:
    """Register ``spec``: its row, its coverage and the older history as backfill jobs, all or nothing. The
    coverage begins at the origin (SVN: the start of the block that contains HEAD; GitLab: some days ago).
    ``client_of`` makes clients of GitLab servers, by default those of the settings.

    A retired repository becomes active again, with its rows and assets, if UUID and root, or the number of
    the project, are unchanged. Two calls at once are harmless: one registers, the other finds it registered.
    An SVN repository whose UUID is known under another address is refused unless ``second_copy``.

    Raises ConfigurationError if a person has to change something (address, credentials), Transient if the
    source does not answer now.
    """
    if spec.kind is Kind.GITLAB:
        make = client_of or Readers(settings, database).gitlab
        return _add_project(database, settings, spec, tenant, actor, make, dry_run)
    instance = catalog.instance_of(spec.address)
    with database.connection() as conn:
        known = repos.find(conn, spec)
        if known is not None and known.lifecycle == "active":
            return Registered(spec, created=False, dry_run=dry_run, repository=known)
        repos.alias_of(conn, Kind.SVN, instance, settings.server_name(Kind.SVN, instance))
    # No connection is held while the network is used.
    visit = visit_source(spec.address, reader_factory)
    prefix = catalog.svn_prefix_of(spec.address, visit.root)
    with database.connection() as conn:
        copies = () if second_copy else repos.copies(conn, svn_uuid=visit.uuid, svn_prefix=prefix)
    # Another process may have registered the same address meanwhile.
    for known in (one for one in copies if one.url != spec.address):
        raise ConfigurationError(
            f"{spec.address} has the UUID of repository {known.repo_id} ({known.url}); if that has moved, "
            f"keep its rows: scm-sync repo relocate {known.repo_id} {spec.address} --reason TEXT; for a "
            "second copy with rows of its own add --second-copy",
            code="known_uuid",
        )
    origin = catalog.block_of(visit.head).first
    history = tuple(catalog.blocks(RevisionWindow(1, origin)))
    if dry_run:
        return Registered(spec, True, True, None, visit.head, origin, history)
    with database.connection() as conn, conn.transaction():
        known = repos.reactivate_svn(conn, url=spec.address, svn_uuid=visit.uuid, svn_root=visit.root)
        if known is not None:
            history = _uncovered(conn, known)
            _queue(conn, settings, known, history, actor, "history after it was taken up again")
            repos.record_event(conn, known.repo_id, "reactivated", actor=actor)
            return Registered(spec, True, False, known, visit.head, None, history, again=True)
        repository = repos.insert_svn(
            conn,
            url=spec.address,
            instance=instance,
            tenant=tenant or catalog.tenant_of(spec.address),
            svn_uuid=visit.uuid,
            svn_root=visit.root,
            svn_prefix=prefix,
            name=settings.server_name(Kind.SVN, instance),
        )
        if repository is None:
            return Registered(spec, created=False, dry_run=False, repository=repos.find(conn, spec))
        watermarks.register(
            conn,
            repo_id=repository.repo_id,
            job_type=JobType.REVISIONS,
            origin_rev=origin,
            head_rev=visit.head,
            actor=actor,
            reason="registered",
        )
        _queue(conn, settings, repository, history, actor, "history before registration")
        repos.record_event(conn, repository.repo_id, "registered", actor=actor)
    return Registered(spec, True, False, repository, visit.head, origin, history)


def _add_project(
    database: Database,
    settings: Settings,
    spec: RepositorySpec,
    tenant: str | None,
    actor: str,
    client_of: ClientOf,
    dry_run: bool,
) -> Registered:
    by_number = spec.address.isdigit()
    form = f"gitlab:{{}}/{'projects/' if by_number else ''}{spec.address}"
    server, rest = projects.server_of(settings.gitlab_servers(), spec.address, form)
    instance = catalog.instance_of(server.url)
    named = projects.number_or_path(rest, "projects")
    if isinstance(named, int) and (known := _active(database, instance, named)):
        return Registered(spec, created=False, dry_run=dry_run, repository=known, path=known.project_path)
    with database.connection() as conn:
        repos.alias_of(conn, Kind.GITLAB, instance, server.name)
    # Of a path only the server knows whose it is now. No connection is held while the network is used.
    client = client_of(instance)
    info = projects.find_project(client, named)
    if known := _active(database, instance, info.project_id):
        return Registered(spec, created=False, dry_run=dry_run, repository=known, path=info.path)
    now = info.date or clock.now()
    origin = projects.origin_of(now, settings)
    with projects.refusals(client):
        ages = (info.created_at, projects.oldest_merge_request(client, info.project_id))
        oldest = min((age for age in ages if age), default=None)
        takes = None
        if dry_run:
            rate = settings.rate_limit.start
            takes = projects.estimate(client, info.project_id, settings.gitlab.parallel, rate)
    if dry_run:
        history = projects.history_before(origin, oldest, now, settings)
        return Registered(spec, True, True, None, None, origin, history, path=info.path, estimate=takes)
    with database.connection() as conn, conn.transaction():
        made = projects.register(
            conn,
            settings,
            server.url,
            info,
            origin=origin,
            oldest=oldest,
            tenant=tenant,
            root_id=None,
            actor=actor,
        )
    repository = made.repository
    if repository is None:
        known = _active(database, instance, info.project_id)
        return Registered(spec, created=False, dry_run=False, repository=known, path=info.path)
    return Registered(
        spec,
        created=True,
        dry_run=False,
        repository=repository,
        origin=None if made.again else origin,
        history=made.history,
        again=made.again,
        path=info.path,
    )


def _active(database: Database, instance: str, project_id: int) -> Repository | None:
    with database.connection() as conn:
        return repos.by_project(conn, instance, project_id)


def _uncovered(conn: Connection, repository: Repository) -> tuple[RevisionWindow, ...]:
    """The history before the origin that is not covered, cut at blocks."""
    row = watermarks.get(conn, repository.repo_id, JobType.REVISIONS)
    assert isinstance(row.origin, int)
    before = RevisionWindow(1, max(1, row.origin))
    gaps = watermarks.missing(conn, repository.repo_id, JobType.REVISIONS, before) if len(before) else ()
    return tuple(b for gap in gaps if isinstance(gap, RevisionWindow) for b in catalog.blocks(gap))


def _queue(
    conn: Connection,
    settings: Settings,
    repository: Repository,
    blocks: Iterable[RevisionWindow],
    actor: str,
    reason: str,
) -> None:
    for block in blocks:
        jobs.enqueue(
            conn,
            JobRequest(
                repo_id=repository.repo_id,
                job_type=JobType.REVISIONS,
                mode=Mode.BACKFILL,
                trigger=Trigger.REGISTRATION,
                actor=actor,
                reason=reason,
                window=block,
                priority=HISTORY_PRIORITY,
            ),
            max_attempts=settings.jobs.max_attempts,
        )


def visit_source(url: str, reader_factory: ReaderFactory) -> Visit:
    """Look at the repository behind ``url``. Raises ConfigurationError where a person named a wrong address
    or has no access, Transient where the server does not answer now."""
    try:
        return reader_factory(url).visit()
    except Permanent as error:
        raise ConfigurationError(str(error), code=error.code) from error


def retire_repository(database: Database, repo_id: int, *, reason: str, actor: str) -> bool:
    """Stop syncing a repository. Its rows, assets and history stay; its waiting jobs are cancelled. False,
    and no change, if it was retired before. Raises ConfigurationError without a reason."""
    reason = given_reason(reason)
    with database.connection() as conn, conn.transaction():
        if not repos.retire(conn, repo_id, f"{reason} ({actor})"):
            return False
        repos.record_event(conn, repo_id, "retired", actor=actor, new=reason)
        jobs.cancel_pending(conn, repo_id, f"repository retired by {actor}: {reason}")
    return True


def find_repository(database: Database, text: str) -> Repository:
    """The repository that ``text`` names: a specification, a ``repo_id``, ``<slug>`` or ``<alias>/<slug>``.
    Raises ConfigurationError if the catalog has none."""
    with database.connection() as conn:
        found: Repository | None
        if text.isascii() and text.isdigit():
            found = repos.get(conn, int(text))
        elif ":" not in text:
            found = repos.by_slug(conn, text)
        else:
            spec = catalog.parse_spec(text)
            found = repos.find(conn, spec)
            if found is None:
                raise catalog.unknown_repository(spec, repos.list_all(conn))
        if found is None:
            is_path = any(one.project_path == text for one in repos.list_all(conn))
            hint = f"write gitlab:{text}" if is_path else "see: scm-sync repo list"
            raise ConfigurationError(
                f"the catalog has no repository {text!r}; {hint}", code="unknown_repository"
            )
    return found


def export_catalog(database: Database, settings: Settings) -> catalog.CatalogSnapshot:
    """Write the catalog to the snapshot file, from which the code location loads."""
    with database.connection() as conn, conn.transaction():
        repos.lock_snapshot(conn)
        return catalog.write_snapshot(
            settings.catalog_file,
            repos.list_all(conn),
            head_rev=repos.head_revision(conn),
            written_at=clock.now(),
            history_start=repos.history_start(conn, settings.gitlab.history_floor),
        )


def snapshot_lacks(path: Path, repositories: Iterable[Repository]) -> bool:
    """True if the snapshot file at ``path`` lacks some of ``repositories`` or is unusable. The catalog
    changed after it was written, or an earlier command was killed in between.
    """
    try:
        known = set(catalog.read_snapshot(path).repositories)
    except ConfigurationError:
        return True
    return not known.issuperset(repositories)


def read_list(path: Path) -> tuple[Listed, ...]:
    """The entries of a ``repos.toml``, good and bad. Raises ConfigurationError if the file as a whole is
    unusable; nothing is added then."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        example = environment.config_file("repos.example.toml")
        raise ConfigurationError(f"there is no file {path}; copy {example}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{path} is not UTF-8; save it as UTF-8") from None
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from None
    content = parse_toml(text, path)
    entries = content.pop("repository", None)
    if content:
        raise ConfigurationError(f"{path}: unknown key {next(iter(content))}; write [[repository]] entries")
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, dict) for entry in entries):
        raise ConfigurationError(
            f'{path} lists nothing; write [[repository]] and below it spec = "svn:<url>" or "gitlab:<id>"'
        )
    return tuple(listed(entry, f"entry {number}") for number, entry in enumerate(entries, 1))


def listed(entry: Mapping[str, object], text: str) -> Listed:
    """One entry; ``text`` names it where it has no usable specification."""
    for key, value in entry.items():
        if key not in ("spec", "tenant", "with"):
            return Listed(text, problem=f"unknown key {key}; the keys are spec, tenant and with")
        if not isinstance(value, str) or not value.strip():
            return Listed(text, problem=f"{key} has to be a text that is not empty")
    if "spec" not in entry:
        return Listed(text, problem='it has no spec; write spec = "svn:<url>" or "gitlab:<id>"')
    try:
        spec = catalog.parse_spec(str(entry["spec"]))
        optional = optional_job_types(str(entry.get("with", "")).split())
    except ConfigurationError as error:
        return Listed(text, problem=str(error))
    tenant = entry.get("tenant")
    return Listed(str(spec), spec=spec, tenant=None if tenant is None else str(tenant), job_types=optional)


def optional_job_types(names: Iterable[str]) -> tuple[JobType, ...]:
    """The optional job types of these names. Raises ConfigurationError for one that is not optional."""
    try:
        return declared.optional_job_types(names)
    except ValueError as error:
        raise ConfigurationError(str(error)) from None


def add_listed(
    database: Database,
    settings: Settings,
    entries: tuple[Listed, ...],
    *,
    actor: str,
    reader_factory: ReaderFactory,
    client_of: ClientOf | None = None,
    dry_run: bool = False,
    second_copy: bool = False,
) -> Iterator[tuple[Listed, Registered | SyncError]]:
    """Register each entry and yield what became of it; a bad one does not stop the others."""
    client_of = client_of or Readers(settings, database).gitlab
    for entry in entries:
        try:
            if entry.spec is None:
                raise ConfigurationError(entry.problem or "it has no spec")
            yield (
                entry,
                add_repository(
                    database,
                    settings,
                    entry.spec,
                    tenant=entry.tenant,
                    job_types=entry.job_types,
                    actor=actor,
                    reader_factory=reader_factory,
                    client_of=client_of,
                    dry_run=dry_run,
                    second_copy=second_copy,
                ),
            )
        except SyncError as error:
            if error.code in ("database_busy", "database_down"):
                raise  # it is not the entry that is bad, and the next one would wait as long
            yield entry, error
