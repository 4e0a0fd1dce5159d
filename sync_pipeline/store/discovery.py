"""Discovery roots: ``scm.discovery_roots``, and how complete their listings of projects are held against the
catalog.

Belongs here: the rows of roots, which are due, which repositories their listings showed and missed. Does not
belong here: asking a server, and what follows from a project that is missed for long
(:mod:`sync_pipeline.operations.discovery`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

from sync_pipeline.errors import ConfigurationError
from sync_pipeline.model import Lifecycle
from sync_pipeline.store.database import Connection

# A root that is there, active or retired, takes the new patterns and is active from now on.
_CHANGE = """
UPDATE scm.discovery_roots AS r
   SET group_path = %(group_path)s, include = %(include)s, exclude = %(exclude)s, tenant = %(tenant)s,
       lifecycle = 'active'
  FROM (SELECT root_id, lifecycle FROM scm.discovery_roots
         WHERE instance = %(instance)s AND scope = %(scope)s AND group_id IS NOT DISTINCT FROM %(group_id)s
         ORDER BY root_id
         LIMIT 1) AS old
 WHERE r.root_id = old.root_id
RETURNING r.*, old.lifecycle = 'active' AS was_active
"""

# Makes a root; the unique index lets one of several at once win.
_INSERT = """
INSERT INTO scm.discovery_roots (instance, scope, group_id, group_path, include, exclude, tenant)
VALUES (%(instance)s, %(scope)s, %(group_id)s, %(group_path)s, %(include)s, %(exclude)s, %(tenant)s)
ON CONFLICT DO NOTHING
RETURNING *
"""

# One root by its key.
_GET = "SELECT * FROM scm.discovery_roots WHERE root_id = %(root_id)s"

# Every root, with or without the retired ones.
_LIST = """
SELECT * FROM scm.discovery_roots WHERE lifecycle = 'active' OR %(retired)s ORDER BY root_id
"""

# What the schedule visits: active roots that were never visited or not for so long.
_DUE = """
SELECT * FROM scm.discovery_roots
 WHERE lifecycle = 'active'
   AND (visited_at IS NULL OR visited_at <= clock_timestamp() - make_interval(secs => %(interval)s))
 ORDER BY visited_at NULLS FIRST, root_id
"""

# A retired root is not visited; its repositories stay.
_RETIRE = """
UPDATE scm.discovery_roots SET lifecycle = 'retired' WHERE root_id = %(root_id)s AND lifecycle = 'active'
RETURNING root_id
"""

# What a visit came to. A failure keeps what was known before.
_VISITED = """
UPDATE scm.discovery_roots
   SET visited_at = statement_timestamp(),
       completed_at = CASE WHEN %(error_code)s::text IS NULL THEN statement_timestamp() ELSE completed_at END,
       group_path = coalesce(%(group_path)s, group_path),
       error_code = %(error_code)s,
       error = left(%(error)s, 2000)
 WHERE root_id = %(root_id)s
"""

# The catalog's projects on one server, to hold a listing against: of each project the active repository, else
# the one retired last.
_PROJECTS = """
SELECT DISTINCT ON (r.project_id)
       r.repo_id, r.project_id, r.project_path, r.default_branch, r.lifecycle, r.root_id,
       r.marked_for_deletion_on AS marked_on,
       r.vanished_since IS NOT NULL AS is_vanished,
       coalesce(root.lifecycle = 'active', FALSE) AS has_active_root,
       coalesce((SELECT e.event = 'archived' FROM scm.repo_events AS e
                  WHERE e.repo_id = r.repo_id AND e.event IN ('archived', 'unarchived')
                  ORDER BY e.event_id DESC
                  LIMIT 1), FALSE) AS is_archived
  FROM scm.repos AS r
  LEFT JOIN scm.discovery_roots AS root USING (root_id)
 WHERE r.kind = 'gitlab' AND r.instance = %(instance)s
 ORDER BY r.project_id, r.lifecycle = 'active' DESC, r.repo_id DESC
"""

# A root takes over what it lists and no other active root answers for.
_ADOPT = """
UPDATE scm.repos SET root_id = %(root_id)s, updated_at = now()
 WHERE repo_id = ANY (%(repo_ids)s) AND lifecycle = 'active'
"""

# A listing shows what earlier ones missed.
_SEEN = """
UPDATE scm.repos SET vanished_since = NULL, vanished_looks = 0, updated_at = now()
 WHERE repo_id = ANY (%(repo_ids)s) AND lifecycle = 'active' AND vanished_since IS NOT NULL
RETURNING repo_id
"""

# A complete listing does not show these. Ripe are those that were missed often and long enough.
_MISSED = """
UPDATE scm.repos
   SET vanished_since = coalesce(vanished_since, now()), vanished_looks = vanished_looks + 1,
       updated_at = now()
 WHERE repo_id = ANY (%(repo_ids)s) AND lifecycle = 'active'
RETURNING repo_id, vanished_looks = 1 AS is_news,
          vanished_looks >= %(looks)s
          AND vanished_since <= now() - make_interval(secs => %(after)s) AS is_ripe
"""

# A project that its root no longer lists though it is still there: the root does not answer for it any more.
_LEAVE = """
UPDATE scm.repos SET root_id = NULL, vanished_since = NULL, vanished_looks = 0, updated_at = now()
 WHERE repo_id = %(repo_id)s AND lifecycle = 'active'
"""

# How many repositories each root answers for, for a person.
_COUNTS = """
SELECT root_id, count(*) FILTER (WHERE lifecycle = 'active') AS active,
       count(*) FILTER (WHERE lifecycle = 'active' AND vanished_since IS NOT NULL) AS vanished
  FROM scm.repos
 WHERE root_id IS NOT NULL
 GROUP BY root_id
"""

# The root of each repository, for a person.
_ROOTS_OF_REPOSITORIES = """
SELECT repo_id, root_id FROM scm.repos WHERE root_id IS NOT NULL
"""


@dataclass(frozen=True, slots=True)
class Root:
    """A row of ``scm.discovery_roots``. ``include`` and ``exclude`` are shell patterns of project paths, no
    ``include`` means all; ``tenant`` is that of everything found, None for the first segment of each path.
    ``error`` is why the last visit failed, None if it did not. Times are UTC."""

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
        place = "" if self.scope == "membership" else f":{self.group_path or self.group_id}"
        return f"gitlab:{self.scope}{place}"


@dataclass(frozen=True, slots=True)
class KnownProject:
    """What the catalog has about a project. ``has_active_root`` if an active root answers for it."""

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
    fields = {name: row[name] for name in Root.__dataclass_fields__}
    lists = {name: tuple(row[name]) for name in ("include", "exclude")}
    return Root(**{**fields, **lists, "lifecycle": Lifecycle(row["lifecycle"])})


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
        row = conn.execute(_CHANGE, params).fetchone()
        if row is not None:
            return _root(row), not row["was_active"]
        row = conn.execute(_INSERT, params).fetchone()
        if row is not None:
            return _root(row), True
        row = conn.execute(_CHANGE, params).fetchone()
        assert row is not None
        return _root(row), False


def get_root(conn: Connection, root_id: int) -> Root:
    """The root with this key. Raises ConfigurationError if there is none."""
    row = conn.execute(_GET, {"root_id": root_id}).fetchone()
    if row is None:
        raise ConfigurationError(f"there is no root {root_id}; see: scm-sync root list", code="unknown_root")
    return _root(row)


def list_roots(conn: Connection, *, retired: bool = False) -> list[Root]:
    """The roots by ``root_id``, with or without the retired ones."""
    return [_root(row) for row in conn.execute(_LIST, {"retired": retired})]


def due_roots(conn: Connection, interval: float) -> list[Root]:
    """Active roots that were not visited for ``interval`` seconds, the longest unvisited first."""
    return [_root(row) for row in conn.execute(_DUE, {"interval": interval})]


def retire_root(conn: Connection, root_id: int) -> bool:
    """Visit a root no more; False if it was retired before."""
    return conn.execute(_RETIRE, {"root_id": root_id}).fetchone() is not None


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
    conn.execute(_VISITED, params)


def projects(conn: Connection, instance: str) -> dict[int, KnownProject]:
    """Every project of a server that the catalog has, retired ones too, by project id."""
    rows = conn.execute(_PROJECTS, {"instance": instance})
    return {
        row["project_id"]: KnownProject(**{**row, "lifecycle": Lifecycle(row["lifecycle"])}) for row in rows
    }


def adopt(conn: Connection, root_id: int, repo_ids: Sequence[int]) -> None:
    """The root answers for these repositories from now on."""
    conn.execute(_ADOPT, {"root_id": root_id, "repo_ids": list(repo_ids)})


def record_seen(conn: Connection, repo_ids: Sequence[int]) -> list[int]:
    """A listing shows these; those that earlier ones had missed are returned."""
    return [row["repo_id"] for row in conn.execute(_SEEN, {"repo_ids": list(repo_ids)})]


def record_missed(conn: Connection, repo_ids: Sequence[int], *, looks: int, after: float) -> list[Missed]:
    """A complete listing does not show these. Ripe are those that ``looks`` listings in a row have missed,
    over at least ``after`` seconds."""
    params = {"repo_ids": list(repo_ids), "looks": looks, "after": after}
    return [Missed(**row) for row in conn.execute(_MISSED, params)]


def leave(conn: Connection, repo_id: int) -> None:
    """No root answers for this repository any more; it stays in the catalog."""
    conn.execute(_LEAVE, {"repo_id": repo_id})


def counts(conn: Connection) -> dict[int, tuple[int, int]]:
    """For each root, how many active repositories it answers for, and how many of them are missed."""
    return {row["root_id"]: (row["active"], row["vanished"]) for row in conn.execute(_COUNTS)}


def roots_of_repositories(conn: Connection) -> dict[int, int]:
    """The root that answers for each repository that has one: ``root_id`` by ``repo_id``."""
    return {row["repo_id"]: row["root_id"] for row in conn.execute(_ROOTS_OF_REPOSITORIES)}
