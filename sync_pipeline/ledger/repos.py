"""The catalog's rows: ``scm.repos``, what happened to them, and where the history of all of them begins.

Belongs here: inserting, finding, retiring and correcting repositories, ``scm.repo_events``. Does not belong
here: visiting a source, what registering means beyond the row
(:mod:`sync_pipeline.registry.registration`), discovery roots (:mod:`sync_pipeline.ledger.discovery`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC, date, datetime, time
from typing import TYPE_CHECKING, Any

from sync_pipeline.core import catalog
from sync_pipeline.core.catalog import RepositorySpec
from sync_pipeline.core.errors import ConfigurationError
from sync_pipeline.core.model import JobType, Kind, Repository
from sync_pipeline.database.pool import Connection
from sync_pipeline.database.queries import queries
from sync_pipeline.database.rows import only_row, only_value, read_row

if TYPE_CHECKING:
    from sync_pipeline.sources.gitlab.project import ProjectInfo

_SQL = queries("repos")


def _repository(row: dict[str, Any]) -> Repository:
    job_types = tuple(map(JobType, row["optional_job_types"]))
    return read_row(Repository, row, optional_job_types=job_types)


def insert_svn(
    conn: Connection,
    *,
    url: str,
    instance: str,
    tenant: str,
    svn_uuid: str,
    svn_root: str,
    svn_prefix: str,
    name: str = "",
) -> Repository | None:
    """Make the row of an SVN repository; None if the URL is registered and active. ``name`` is the alias that
    the settings give the server. Raises ConfigurationError where another server has it."""
    params = {
        "url": url,
        "instance": instance,
        "tenant": tenant,
        "svn_uuid": svn_uuid,
        "svn_root": svn_root,
        "svn_prefix": svn_prefix,
    }
    return _insert(conn, _SQL["insert_svn"], params, Kind.SVN, name, catalog.slug_of(url, svn_prefix))


def _insert(
    conn: Connection, statement: str, params: dict[str, Any], kind: Kind, name: str, slug: str, *numbers: int
) -> Repository | None:
    """Choose the names of a new repository and make its row. A slug that is taken gets ``numbers`` and then
    the ``repo_id``."""
    with conn.transaction():
        conn.execute(_SQL["lock_names"])
        row = only_row(conn.execute(_SQL["next_id"]))
        repo_id = int(row["repo_id"])
        alias = alias_of(conn, kind, params["instance"], name)
        slugs = catalog.slugs_for(slug, *numbers, repo_id)
        free = next(
            s for s in slugs if not conn.execute(_SQL["taken"], {"alias": alias, "slug": s}).fetchone()
        )
        made = conn.execute(
            statement, {**params, "repo_id": repo_id, "alias": alias, "slug": free}
        ).fetchone()
    return _repository(made) if made else None


def alias_of(conn: Connection, kind: Kind, instance: str, name: str) -> str:
    """The alias of a server: the one that it has, else ``name``, else one made from its host. Raises
    ConfigurationError where another server has ``name``."""
    known = conn.execute(_SQL["alias"], {"kind": str(kind), "instance": instance}).fetchone()
    if known is not None:
        return str(known["instance_slug"])
    if name:
        owner = conn.execute(_SQL["owner"], {"alias": name}).fetchone()
        if owner is not None:
            raise name_taken(name, (kind, instance), (owner["kind"], owner["instance"]))
        return name
    aliases = catalog.aliases_for(kind, instance)
    return next(
        alias for alias in aliases if conn.execute(_SQL["owner"], {"alias": alias}).fetchone() is None
    )


def name_taken(name: str, server: tuple[str, str], owner: tuple[str, str]) -> ConfigurationError:
    """The refusal of a name of ``server`` that is the alias of ``owner``; each is a kind and a host."""
    (kind, instance), (other_kind, other) = server, owner
    return ConfigurationError(
        f"the name {name!r} of the {kind} server {instance} is in the asset keys of the {other_kind} server "
        f"{other}; give {instance} another name",
        code="alias_taken",
    )


def get(conn: Connection, repo_id: int) -> Repository:
    """The repository with this key. Raises ConfigurationError if there is none."""
    row = conn.execute(_SQL["get"], {"repo_id": repo_id}).fetchone()
    if row is None:
        raise ConfigurationError(
            f"the catalog has no repository {repo_id}; see: scm-sync repo list", code="unknown_repository"
        )
    return _repository(row)


def insert_gitlab(
    conn: Connection,
    *,
    url: str,
    instance: str,
    tenant: str,
    project_id: int,
    project_path: str,
    default_branch: str | None,
    root_id: int | None = None,
    name: str = "",
) -> Repository | None:
    """Make the row of a project; None if it is registered and active. ``name`` and what it raises as for
    :func:`insert_svn`."""
    params = {
        "url": url,
        "instance": instance,
        "tenant": tenant,
        "project_id": project_id,
        "project_path": project_path,
        "default_branch": default_branch,
        "root_id": root_id,
    }
    slug = catalog.slug_of(project_path)
    return _insert(conn, _SQL["insert_gitlab"], params, Kind.GITLAB, name, slug, project_id)


def find(conn: Connection, spec: RepositorySpec) -> Repository | None:
    """The repository that ``spec`` names, as :func:`sync_pipeline.core.catalog.find`."""
    rows = conn.execute(_SQL["find"], {"kind": str(spec.kind), "address": spec.address}).fetchall()
    return catalog.find(map(_repository, rows), spec)


def by_project(conn: Connection, instance: str, project_id: int) -> Repository | None:
    """The active repository of this project, or None."""
    row = conn.execute(_SQL["by_project"], {"instance": instance, "project_id": project_id}).fetchone()
    return _repository(row) if row else None


def by_slug(conn: Connection, text: str) -> Repository | None:
    """The repository that ``text`` names, as ``<slug>`` or ``<alias>/<slug>``, or None. Raises
    ConfigurationError where several servers have such a slug."""
    alias, _, slug = text.rpartition("/")
    found = [_repository(row) for row in conn.execute(_SQL["by_slug"], {"slug": slug, "alias": alias})]
    if len(found) > 1:
        names = " or ".join(f"{one.instance_slug}/{one.slug} ({one.instance})" for one in found)
        raise ConfigurationError(
            f"several servers have a {slug!r}; write {names}",
            code="ambiguous_repository",
        )
    return found[0] if found else None


def list_all(conn: Connection, *, retired: bool = True) -> list[Repository]:
    """The catalog by ``repo_id``, with or without the retired ones."""
    return [_repository(row) for row in conn.execute(_SQL["list"], {"retired": retired})]


def retire(conn: Connection, repo_id: int, reason: str, *, vanished: bool = False) -> bool:
    """End the syncing of a repository; False if it was retired before. With ``vanished`` discovery takes it
    up again when it sees it again."""
    params = {"repo_id": repo_id, "reason": reason, "vanished": vanished}
    return conn.execute(_SQL["retire"], params).fetchone() is not None


def reactivate_svn(conn: Connection, *, url: str, svn_uuid: str, svn_root: str) -> Repository | None:
    """Take a retired repository up again if it is still the same one (URL, UUID, root); None if there is
    none such."""
    row = conn.execute(
        _SQL["reactivate_svn"], {"url": url, "svn_uuid": svn_uuid, "svn_root": svn_root}
    ).fetchone()
    return _repository(row) if row else None


def reactivate_gitlab(
    conn: Connection,
    *,
    instance: str,
    project_id: int,
    root_id: int | None = None,
    only_vanished: bool = False,
) -> Repository | None:
    """Take the retired repository of a project up again; None if there is none, or one is active. With
    ``only_vanished`` only one that discovery retired."""
    params = {
        "instance": instance,
        "project_id": project_id,
        "root_id": root_id,
        "only_vanished": only_vanished,
    }
    row = conn.execute(_SQL["reactivate_gitlab"], params).fetchone()
    return _repository(row) if row else None


def set_tenant(conn: Connection, repo_id: int, tenant: str, *, actor: str) -> None:
    """Make ``tenant`` the owner of a repository, with an event where it was another one."""
    conn.execute(_SQL["lock"], {"repo_id": repo_id})
    before = get(conn, repo_id).tenant
    if conn.execute(_SQL["set_tenant"], {"repo_id": repo_id, "tenant": tenant}).rowcount:
        record_event(conn, repo_id, "tenant", actor=actor, old=before, new=tenant)


def add_job_types(
    conn: Connection, repo_ids: Sequence[int], job_types: Collection[JobType]
) -> list[Repository]:
    """Note optional job types for active GitLab repositories; returns those that lacked some of them."""
    params = {"repo_ids": list(repo_ids), "job_types": sorted(map(str, job_types))}
    return [_repository(row) for row in conn.execute(_SQL["add_job_types"], params)]


def relocate_svn(
    conn: Connection, repo_id: int, *, old_url: str, url: str, instance: str, svn_root: str
) -> bool:
    """Give an active SVN repository its new address, and delete the state of the old one. False, without a
    change, if it is no longer at ``old_url``.
    """
    params = {
        "repo_id": repo_id,
        "old_url": old_url,
        "url": url,
        "instance": instance,
        "svn_root": svn_root,
    }
    if conn.execute(_SQL["relocate"], params).fetchone() is None:
        return False
    conn.execute(_SQL["reset_access"], params)
    conn.execute(_SQL["reset_hint"], params)
    return True


def copies(conn: Connection, *, svn_uuid: str, svn_prefix: str) -> list[Repository]:
    """The active repositories with this UUID of which the same part is registered."""
    rows = conn.execute(_SQL["copies"], {"svn_uuid": svn_uuid, "svn_prefix": svn_prefix})
    return [_repository(row) for row in rows]


def record_event(
    conn: Connection,
    repo_id: int,
    event: str,
    *,
    actor: str,
    old: str | None = None,
    new: str | None = None,
    reason: str | None = None,
) -> None:
    """Write down what happened to a repository as a whole; ``event`` is one of those that the table knows."""
    params = {"repo_id": repo_id, "event": event, "old": old, "new": new, "actor": actor, "reason": reason}
    conn.execute(_SQL["event"], params)


def events(conn: Connection, repo_id: int) -> list[dict[str, Any]]:
    """The events of a repository, oldest first: event, old_value, new_value, actor, created_at (UTC)."""
    return conn.execute(_SQL["events"], {"repo_id": repo_id}).fetchall()


def source_created_at(conn: Connection, repo_id: int, seen: datetime | None) -> datetime | None:
    """When the project was created at its server (UTC), from its first visit. It is ``seen``, the value of
    this visit, if no earlier visit had one.
    """
    params = {"repo_id": repo_id, "created_at": seen}
    row = conn.execute(_SQL["known_created"], params).fetchone()
    if row is not None and row["source_created_at"] is None and seen is not None:
        conn.execute(_SQL["created"], params)
        return seen
    return None if row is None else row["source_created_at"]


def record_project(conn: Connection, repo_id: int, look: ProjectInfo, *, actor: str) -> list[str]:
    """Record the result of a visit to a project, and an event for each change since the last one. Events are
    ``moved``, ``tenant``, ``default_branch``, ``archived``, ``unarchived``, ``pending_deletion``,
    ``restored``. Returns their names.

    A missing path or branch means that the source did not send it. The tenant follows a move if it is the
    first segment of the old path. A tenant that a person or a discovery root set stays.
    """
    key = {"repo_id": repo_id}
    if not _changes(conn.execute(_SQL["known"], key).fetchone(), look):
        return []
    with conn.transaction():
        conn.execute(_SQL["lock"], key)
        known = conn.execute(_SQL["known"], key).fetchone()
        changes = _changes(known, look)
        for event, (old, new) in changes.items():
            record_event(conn, repo_id, event, actor=actor, old=old, new=new)
        if known and changes:
            seen = {
                "path": look.path or known["project_path"],
                "default_branch": look.default_branch or known["default_branch"],
                "tenant": changes["tenant"][1] if "tenant" in changes else known["tenant"],
                "marked_on": look.marked_on,
            }
            conn.execute(_SQL["seen"], key | seen)
    return list(changes)


def _changes(known: dict[str, Any] | None, look: ProjectInfo) -> dict[str, tuple[str | None, str | None]]:
    """The events that follow from a look, each with the old and the new value."""
    if known is None:
        return {}
    found: dict[str, tuple[str | None, str | None]] = {}
    if look.path and look.path != known["project_path"]:
        found["moved"] = known["project_path"], look.path
        old, new = catalog.tenant_of(known["project_path"] or ""), catalog.tenant_of(look.path)
        if known["tenant"] == old != new:
            found["tenant"] = old, new
    if look.default_branch and look.default_branch != known["default_branch"]:
        found["default_branch"] = known["default_branch"], look.default_branch
    if look.is_archived != known["archived"]:
        found["archived" if look.is_archived else "unarchived"] = None, None
    before, marked_on = known["marked_for_deletion_on"], look.marked_on
    if marked_on != before:
        days = None if before is None else str(before), None if marked_on is None else str(marked_on)
        found["restored" if marked_on is None else "pending_deletion"] = days
    return found


def history_start(conn: Connection, floor: date) -> date | None:
    """The first day of the daily partitions: the oldest fact from ``floor`` on, in UTC. Once written it only
    ever moves earlier. None while there is no fact."""
    row = conn.execute(_SQL["history_start"], {"floor": datetime.combine(floor, time(), UTC)}).fetchone()
    found: date | None = row["history_start"] if row else None
    return found


def begin_history(conn: Connection, day: date, floor: date) -> None:
    """Let the daily partitions begin at ``day`` or earlier, at ``floor`` at the earliest: so the days of a
    project exist before its rows arrive."""
    conn.execute(_SQL["begin_history"], {"day": day, "floor": floor})


def head_revision(conn: Connection) -> int:
    """The largest revision known of any SVN repository, 0 if there is none."""
    return int(only_value(conn.execute(_SQL["head"])))


def lock_snapshot(conn: Connection) -> None:
    """Hold back every other writer of the catalog snapshot until the caller's transaction ends."""
    conn.execute(_SQL["lock_snapshot"])
