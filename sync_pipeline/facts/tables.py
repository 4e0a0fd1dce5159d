"""The fact tables: the columns of each, and the parts of SQL that are made from them.

Belongs here: which field of a record becomes which column, and what the content hash covers. A field of a
record is a column of the same name and order unless the table says otherwise. So a new column needs a
migration, a field of the record and its parser. Does not belong here: whole statements, and the columns of
revisions (:mod:`sync_pipeline.facts.svn_revisions`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any

from psycopg import sql
from psycopg.types.json import Jsonb

from sync_pipeline.core.gitlab_rows import (
    CommitRow,
    MergeRequestRow,
    MergeRequestVersion,
    Person,
    ReleaseRow,
    ReviewEventRow,
)
from sync_pipeline.database.values import content_hash, storable

_TYPES = {
    "int": "bigint",
    "str": "text",
    "bool": "boolean",
    "datetime": "timestamptz",
    "tuple[str, ...]": "text[]",
    "Mapping[str, Any]": "jsonb",
    "Origin": "text",
}
_NOBODY = Person(None, None, None)


@dataclass(frozen=True, slots=True)
class Column:
    """A column that the source fills. ``type`` is PostgreSQL's; ``value`` takes it from a record.

    ``unordered``: servers return the elements in any order, so hash and comparison ignore the order.
    ``optional``: a copy may lack the value, and then the stored value stays.
    """

    name: str
    type: str
    value: Callable[[Any], Any]
    unordered: bool = False
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """A fact table: its ``columns`` in the order of the hash, and the names of columns with a special role.

    ``key`` identifies a row within a repository. ``time_column``, for rows that come from one flat list,
    is the column to which the bounds of time windows apply. Columns in ``fixed`` never change. Columns in
    ``unhashed`` may be read later than the rest. Columns in ``inferred`` cannot be derived from the stored
    object of the row alone. ``hashes`` are further columns that hold hashes. ``given`` are further columns
    that the caller provides, with their types. ``raw`` is the column with the object of the source.
    """

    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    time_column: str = ""
    raw: str = "raw"
    given: tuple[tuple[str, str], ...] = ()
    hashes: tuple[str, ...] = ()
    fixed: Collection[str] = ()
    unhashed: Collection[str] = ()
    inferred: Collection[str] = ()

    def values(self, record: Any) -> dict[str, Any]:
        """The columns of ``record`` by name, without flags, raw and hashes."""
        return {column.name: column.value(record) for column in self.columns}

    def hash(self, values: Mapping[str, Any]) -> bytes:
        """SHA-256 over ``values``: the result of :meth:`values` and the ``flags``."""
        hashed = (column for column in self.columns if column.name not in self.unhashed)
        return content_hash(
            *(sorted(values[c.name], key=str) if c.unordered else values[c.name] for c in hashed),
            values["flags"],
        )

    def differing(self, source: Mapping[str, Any], stored: Mapping[str, Any]) -> tuple[str, ...]:
        """The names of the columns whose values differ, sorted. ``source`` has the columns of a record, and
        ``stored`` the columns ``{names}`` of :meth:`sql`. An optional value that ``source`` lacks is no
        difference. Raw and hashes are not compared."""
        optional = {column.name for column in self.columns if column.optional}
        unordered = {column.name for column in self.columns if column.unordered}
        found: list[str] = []
        for name in sorted(source.keys() & stored.keys() - {self.raw, *self.hashes}):
            new, old = comparable(source[name]), comparable(stored[name])
            if name in unordered:
                new, old = sorted(new or (), key=_sort_key), sorted(old or (), key=_sort_key)
            if new != old and not (new is None and name in optional):
                found.append(name)
        return tuple(found)

    def sql(self, template: str) -> str:
        """The statement of ``template``, with lists of columns in place of these names:

        - ``{columns}``: all columns of a row, with flags, raw and hashes.
        - ``{types}``: the same, each with its type, for ``json_to_recordset``.
        - ``{names}`` and ``{shown}``: the same two without raw and hashes.
        - ``{excluded}``: ``name = EXCLUDED.name`` for each column that a newer copy overwrites.
        - ``{mapped}``: ``name = s.name`` for each column that follows from the stored object.
        - ``{hashed}``: ``name = coalesce(s.name, t.name)`` for each hash.
        - ``{table}``, ``{time_column}``: the name of the table, and its column of time for windows.
        - ``{key_columns}``: the columns of its key; ``{group}``: the first of them.
        - ``{key_text}``: the key of ``t`` as text.
        - ``{same_key}``: the condition that a row ``t`` and a row ``s`` have the same key.

        Braces of SQL are doubled.
        """
        parts = {name: sql.SQL(part) for name, part in self._parts().items()}
        return sql.SQL(template).format(**parts).as_string()

    def _shown(self) -> list[tuple[str, str]]:
        return [*self.given, *((column.name, column.type) for column in self.columns), ("flags", "text[]")]

    def _stored(self) -> list[tuple[str, str]]:
        return [*self._shown(), (self.raw, "jsonb"), *((name, "bytea") for name in self.hashes)]

    def _parts(self) -> dict[str, str]:
        shown, stored = self._shown(), self._stored()
        changing = [c for c in self.columns if c.name not in {*self.key, *self.fixed}]
        mapped = [c for c in changing if c.name not in self.inferred]
        return {
            "columns": _list("{0}", [name for name, _ in stored]),
            "names": _list("{0}", [name for name, _ in shown]),
            "types": _list("{0}", [f"{name} {kind}" for name, kind in stored]),
            "shown": _list("{0}", [f"{name} {kind}" for name, kind in shown]),
            "excluded": _list("{0} = EXCLUDED.{0}", [c.name for c in changing if not c.optional] + ["flags"]),
            "mapped": _list("{0} = s.{0}", [c.name for c in mapped] + ["flags"]),
            "hashed": _list("{0} = coalesce(s.{0}, t.{0})", self.hashes),
            "table": self.name,
            "time_column": self.time_column,
            "group": self.key[0],
            "key_columns": _list("{0}", self.key),
            "key_text": _list("t.{0}::text", self.key),
            "same_key": " AND ".join(f"t.{name} = s.{name}" for name in self.key),
        }


def _list(form: str, names: Sequence[str]) -> str:
    return ", ".join(form.format(name) for name in names)


def comparable(value: Any) -> Any:
    """``value`` as it is read back from the table."""
    if isinstance(value, Jsonb):
        return comparable(value.obj)
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, (list, tuple)):
        return [comparable(part) for part in value]
    if isinstance(value, dict):
        return {name: comparable(part) for name, part in value.items()}
    return value


def _sort_key(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def columns_of(record: type, **special: Column | Sequence[Column]) -> tuple[Column, ...]:
    """A column for each field of ``record``. Fields in ``special`` become the columns given there; ``flags``
    and ``raw`` are in every table and in no list."""
    found: list[Column] = []
    for field in fields(record):
        if field.name in special:
            given = special[field.name]
            found.extend([given] if isinstance(given, Column) else given)
        elif field.name not in ("flags", "raw"):
            found.append(_column(field.name, _TYPES[str(field.type).removesuffix(" | None")]))
    return tuple(found)


def _column(
    name: str, kind: str, field: str = "", *, unordered: bool = False, optional: bool = False
) -> Column:
    return Column(name, kind, attrgetter(field or name), unordered, optional)


def _account(name: str, field: str, *parts: str) -> list[Column]:
    """Columns of an account that is embedded in a record: ``<name>_id``, ``<name>_username``, ..."""
    of = attrgetter(field)
    every = {
        "id": Column(f"{name}_id", "bigint", lambda record: (of(record) or _NOBODY).user_id),
        "username": Column(f"{name}_username", "text", lambda record: (of(record) or _NOBODY).username),
        "name": Column(f"{name}_name", "text", lambda record: (of(record) or _NOBODY).name),
    }
    return [every[part] for part in parts]


def _accounts(field: str) -> Column:
    of = attrgetter(field)

    def value(record: Any) -> list[dict[str, Any]]:
        return [{"id": one.user_id, "username": one.username, "name": one.name} for one in of(record)]

    return Column(field, "jsonb", value, unordered=True)


_STATUS = {"opened": "open"}

COMMITS = Table(
    "scm.git_commits",
    columns_of(
        CommitRow,
        sha=_column("commit_sha", "text", "sha"),
        parents=_column("parents", "text[]", optional=True),
        additions=_column("additions", "bigint", optional=True),
        deletions=_column("deletions", "bigint", optional=True),
    ),
    key=("commit_sha",),
    hashes=("content_hash",),
)

MERGE_REQUESTS = Table(
    "scm.mrs",
    columns_of(
        MergeRequestRow,
        mr_id=_column("gitlab_id", "bigint", "mr_id"),
        state=Column("status", "text", lambda row: _STATUS.get(row.state, row.state)),
        author=_account("author", "author", "id", "username", "name"),
        merged_by=_account("merged_by", "merged_by", "id", "username"),
        closed_by=_account("closed_by", "closed_by", "id", "username"),
        assignees=_accounts("assignees"),
        reviewers=_accounts("reviewers"),
        labels=_column("labels", "text[]", unordered=True),
        base_sha=_column("base_sha", "text", optional=True),
        start_sha=_column("start_sha", "text", optional=True),
        changes_count=_column("changes_count", "text", optional=True),
        web_url=_column("url", "text", "web_url"),
        versions=(),
        commits=(),
    ),
    key=("iid",),
    hashes=("versions_hash", "commits_hash", "content_hash"),
    # Only the list of versions has these values; a copy that was read without the list is no change.
    unhashed=("base_sha", "start_sha", "changes_count"),
)

VERSIONS = Table(
    "scm.mr_versions",
    columns_of(MergeRequestVersion),
    key=("mr_iid", "version_id"),
    given=(("mr_iid", "bigint"),),
)

_OF_A_COMMIT = {column.name: column for column in COMMITS.columns}

MERGE_REQUEST_COMMITS = Table(
    "scm.mr_commits",
    (
        _OF_A_COMMIT["commit_sha"],
        _OF_A_COMMIT["title"],
        _OF_A_COMMIT["message"],
        _OF_A_COMMIT["author_name"],
        _OF_A_COMMIT["author_email"],
        _OF_A_COMMIT["authored_at"],
        _OF_A_COMMIT["committer_name"],
        _OF_A_COMMIT["committer_email"],
        _OF_A_COMMIT["committed_at"],
    ),
    key=("mr_iid", "position"),
    given=(("mr_iid", "bigint"), ("position", "integer")),
)

REVIEW_EVENTS = Table(
    "scm.review_events",
    columns_of(
        ReviewEventRow,
        event_id=_column("source_event_id", "text", "event_id"),
        origin=Column("origin", "text", lambda row: str(row.origin)),
        number=(),
        kind=_column("event_type", "text", "kind"),
        actor=_account("reviewer", "actor", "id", "username", "name"),
        occurred_at=_column("ts", "timestamptz", "occurred_at"),
        resolved_by=_account("resolved_by", "resolved_by", "id", "username"),
    ),
    key=("mr_iid", "source_event_id"),
    hashes=("content_hash",),
    fixed=("origin",),
    # A property of the reading, not of the event. Hashes of earlier versions do not have it.
    unhashed=("time_precision",),
    # Only the discussion that lists a note, and the way it was read, say these values.
    inferred=("discussion_id", "is_reply", "time_precision"),
)

RELEASES = Table(
    "scm.releases",
    columns_of(
        ReleaseRow,
        author=_account("author", "author", "id", "username", "name"),
        milestones=_column("milestones", "text[]", unordered=True),
        asset_links=Column("asset_links", "jsonb", lambda row: list(row.asset_links), unordered=True),
    ),
    key=("tag",),
    time_column="created_at",
    hashes=("content_hash",),
)
