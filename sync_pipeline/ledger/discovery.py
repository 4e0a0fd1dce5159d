"""Discovery roots: ``scm.discovery_roots``, and how complete their listings of projects are held against the
catalog.

Belongs here: the rows of roots, which are due, which repositories their listings showed and missed. Does not
belong here: asking a server, and what follows from a project that is missed for long
(:mod:`sync_pipeline.registry.discovery`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

from sync_pipeline.core.errors import ConfigurationError
from sync_pipeline.core.model import Lifecycle
from sync_pipeline.database.pool import Connection
from sync_pipeline.database.queries import queries
from sync_pipeline.database.rows import only_row, read_row

_SQL = queries("discovery")


@dataclass(frozen=True, slots=True)
class Root:
    """A row of ``scm.discovery_roots``. ``include`` and ``exclude`` are shell patterns of project paths; an
    empty ``include`` means all. ``tenant`` is that of all its projects, None for the first segment of each
    path. ``error`` is why the last visit failed, None if it did not. Times are UTC.
    """

    root_id: int
    instance: str
    scope: str
    group_id: int | None
    group_path: str | None
    include: tuple[str, ...]
    exclude: tuple[str, ...]
    tenant: str | None
    lifecycle: Lifecycle
    created_at: datetime
    visited_at: datetime | None
    completed_at: datetime | None
    error_code: str | None
    error: str | None

    def __str__(self) -> str:
        namespace = "" if self.scope == "membership" else f":{self.group_path or self.group_id}"
        return f"gitlab:{self.scope}{namespace}"


@dataclass(frozen=True, slots=True)
class KnownProject:
    """A project in the catalog. ``has_active_root``: it belongs to an active root."""

    repo_id: int
    project_id: int
    project_path: str | None
    default_branch: str | None
    lifecycle: Lifecycle
    root_id: int | None
    is_vanished: bool
    has_active_root: bool
    is_archived: bool
    marked_on: date | None = None


@dataclass(frozen=True, slots=True)
class Missed:
    """A repository that a complete listing did not show: for the first time (``is_news``), or often and long
    enough to be looked for (``is_ripe``)."""

    repo_id: int
    is_news: bool
    is_ripe: bool


def _root(row: dict[str, Any]) -> Root:
    return read_row(Root, row, include=tuple(row["include"]), exclude=tuple(row["exclude"]))


def add_root(
    conn: Connection,
    *,
    instance: str,
    scope: str,
    group_id: int | None,
    group_path: str | None,
    include: Sequence[str],
    exclude: Sequence[str],
    tenant: str | None,
) -> tuple[Root, bool]:
    """The root, made or taken up again, with these patterns; False if it was there and active before."""
    params = {
        "instance": instance,
        "scope": scope,
        "group_id": group_id,
        "group_path": group_path,
        "include": list(include),
        "exclude": list(exclude),
        "tenant": tenant,
    }
    with conn.transaction():
        row = conn.execute(_SQL["change"], params).fetchone()
        if row is not None:
            return _root(row), not row["was_active"]
        row = conn.execute(_SQL["insert"], params).fetchone()
        if row is not None:
            return _root(row), True
        row = only_row(conn.execute(_SQL["change"], params))
        return _root(row), False


def get_root(conn: Connection, root_id: int) -> Root:
    """The root with this key. Raises ConfigurationError if there is none."""
    row = conn.execute(_SQL["get"], {"root_id": root_id}).fetchone()
    if row is None:
        raise ConfigurationError(f"there is no root {root_id}; see: scm-sync root list", code="unknown_root")
    return _root(row)


def list_roots(conn: Connection, *, retired: bool = False) -> list[Root]:
    """The roots by ``root_id``, with or without the retired ones."""
    return [_root(row) for row in conn.execute(_SQL["list"], {"retired": retired})]


def due_roots(conn: Connection, interval: float) -> list[Root]:
    """Active roots that were not visited for ``interval`` seconds, the longest unvisited first."""
    return [_root(row) for row in conn.execute(_SQL["due"], {"interval": interval})]


def retire_root(conn: Connection, root_id: int) -> bool:
    """Visit a root no more; False if it was retired before."""
    return conn.execute(_SQL["retire"], {"root_id": root_id}).fetchone() is not None


def record_visit(
    conn: Connection,
    root_id: int,
    *,
    group_path: str | None = None,
    error_code: str | None = None,
    error: str | None = None,
) -> None:
    """Write down that a root was listed to its end, or with ``error_code`` that it was not."""
    params = {"root_id": root_id, "group_path": group_path, "error_code": error_code, "error": error}
    conn.execute(_SQL["visited"], params)


def projects(conn: Connection, instance: str) -> dict[int, KnownProject]:
    """Every project of a server that the catalog has, retired ones too, by project id."""
    rows = conn.execute(_SQL["projects"], {"instance": instance})
    return {row["project_id"]: read_row(KnownProject, row) for row in rows}


def adopt(conn: Connection, root_id: int, repo_ids: Sequence[int]) -> None:
    """The root answers for these repositories from now on."""
    conn.execute(_SQL["adopt"], {"root_id": root_id, "repo_ids": list(repo_ids)})


def record_seen(conn: Connection, repo_ids: Sequence[int]) -> list[int]:
    """A listing shows these; those that earlier ones had missed are returned."""
    return [row["repo_id"] for row in conn.execute(_SQL["seen"], {"repo_ids": list(repo_ids)})]


def record_missed(
    conn: Connection, repo_ids: Sequence[int], *, confirmations: int, after: float
) -> list[Missed]:
    """A complete listing does not show these. Ripe are those that ``confirmations`` listings in a row
    have missed, over at least ``after`` seconds."""
    params = {"repo_ids": list(repo_ids), "confirmations": confirmations, "after": after}
    return [Missed(**row) for row in conn.execute(_SQL["missed"], params)]


def leave(conn: Connection, repo_id: int) -> None:
    """No root answers for this repository any more; it stays in the catalog."""
    conn.execute(_SQL["leave"], {"repo_id": repo_id})


def counts(conn: Connection) -> dict[int, tuple[int, int]]:
    """For each root, how many active repositories it answers for, and how many of them are missed."""
    return {row["root_id"]: (row["active"], row["vanished"]) for row in conn.execute(_SQL["counts"])}


def roots_of_repositories(conn: Connection) -> dict[int, int]:
    """The root that answers for each repository that has one: ``root_id`` by ``repo_id``."""
    return {row["repo_id"]: row["root_id"] for row in conn.execute(_SQL["roots_of_repositories"])}
