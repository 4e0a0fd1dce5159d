"""The catalog's rows: ``scm.repos``.

Belongs here: inserting, finding, retiring and correcting repositories. Does not belong here: visiting a
source, and what registering means beyond the row (:mod:`sync_pipeline.operations.registration`).
"""

from __future__ import annotations

from typing import Any

from sync_pipeline.catalog import RepositorySpec
from sync_pipeline.errors import ConfigurationError
from sync_pipeline.model import Kind, Lifecycle, Repository
from sync_pipeline.store.database import Connection

# Makes the row unless the place is registered and active. The number is part of the slug, so that a successor
# at the same place gets assets of its own.
_INSERT = """
WITH numbered AS (
    SELECT nextval(pg_get_serial_sequence('scm.repos', 'repo_id')) AS repo_id
)
INSERT INTO scm.repos
       (repo_id, kind, instance, instance_slug, tenant, slug, url, svn_uuid, svn_root, svn_prefix)
OVERRIDING SYSTEM VALUE
SELECT repo_id, 'svn', %(instance)s, %(instance_slug)s, %(tenant)s, %(slug_stem)s || '_' || repo_id, %(url)s,
       %(svn_uuid)s, %(svn_root)s, %(svn_prefix)s
  FROM numbered
ON CONFLICT (kind, md5(url)) WHERE lifecycle = 'active' DO NOTHING
RETURNING *
"""

# One repository by its key.
_GET = "SELECT * FROM scm.repos WHERE repo_id = %(repo_id)s"

# One repository by what a person calls it: the active one, else the one retired last.
_FIND = """
SELECT * FROM scm.repos
 WHERE kind = %(kind)s
   AND CASE kind WHEN 'svn' THEN md5(url) = md5(%(address)s) AND url = %(address)s
                 ELSE project_id::text = %(address)s OR project_path = %(address)s END
 ORDER BY lifecycle = 'active' DESC, repo_id DESC
 LIMIT 1
"""

# One repository by the second part of its asset key; two servers may share a slug only by accident of names.
_BY_SLUG = "SELECT * FROM scm.repos WHERE slug = %(slug)s ORDER BY repo_id LIMIT 1"

# The whole catalog.
_LIST = "SELECT * FROM scm.repos WHERE lifecycle = 'active' OR %(retired)s ORDER BY repo_id"

# Ends the syncing of a repository; its rows stay. No row if it was retired before.
_RETIRE = """
UPDATE scm.repos
   SET lifecycle = 'retired', retired_reason = %(reason)s, updated_at = now()
 WHERE repo_id = %(repo_id)s AND lifecycle = 'active'
RETURNING repo_id
"""

# A retired repository that is still the same one is taken up again with its rows and its assets.
_REACTIVATE = """
UPDATE scm.repos
   SET lifecycle = 'active', retired_reason = NULL, updated_at = now()
 WHERE repo_id = (SELECT repo_id FROM scm.repos
                   WHERE kind = 'svn' AND md5(url) = md5(%(url)s) AND url = %(url)s AND lifecycle = 'retired'
                     AND svn_uuid = %(svn_uuid)s AND svn_root = %(svn_root)s
                   ORDER BY repo_id DESC
                   LIMIT 1)
RETURNING *
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
    instance_slug: str,
    tenant: str,
    slug_stem: str,
    svn_uuid: str,
    svn_root: str,
    svn_prefix: str,
) -> Repository | None:
    """Make the row of an SVN repository; None if the URL is registered and active. The slug is
    ``<slug_stem>_<repo_id>``."""
    row = conn.execute(
        _INSERT,
        {
            "url": url,
            "instance": instance,
            "instance_slug": instance_slug,
            "tenant": tenant,
            "slug_stem": slug_stem,
            "svn_uuid": svn_uuid,
            "svn_root": svn_root,
            "svn_prefix": svn_prefix,
        },
    ).fetchone()
    return _repository(row) if row else None


def get(conn: Connection, repo_id: int) -> Repository:
    """The repository with this key. Raises ConfigurationError if there is none."""
    row = conn.execute(_GET, {"repo_id": repo_id}).fetchone()
    if row is None:
        raise ConfigurationError(
            f"the catalog has no repository {repo_id}; see: scm-sync repo list", code="unknown_repository"
        )
    return _repository(row)


def find(conn: Connection, spec: RepositorySpec) -> Repository | None:
    """The repository that ``spec`` names: the active one, else the one retired last, else None."""
    row = conn.execute(_FIND, {"kind": str(spec.kind), "address": spec.address}).fetchone()
    return _repository(row) if row else None


def by_slug(conn: Connection, slug: str) -> Repository | None:
    """The repository whose slug this is, or None."""
    row = conn.execute(_BY_SLUG, {"slug": slug}).fetchone()
    return _repository(row) if row else None


def list_all(conn: Connection, *, retired: bool = True) -> list[Repository]:
    """The catalog by ``repo_id``, with or without the retired ones."""
    return [_repository(row) for row in conn.execute(_LIST, {"retired": retired})]


def retire(conn: Connection, repo_id: int, reason: str) -> bool:
    """End the syncing of a repository; False if it was retired before."""
    return conn.execute(_RETIRE, {"repo_id": repo_id, "reason": reason}).fetchone() is not None


def reactivate_svn(conn: Connection, *, url: str, svn_uuid: str, svn_root: str) -> Repository | None:
    """Take a retired repository up again if it is still the same one (URL, UUID, root); None if there is
    none such."""
    row = conn.execute(_REACTIVATE, {"url": url, "svn_uuid": svn_uuid, "svn_root": svn_root}).fetchone()
    return _repository(row) if row else None


def head_revision(conn: Connection) -> int:
    """The largest revision known of any SVN repository, 0 if there is none."""
    row = conn.execute(_HEAD).fetchone()
    assert row is not None
    return int(row["head_rev"])


def lock_snapshot(conn: Connection) -> None:
    """Hold back every other writer of the catalog snapshot until the caller's transaction ends."""
    conn.execute(_LOCK_SNAPSHOT)
