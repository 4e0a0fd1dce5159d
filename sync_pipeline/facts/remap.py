"""Stored facts of GitLab with the objects they came from, and the changes when those are read anew.

Belongs here: pages of stored rows with their raw, by key, and one write of the rows that were derived anew
and differ. Values that the source alone gives (walks, marks, the raw itself) are not touched. Reads and
writes run under the caller's lease, writes inside its transaction. Does not belong here: how a raw is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

from sync_pipeline.core.model import Counts, JobType
from sync_pipeline.database.pool import Connection
from sync_pipeline.database.queries import queries
from sync_pipeline.database.values import ESCAPED, recordset, restored
from sync_pipeline.facts.tables import (
    COMMITS,
    MERGE_REQUEST_COMMITS,
    MERGE_REQUESTS,
    REVIEW_EVENTS,
    VERSIONS,
    Table,
)

Row = dict[str, Any]

# A page of commits.
_COMMITS = COMMITS.sql("""
SELECT {columns}
  FROM scm.git_commits
 WHERE repo_id = %(repo_id)s AND commit_sha > %(after)s
   AND (%(since)s::timestamptz IS NULL OR ts IS NULL OR ts >= %(since)s)
 ORDER BY commit_sha
 LIMIT %(limit)s
""")

# A page of a flat list.
_LISTED = """
SELECT {columns}
  FROM {table} AS t
 WHERE repo_id = %(repo_id)s AND (%(after)s::text IS NULL OR {key_text} > %(after)s)
   AND (%(since)s::timestamptz IS NULL OR {time_column} IS NULL OR {time_column} >= %(since)s)
 ORDER BY {key_text}
 LIMIT %(limit)s
"""


_SQL = queries("remap")


# A page of merge requests, and the children of its merge requests.
_OF_MERGE_REQUESTS = """
SELECT {columns}
  FROM {table}
 WHERE repo_id = %(repo_id)s AND {group} = ANY (%(iids)s) AND replaced_id = 0
"""
_MERGE_REQUESTS = MERGE_REQUESTS.sql(_OF_MERGE_REQUESTS + " ORDER BY iid")
_VERSIONS = VERSIONS.sql(_OF_MERGE_REQUESTS + " ORDER BY mr_iid, version_id DESC")
_MERGE_REQUEST_COMMITS = MERGE_REQUEST_COMMITS.sql(_OF_MERGE_REQUESTS + " ORDER BY mr_iid, position")


# All events of a page of reviews: each depends on the others.
_EVENTS = REVIEW_EVENTS.sql("""
SELECT {columns},
       missing_since IS NOT NULL OR deleted_at IS NOT NULL AS is_gone,
       %(since)s::timestamptz IS NULL OR ts IS NULL OR ts >= %(since)s AS is_wanted
  FROM scm.review_events
 WHERE repo_id = %(repo_id)s AND mr_iid = ANY (%(iids)s) AND replaced_id = 0
 ORDER BY mr_iid, source_event_id
""")

# Writes what differs; ``raised`` is 1 for a new version, 0 where only a hash is another one.
_UPDATE = """
UPDATE {table} AS t
   SET {mapped}, {hashed}, version = t.version + s.raised,
       batch_id = CASE s.raised WHEN 1 THEN %(batch_id)s ELSE t.batch_id END,
       stored_at = CASE s.raised WHEN 1 THEN now() ELSE t.stored_at END
  FROM json_to_recordset(%(rows)s) AS s ({types}, raised integer)
 WHERE t.repo_id = %(repo_id)s AND {same_key}
"""
_UPDATE_CHILDREN = """
UPDATE {table} AS t SET {mapped}
  FROM json_to_recordset(%(rows)s) AS s ({types})
 WHERE t.repo_id = %(repo_id)s AND {same_key} AND t.replaced_id = 0
"""
_UPDATES = {
    COMMITS.name: COMMITS.sql(_UPDATE),
    MERGE_REQUESTS.name: MERGE_REQUESTS.sql(_UPDATE + " AND t.replaced_id = 0"),
    REVIEW_EVENTS.name: REVIEW_EVENTS.sql(_UPDATE + " AND t.replaced_id = 0"),
    VERSIONS.name: VERSIONS.sql(_UPDATE_CHILDREN),
    MERGE_REQUEST_COMMITS.name: MERGE_REQUEST_COMMITS.sql(_UPDATE_CHILDREN),
}


@dataclass(frozen=True)
class DerivedRow:
    """The columns of a row of ``table`` that were derived anew, and those that are stored, with its
    children. A changed child is a new version of the row."""

    table: Table
    derived: Mapping[str, Any]
    stored: Mapping[str, Any]
    children: tuple[DerivedRow, ...] = ()

    @cached_property
    def differs(self) -> bool:
        """True if a value that follows from the stored object is another one."""
        differing = self.table.differing(self.derived, self.stored)
        return any(name not in self.table.inferred for name in differing)

    @property
    def is_new_version(self) -> bool:
        """True if the row or one of its children differs."""
        return self.differs or any(child.differs for child in self.children)

    @property
    def is_rehashed(self) -> bool:
        """True if a hash is another one, as after a change of the hashed columns."""
        hashes = ((self.derived[name], self.stored[name]) for name in self.table.hashes)
        return any(new is not None and new != old for new, old in hashes)


def commits_after(
    conn: Connection, repo_id: int, after: str | None, since: datetime | None, limit: int
) -> list[Row]:
    """At most ``limit`` commits whose names come after ``after``, in order; with ``since`` (UTC) those from
    then on and those without a time."""
    params = {"repo_id": repo_id, "after": after or "", "since": since, "limit": limit}
    return _rows(conn, _COMMITS, params)


def listed_after(
    conn: Connection, table: Table, repo_id: int, after: str | None, since: datetime | None, limit: int
) -> list[Row]:
    """As :func:`commits_after`, of a flat list."""
    params = {"repo_id": repo_id, "after": after, "since": since, "limit": limit}
    return _rows(conn, table.sql(_LISTED), params)


def merge_requests_after(
    conn: Connection, repo_id: int, after: int | None, since: datetime | None, limit: int
) -> list[Row]:
    """The merge requests whose numbers come after ``after``, in order. They have at most ``limit`` rows with
    their children, but there is at least one. With ``since`` (UTC) only those that were updated from then on.
    ``versions`` and ``commits`` are the children in the order of the source; None where they were never read.
    """
    params = {
        "repo_id": repo_id,
        "iids": _next(conn, _SQL["next_merge_requests"], repo_id, after, since, limit),
    }
    rows = _rows(conn, _MERGE_REQUESTS, params)
    for name, hash_name, query in (
        ("versions", "versions_hash", _VERSIONS),
        ("commits", "commits_hash", _MERGE_REQUEST_COMMITS),
    ):
        children = _rows(conn, query, params)
        for row in rows:
            own = [child for child in children if child["mr_iid"] == row["iid"]]
            row[name] = None if row[hash_name] is None else own
    return rows


def events_after(
    conn: Connection, repo_id: int, after: int | None, since: datetime | None, limit: int
) -> list[Row]:
    """All events of the merge requests whose numbers come after ``after``, in order. They have at most
    ``limit`` events, but there is at least one merge request. With ``since`` (UTC) only merge requests with a
    selected event. ``is_gone``: the source no longer shows the event. ``is_wanted``: it is from ``since`` on.
    """
    iids = _next(conn, _SQL["next_reviews"], repo_id, after, since, limit)
    return _rows(conn, _EVENTS, {"repo_id": repo_id, "iids": iids, "since": since})


def _next(
    conn: Connection, query: str, repo_id: int, after: int | None, since: datetime | None, limit: int
) -> list[int]:
    params = {"repo_id": repo_id, "after": after, "since": since, "limit": limit}
    iids: list[int] = []
    rows = 0
    for row in conn.execute(query, params).fetchall():
        rows += row["rows"]
        if iids and rows > limit:
            break
        iids.append(row["iid"])
    return iids


def _rows(conn: Connection, query: str, params: Mapping[str, Any]) -> list[Row]:
    """Stored rows; ``raw`` is the source's object as it was received, but for secrets."""
    return [
        row | {"raw": restored(row["raw"], ESCAPED in row["flags"])} for row in conn.execute(query, params)
    ]


def changes(rows: Sequence[DerivedRow]) -> Counts:
    """How many stored rows :func:`put` would change."""
    updated = sum(row.is_new_version for row in rows)
    return Counts(read=len(rows), updated=updated, unchanged=len(rows) - updated)


def put(conn: Connection, *, repo_id: int, batch_id: int, rows: Sequence[DerivedRow]) -> Counts:
    """Make stored rows what ``rows`` say; returns how many that changes."""
    updates: dict[Table, list[Row]] = {}
    for row in rows:
        for child in row.children:
            if child.differs:
                updates.setdefault(child.table, []).append({**child.derived, "raw": None})
        if row.is_new_version or row.is_rehashed:
            update = {**row.derived, "raw": None, "raised": int(row.is_new_version)}
            updates.setdefault(row.table, []).append(update)
    for table, found in updates.items():
        params = {"repo_id": repo_id, "batch_id": batch_id, "rows": recordset(found)}
        conn.execute(_UPDATES[table.name] if table.name in _UPDATES else table.sql(_UPDATE), params)
    return changes(rows)


def resolve(conn: Connection, repo_id: int, job_type: JobType, keys: Sequence[str]) -> None:
    """The raws that quarantine knows by these keys can be read now."""
    conn.execute(_SQL["resolve"], {"repo_id": repo_id, "job_type": str(job_type), "keys": list(keys)})
