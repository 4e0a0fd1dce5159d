"""The catalog's rows: ``scm.repos``, what happened to them, and where the history of all of them begins.

Belongs here: inserting, finding, retiring and correcting repositories, ``scm.repo_events``. Does not belong
here: visiting a source, what registering means beyond the row
(:mod:`sync_pipeline.operations.registration`), discovery roots (:mod:`sync_pipeline.store.discovery`).
"""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from typing import Any

from sync_pipeline import catalog
from sync_pipeline.catalog import RepositorySpec
from sync_pipeline.errors import ConfigurationError
from sync_pipeline.model import Kind, Lifecycle, Repository
from sync_pipeline.store.database import Connection

# One registration at a time chooses names, so that two never choose the same. Until the transaction ends.
_LOCK_NAMES = "SELECT pg_advisory_xact_lock(hashtext('scm repository names'))"

# The alias of a server: that of the repository registered last there. A repository that was relocated from
# another server brought an alias along, which stays the other one's while that has a repository.
_ALIAS = """
SELECT r.instance_slug FROM scm.repos AS r
 WHERE r.kind = %(kind)s AND r.instance = %(instance)s
   AND NOT (EXISTS (SELECT FROM scm.repo_events AS e
                     WHERE e.repo_id = r.repo_id AND r.kind = 'svn' AND e.event = 'moved'
                       AND r.instance <> coalesce(
                           nullif(substring(e.old_value, '^[^:]+://(?:[^/@]*@)?([^/]*)'), ''), 'local'))
            AND EXISTS (SELECT FROM scm.repos AS o
                         WHERE o.instance_slug = r.instance_slug AND o.instance <> r.instance))
 ORDER BY r.repo_id DESC
 LIMIT 1
"""

# Which server has an alias, where one has it.
_OWNER = "SELECT kind, instance FROM scm.repos WHERE instance_slug = %(alias)s ORDER BY repo_id LIMIT 1"

# Whether a key of an asset is taken, also by a retired repository.
_TAKEN = "SELECT 1 FROM scm.repos WHERE instance_slug = %(alias)s AND slug = %(slug)s"

_NEXT_ID = "SELECT nextval(pg_get_serial_sequence('scm.repos', 'repo_id')) AS repo_id"

# Makes the row unless the place is registered and active.
_INSERT_SVN = """
INSERT INTO scm.repos
       (repo_id, kind, instance, instance_slug, tenant, slug, url, svn_uuid, svn_root, svn_prefix)
OVERRIDING SYSTEM VALUE
VALUES (%(repo_id)s, 'svn', %(instance)s, %(alias)s, %(tenant)s, %(slug)s, %(url)s, %(svn_uuid)s,
        %(svn_root)s, %(svn_prefix)s)
ON CONFLICT (kind, md5(url)) WHERE lifecycle = 'active' DO NOTHING
RETURNING *
"""

# Makes the row unless the project is registered and active.
_INSERT_GITLAB = """
INSERT INTO scm.repos
       (repo_id, kind, instance, instance_slug, tenant, slug, url, project_id, project_path, default_branch,
        root_id)
OVERRIDING SYSTEM VALUE
VALUES (%(repo_id)s, 'gitlab', %(instance)s, %(alias)s, %(tenant)s, %(slug)s, %(url)s, %(project_id)s,
        %(project_path)s, %(default_branch)s, %(root_id)s)
ON CONFLICT DO NOTHING
RETURNING *
"""

# One repository by its key.
_GET = "SELECT * FROM scm.repos WHERE repo_id = %(repo_id)s"

# The repositories that a person's name for one may mean; which of them it is, is the catalog's rule.
_FIND = """
SELECT * FROM scm.repos
 WHERE kind = %(kind)s
   AND CASE kind WHEN 'svn' THEN md5(url) = md5(%(address)s) AND url = %(address)s
                 ELSE project_id::text = %(address)s
                   OR lower(%(address)s)
                      IN (lower(project_path), lower(url),
                          lower(left(url, -length('/projects/' || project_id)) || '/' || project_path)) END
"""

# The active repository of a project.
_BY_PROJECT = """
SELECT * FROM scm.repos
 WHERE kind = 'gitlab' AND instance = %(instance)s AND project_id = %(project_id)s AND lifecycle = 'active'
"""

# Repositories by the second part of their asset key, which one of each server may have; or by the first two.
_BY_SLUG = """
SELECT * FROM scm.repos
 WHERE slug = %(slug)s AND (instance_slug = %(alias)s OR %(alias)s = '')
 ORDER BY repo_id
"""

# The whole catalog.
_LIST = "SELECT * FROM scm.repos WHERE lifecycle = 'active' OR %(retired)s ORDER BY repo_id"

# Ends the syncing of a repository; its rows stay. No row if it was retired before. Only one that discovery
# retires keeps the mark of having vanished: another one stays retired until a person says otherwise.
_RETIRE = """
UPDATE scm.repos
   SET lifecycle = 'retired', retired_reason = %(reason)s, updated_at = now(),
       vanished_since = CASE WHEN %(vanished)s THEN vanished_since END
 WHERE repo_id = %(repo_id)s AND lifecycle = 'active'
RETURNING repo_id
"""

# A retired repository that is still the same one is taken up again with its rows and its assets. One whose
# history was rewritten has the same UUID and is not.
_REACTIVATE_SVN = """
UPDATE scm.repos
   SET lifecycle = 'active', retired_reason = NULL, updated_at = now()
 WHERE repo_id = (SELECT repo_id FROM scm.repos
                   WHERE kind = 'svn' AND md5(url) = md5(%(url)s) AND url = %(url)s AND lifecycle = 'retired'
                     AND svn_uuid = %(svn_uuid)s AND svn_root = %(svn_root)s
                     AND NOT EXISTS (SELECT FROM scm.sync_watermarks AS w
                                      WHERE w.repo_id = repos.repo_id AND w.access = 'replaced')
                   ORDER BY repo_id DESC
                   LIMIT 1)
   AND lifecycle = 'retired'
RETURNING *
"""

# The new address of a repository; its asset key, tenant, rows and coverage stay.
_RELOCATE = """
UPDATE scm.repos
   SET url = %(url)s, instance = %(instance)s, svn_root = %(svn_root)s, updated_at = now()
 WHERE repo_id = %(repo_id)s AND kind = 'svn' AND lifecycle = 'active' AND url = %(old_url)s
RETURNING repo_id
"""

# What was wrong at the old address says nothing about the new one. But a repository that was replaced needs
# the proof of its whole history, and relocating compares only the newest revisions.
_FORGET_ACCESS = """
UPDATE scm.sync_watermarks
   SET access = 'ok', access_detail = NULL, access_since = now()
 WHERE repo_id = %(repo_id)s AND access IN ('denied', 'moved', 'gone')
"""

# Neither does what the sensor saw there.
_FORGET_HINT = "DELETE FROM scm.sync_hints WHERE repo_id = %(repo_id)s"

# Active repositories that are the same one, or copies of each other.
_COPIES = """
SELECT * FROM scm.repos
 WHERE kind = 'svn' AND lifecycle = 'active' AND svn_uuid = %(svn_uuid)s AND svn_prefix = %(svn_prefix)s
 ORDER BY repo_id
"""

# The same for a project, which its number tells. Discovery takes up only what it retired itself.
_REACTIVATE_GITLAB = """
UPDATE scm.repos
   SET lifecycle = 'active', retired_reason = NULL, vanished_since = NULL, vanished_looks = 0,
       root_id = coalesce(%(root_id)s, root_id), updated_at = now()
 WHERE repo_id = (SELECT repo_id FROM scm.repos
                   WHERE kind = 'gitlab' AND instance = %(instance)s AND project_id = %(project_id)s
                   ORDER BY lifecycle = 'active' DESC, repo_id DESC
                   LIMIT 1)
   AND lifecycle = 'retired'
   AND (vanished_since IS NOT NULL OR NOT %(only_vanished)s)
RETURNING *
"""

# What a look at a project is compared with. The state archived is that of the last such event.
_KNOWN = """
SELECT r.project_path, r.default_branch, r.tenant, r.marked_for_deletion_on,
       coalesce((SELECT e.event = 'archived' FROM scm.repo_events AS e
                  WHERE e.repo_id = r.repo_id AND e.event IN ('archived', 'unarchived')
                  ORDER BY e.event_id DESC
                  LIMIT 1), FALSE) AS archived
  FROM scm.repos AS r
 WHERE r.repo_id = %(repo_id)s
"""

# Holds the row, so that of two visits that see the same change one writes it.
_LOCK = "SELECT repo_id FROM scm.repos WHERE repo_id = %(repo_id)s FOR NO KEY UPDATE"

# What a look showed, where it showed anything.
_SEEN = """
UPDATE scm.repos
   SET project_path = %(path)s, default_branch = %(default_branch)s, tenant = %(tenant)s,
       marked_for_deletion_on = %(marked_on)s, updated_at = now()
 WHERE repo_id = %(repo_id)s
"""

# A person gives it to another owner, or it moved to one.
_SET_TENANT = """
UPDATE scm.repos SET tenant = %(tenant)s, updated_at = now()
 WHERE repo_id = %(repo_id)s AND tenant <> %(tenant)s
"""

# Something happened to a repository as a whole.
_EVENT = """
INSERT INTO scm.repo_events (repo_id, event, old_value, new_value, actor, reason)
VALUES (%(repo_id)s, %(event)s, %(old)s, %(new)s, %(actor)s, %(reason)s)
"""

# What happened to a repository, oldest first, for a person.
_EVENTS = """
SELECT event, old_value, new_value, actor, reason, created_at FROM scm.repo_events
 WHERE repo_id = %(repo_id)s
 ORDER BY event_id
"""

# The first day of the daily partitions: it only ever moves to an earlier one. Dates before the floor belong
# to the window in front of it, dates in the future to nobody.
_HISTORY_START = """
UPDATE scm.deployment
   SET history_start = least(
           history_start,
           ((SELECT min(ts) FROM scm.git_commits
             WHERE ts >= %(floor)s AND ts <= now()) AT TIME ZONE 'UTC')::date,
           ((SELECT min(created_at) FROM scm.mrs
             WHERE created_at >= %(floor)s AND created_at <= now()) AT TIME ZONE 'UTC')::date)
RETURNING history_start
"""

# A project that is older than every one before makes the daily partitions begin earlier, before it is read.
_BEGIN_HISTORY = """
UPDATE scm.deployment
   SET history_start = least(history_start, greatest(%(day)s::date, %(floor)s::date))
"""

# The largest revision known of any SVN repository: how far the blocks of the code location reach.
_HEAD = """
SELECT greatest(
           (SELECT max(head_rev) FROM scm.sync_watermarks),
           (SELECT max(head_rev) FROM scm.sync_hints), 0) AS head_rev
"""

# One writer of the snapshot at a time, so that an older look at the catalog never replaces a newer one.
_LOCK_SNAPSHOT = "SELECT pg_advisory_xact_lock(hashtext('scm catalog snapshot'))"


def _repository(row: dict[str, Any]) -> Repository:
    fields = {name: row[name] for name in Repository.__dataclass_fields__}
    return Repository(**{**fields, "kind": Kind(row["kind"]), "lifecycle": Lifecycle(row["lifecycle"])})


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
    return _insert(conn, _INSERT_SVN, params, Kind.SVN, name, catalog.slug_of(url, svn_prefix))


def _insert(
    conn: Connection, statement: str, params: dict[str, Any], kind: Kind, name: str, slug: str, *numbers: int
) -> Repository | None:
    """Choose the names of a new repository and make its row. A slug that is taken gets ``numbers`` and then
    the ``repo_id``."""
    with conn.transaction():
        conn.execute(_LOCK_NAMES)
        row = conn.execute(_NEXT_ID).fetchone()
        assert row is not None
        repo_id = int(row["repo_id"])
        alias = alias_of(conn, kind, params["instance"], name)
        slugs = catalog.slugs_for(slug, *numbers, repo_id)
        free = next(s for s in slugs if not conn.execute(_TAKEN, {"alias": alias, "slug": s}).fetchone())
        made = conn.execute(
            statement, {**params, "repo_id": repo_id, "alias": alias, "slug": free}
        ).fetchone()
    return _repository(made) if made else None


def alias_of(conn: Connection, kind: Kind, instance: str, name: str) -> str:
    """The alias of a server: the one that it has, else ``name``, else one made from its host. Raises
    ConfigurationError where another server has ``name``."""
    known = conn.execute(_ALIAS, {"kind": str(kind), "instance": instance}).fetchone()
    if known is not None:
        return str(known["instance_slug"])
    if name:
        owner = conn.execute(_OWNER, {"alias": name}).fetchone()
        if owner is not None:
            raise name_taken(name, (kind, instance), (owner["kind"], owner["instance"]))
        return name
    aliases = catalog.aliases_for(kind, instance)
    return next(alias for alias in aliases if conn.execute(_OWNER, {"alias": alias}).fetchone() is None)


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
    row = conn.execute(_GET, {"repo_id": repo_id}).fetchone()
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
    return _insert(conn, _INSERT_GITLAB, params, Kind.GITLAB, name, slug, project_id)


def find(conn: Connection, spec: RepositorySpec) -> Repository | None:
    """The repository that ``spec`` names, as :func:`sync_pipeline.catalog.find`."""
    rows = conn.execute(_FIND, {"kind": str(spec.kind), "address": spec.address}).fetchall()
    return catalog.find(map(_repository, rows), spec)


def by_project(conn: Connection, instance: str, project_id: int) -> Repository | None:
    """The active repository of this project, or None."""
    row = conn.execute(_BY_PROJECT, {"instance": instance, "project_id": project_id}).fetchone()
    return _repository(row) if row else None


def by_slug(conn: Connection, text: str) -> Repository | None:
    """The repository that ``text`` names, as ``<slug>`` or ``<alias>/<slug>``, or None. Raises
    ConfigurationError where several servers have such a slug."""
    alias, _, slug = text.rpartition("/")
    found = [_repository(row) for row in conn.execute(_BY_SLUG, {"slug": slug, "alias": alias})]
    if len(found) > 1:
        names = " or ".join(f"{one.instance_slug}/{one.slug} ({one.instance})" for one in found)
        raise ConfigurationError(
            f"several servers have a {slug!r}; write {names}",
            code="ambiguous_repository",
        )
    return found[0] if found else None


def list_all(conn: Connection, *, retired: bool = True) -> list[Repository]:
    """The catalog by ``repo_id``, with or without the retired ones."""
    return [_repository(row) for row in conn.execute(_LIST, {"retired": retired})]


def retire(conn: Connection, repo_id: int, reason: str, *, vanished: bool = False) -> bool:
    """End the syncing of a repository; False if it was retired before. With ``vanished`` discovery takes it
    up again when it sees it again."""
    params = {"repo_id": repo_id, "reason": reason, "vanished": vanished}
    return conn.execute(_RETIRE, params).fetchone() is not None


def reactivate_svn(conn: Connection, *, url: str, svn_uuid: str, svn_root: str) -> Repository | None:
    """Take a retired repository up again if it is still the same one (URL, UUID, root); None if there is
    none such."""
    row = conn.execute(_REACTIVATE_SVN, {"url": url, "svn_uuid": svn_uuid, "svn_root": svn_root}).fetchone()
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
    row = conn.execute(_REACTIVATE_GITLAB, params).fetchone()
    return _repository(row) if row else None


def set_tenant(conn: Connection, repo_id: int, tenant: str, *, actor: str) -> None:
    """Make ``tenant`` the owner of a repository, with an event where it was another one."""
    conn.execute(_LOCK, {"repo_id": repo_id})
    before = get(conn, repo_id).tenant
    if conn.execute(_SET_TENANT, {"repo_id": repo_id, "tenant": tenant}).rowcount:
        record_event(conn, repo_id, "tenant", actor=actor, old=before, new=tenant)


def relocate_svn(
    conn: Connection, repo_id: int, *, old_url: str, url: str, instance: str, svn_root: str
) -> bool:
    """Give an active SVN repository its new address and forget what was seen of the old one; False, and no
    change, if it is not at ``old_url`` any more."""
    params = {
        "repo_id": repo_id,
        "old_url": old_url,
        "url": url,
        "instance": instance,
        "svn_root": svn_root,
    }
    if conn.execute(_RELOCATE, params).fetchone() is None:
        return False
    conn.execute(_FORGET_ACCESS, params)
    conn.execute(_FORGET_HINT, params)
    return True


def copies(conn: Connection, *, svn_uuid: str, svn_prefix: str) -> list[Repository]:
    """The active repositories with this UUID of which the same part is registered."""
    rows = conn.execute(_COPIES, {"svn_uuid": svn_uuid, "svn_prefix": svn_prefix})
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
    conn.execute(_EVENT, params)


def events(conn: Connection, repo_id: int) -> list[dict[str, Any]]:
    """What happened to a repository, oldest first: event, old_value, new_value, actor, created_at (UTC)."""
    return conn.execute(_EVENTS, {"repo_id": repo_id}).fetchall()


# The first look tells when a project was created; it never changes.
_CREATED = """
UPDATE scm.repos SET source_created_at = coalesce(source_created_at, %(created_at)s)
 WHERE repo_id = %(repo_id)s AND source_created_at IS NULL AND %(created_at)s::timestamptz IS NOT NULL
"""
_KNOWN_CREATED = "SELECT source_created_at FROM scm.repos WHERE repo_id = %(repo_id)s"


def source_created_at(conn: Connection, repo_id: int, seen: datetime | None) -> datetime | None:
    """When the project was created at its server (UTC), as its first look told; ``seen``, what this look
    tells, if it is the first that does."""
    params = {"repo_id": repo_id, "created_at": seen}
    row = conn.execute(_KNOWN_CREATED, params).fetchone()
    if row is not None and row["source_created_at"] is None and seen is not None:
        conn.execute(_CREATED, params)
        return seen
    return None if row is None else row["source_created_at"]


def record_look(
    conn: Connection,
    repo_id: int,
    *,
    path: str | None,
    default_branch: str | None,
    archived: bool,
    actor: str,
    marked_on: date | None = None,
) -> list[str]:
    """Write down what a look at a project showed, and an event for each change since the last one: ``moved``,
    ``tenant``, ``default_branch``, ``archived``, ``unarchived``, ``pending_deletion``, ``restored``. Returns
    the names of the events. No path and no branch mean that the source did not say. ``marked_on`` is the day
    that the project was marked for deletion on.

    The tenant follows a move where it is the first segment of the old path; one that a person or a discovery
    root gave stays."""
    key = {"repo_id": repo_id}
    if not _changes(conn.execute(_KNOWN, key).fetchone(), path, default_branch, archived, marked_on):
        return []
    with conn.transaction():
        conn.execute(_LOCK, key)
        known = conn.execute(_KNOWN, key).fetchone()
        changes = _changes(known, path, default_branch, archived, marked_on)
        for event, (old, new) in changes.items():
            record_event(conn, repo_id, event, actor=actor, old=old, new=new)
        if known and changes:
            new_path, new_branch = path or known["project_path"], default_branch or known["default_branch"]
            tenant = changes["tenant"][1] if "tenant" in changes else known["tenant"]
            seen = {"path": new_path, "default_branch": new_branch, "tenant": tenant, "marked_on": marked_on}
            conn.execute(_SEEN, key | seen)
    return list(changes)


def _changes(
    known: dict[str, Any] | None,
    path: str | None,
    default_branch: str | None,
    archived: bool,
    marked_on: date | None,
) -> dict[str, tuple[str | None, str | None]]:
    """The events that follow from a look, each with the old and the new value."""
    if known is None:
        return {}
    found: dict[str, tuple[str | None, str | None]] = {}
    if path and path != known["project_path"]:
        found["moved"] = known["project_path"], path
        old, new = catalog.tenant_of(known["project_path"] or ""), catalog.tenant_of(path)
        if known["tenant"] == old != new:
            found["tenant"] = old, new
    if default_branch and default_branch != known["default_branch"]:
        found["default_branch"] = known["default_branch"], default_branch
    if archived != known["archived"]:
        found["archived" if archived else "unarchived"] = None, None
    before = known["marked_for_deletion_on"]
    if marked_on != before:
        days = None if before is None else str(before), None if marked_on is None else str(marked_on)
        found["restored" if marked_on is None else "pending_deletion"] = days
    return found


def history_start(conn: Connection, floor: date) -> date | None:
    """The first day of the daily partitions: the oldest fact from ``floor`` on, in UTC. Once written it only
    ever moves earlier. None while there is no fact."""
    row = conn.execute(_HISTORY_START, {"floor": datetime.combine(floor, time(), UTC)}).fetchone()
    found: date | None = row["history_start"] if row else None
    return found


def begin_history(conn: Connection, day: date, floor: date) -> None:
    """Let the daily partitions begin at ``day`` or earlier, at ``floor`` at the earliest: so the days of a
    project exist before its rows arrive."""
    conn.execute(_BEGIN_HISTORY, {"day": day, "floor": floor})


def head_revision(conn: Connection) -> int:
    """The largest revision known of any SVN repository, 0 if there is none."""
    row = conn.execute(_HEAD).fetchone()
    assert row is not None
    return int(row["head_rev"])


def lock_snapshot(conn: Connection) -> None:
    """Hold back every other writer of the catalog snapshot until the caller's transaction ends."""
    conn.execute(_LOCK_SNAPSHOT)
