"""Stored facts of GitLab with the objects they came from, and what another reading of those changes.

Belongs here: pages of facts with their raw, by key; comparing facts that were derived anew with those that
are stored; writing only what differs. What the source alone can say (walks, marks, the raw itself) is not
touched. Reads and writes run under the caller's lease, writes inside its transaction. Does not belong here:
how a raw is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sync_pipeline.gitlab_rows import CommitRow, MergeRequestRow, Origin, ReviewEventRow
from sync_pipeline.model import Counts, JobType
from sync_pipeline.store import commits, merge_requests, reviews
from sync_pipeline.store.database import Connection
from sync_pipeline.store.raw import ESCAPED, recordset, restored
from sync_pipeline.store.tables import (
    COMMITS,
    MERGE_REQUEST_COMMITS,
    MERGE_REQUESTS,
    REVIEW_EVENTS,
    VERSIONS,
)

# A page of commits.
_COMMITS = """
SELECT commit_sha, parents IS NULL AS parents_unknown, additions, deletions, flags, raw
  FROM scm.git_commits
 WHERE repo_id = %(repo_id)s AND commit_sha > %(after)s
   AND (%(since)s::timestamptz IS NULL OR ts IS NULL OR ts >= %(since)s)
 ORDER BY commit_sha
 LIMIT %(limit)s
"""

# Which merge requests come next, and how many rows each is with its children.
_NEXT_MERGE_REQUESTS = """
SELECT m.iid,
       1 + (SELECT count(*) FROM scm.mr_versions AS v
             WHERE v.repo_id = m.repo_id AND v.mr_iid = m.iid AND v.replaced_id = 0)
         + (SELECT count(*) FROM scm.mr_commits AS c
             WHERE c.repo_id = m.repo_id AND c.mr_iid = m.iid AND c.replaced_id = 0) AS rows
  FROM scm.mrs AS m
 WHERE m.repo_id = %(repo_id)s AND m.replaced_id = 0 AND (%(after)s::bigint IS NULL OR m.iid > %(after)s)
   AND (%(since)s::timestamptz IS NULL OR m.updated_at >= %(since)s)
 ORDER BY m.iid
 LIMIT %(limit)s
"""

# A page of merge requests, and the children of its merge requests in the order of the source.
_MERGE_REQUESTS = """
SELECT iid, base_sha, start_sha, changes_count, flags, raw, versions_hash IS NOT NULL AS has_versions,
       commits_hash IS NOT NULL AS has_commits
  FROM scm.mrs
 WHERE repo_id = %(repo_id)s AND iid = ANY (%(iids)s) AND replaced_id = 0
 ORDER BY iid
"""
_VERSIONS = """
SELECT mr_iid, version_id, flags, raw
  FROM scm.mr_versions
 WHERE repo_id = %(repo_id)s AND mr_iid = ANY (%(iids)s) AND replaced_id = 0
 ORDER BY mr_iid, version_id DESC
"""
_MERGE_REQUEST_COMMITS = """
SELECT mr_iid, flags, raw
  FROM scm.mr_commits
 WHERE repo_id = %(repo_id)s AND mr_iid = ANY (%(iids)s) AND replaced_id = 0
 ORDER BY mr_iid, position
"""

# Which reviews come next, and how many events each has.
_NEXT_REVIEWS = """
SELECT mr_iid AS iid, count(*) AS rows
  FROM scm.review_events
 WHERE repo_id = %(repo_id)s AND replaced_id = 0 AND (%(after)s::bigint IS NULL OR mr_iid > %(after)s)
 GROUP BY mr_iid
HAVING %(since)s::timestamptz IS NULL OR bool_or(ts IS NULL OR ts >= %(since)s)
 ORDER BY mr_iid
 LIMIT %(limit)s
"""

# All events of a page of reviews: what one of them is depends on the others.
_EVENTS = """
SELECT mr_iid, source_event_id, origin, discussion_id, is_reply, duplicate_of, flags, raw,
       missing_since IS NOT NULL OR deleted_at IS NOT NULL AS is_gone,
       %(since)s::timestamptz IS NULL OR ts IS NULL OR ts >= %(since)s AS is_wanted
  FROM scm.review_events
 WHERE repo_id = %(repo_id)s AND mr_iid = ANY (%(iids)s) AND replaced_id = 0
 ORDER BY mr_iid, source_event_id
"""

# What differs: ``changed`` where a reader of the table would see it, else only a hash, as after a change of
# what is hashed.
_OTHER = """
SELECT {key}, {differs} AS changed, t.content_hash <> s.content_hash AS rehashed
  FROM json_to_recordset(%(rows)s) AS s ({shown}, content_hash bytea)
  JOIN {table} AS t ON t.repo_id = %(repo_id)s AND {same_key}
"""
_OTHER_COMMITS = COMMITS.sql(_OTHER)
_OTHER_EVENTS = REVIEW_EVENTS.sql(_OTHER + " AND t.replaced_id = 0")
_OTHER_MERGE_REQUESTS = MERGE_REQUESTS.sql("""
SELECT {key}, {differs} AS changed,
       t.content_hash <> s.content_hash
       OR coalesce(s.versions_hash, t.versions_hash) IS DISTINCT FROM t.versions_hash
       OR coalesce(s.commits_hash, t.commits_hash) IS DISTINCT FROM t.commits_hash AS rehashed
  FROM json_to_recordset(%(rows)s)
    AS s ({shown}, versions_hash bytea, commits_hash bytea, content_hash bytea)
  JOIN scm.mrs AS t ON t.repo_id = %(repo_id)s AND {same_key} AND t.replaced_id = 0
""")
_OTHER_CHILDREN = """
SELECT {key}
  FROM json_to_recordset(%(rows)s) AS s ({shown})
  JOIN {table} AS t ON t.repo_id = %(repo_id)s AND {same_key} AND t.replaced_id = 0
 WHERE {differs}
"""
_OTHER_VERSIONS = VERSIONS.sql(_OTHER_CHILDREN)
_OTHER_MERGE_REQUEST_COMMITS = MERGE_REQUEST_COMMITS.sql(_OTHER_CHILDREN)

# Writes what differs; ``raised`` is 1 for a new version, 0 where only a hash is another one.
_UPDATE = """
UPDATE {table} AS t
   SET {mapped}, content_hash = s.content_hash, version = t.version + s.raised,
       batch_id = CASE s.raised WHEN 1 THEN %(batch_id)s ELSE t.batch_id END,
       stored_at = CASE s.raised WHEN 1 THEN now() ELSE t.stored_at END
  FROM json_to_recordset(%(rows)s) AS s ({shown}, content_hash bytea, raised integer)
 WHERE t.repo_id = %(repo_id)s AND {same_key}
"""
_UPDATE_COMMITS = COMMITS.sql(_UPDATE)
_UPDATE_EVENTS = REVIEW_EVENTS.sql(_UPDATE + " AND t.replaced_id = 0")
_UPDATE_MERGE_REQUESTS = MERGE_REQUESTS.sql("""
UPDATE scm.mrs AS t
   SET {mapped}, versions_hash = coalesce(s.versions_hash, t.versions_hash),
       commits_hash = coalesce(s.commits_hash, t.commits_hash), content_hash = s.content_hash,
       version = t.version + s.raised,
       batch_id = CASE s.raised WHEN 1 THEN %(batch_id)s ELSE t.batch_id END,
       stored_at = CASE s.raised WHEN 1 THEN now() ELSE t.stored_at END
  FROM json_to_recordset(%(rows)s)
    AS s ({shown}, versions_hash bytea, commits_hash bytea, content_hash bytea, raised integer)
 WHERE t.repo_id = %(repo_id)s AND {same_key} AND t.replaced_id = 0
""")
_UPDATE_CHILDREN = """
UPDATE {table} AS t SET {mapped}
  FROM json_to_recordset(%(rows)s) AS s ({shown})
 WHERE t.repo_id = %(repo_id)s AND {same_key} AND t.replaced_id = 0
"""
_UPDATE_VERSIONS = VERSIONS.sql(_UPDATE_CHILDREN)
_UPDATE_MERGE_REQUEST_COMMITS = MERGE_REQUEST_COMMITS.sql(_UPDATE_CHILDREN)

# A raw that can be read after all leaves quarantine.
_RESOLVE = """
UPDATE scm.quarantine SET resolved_at = now()
 WHERE repo_id = %(repo_id)s AND job_type = %(job_type)s AND resolved_at IS NULL
   AND natural_key = ANY (%(keys)s)
"""


@dataclass(frozen=True, slots=True)
class StoredRaw:
    """The source's object of a stored row, as it was received but for secrets. ``is_escaped``: it is not
    stored as received."""

    data: Any
    is_escaped: bool


@dataclass(frozen=True, slots=True)
class StoredCommit:
    """A commit, with what its raw may lack: the numbers of lines, that they are owed, or that its empty list
    of parents means nothing."""

    sha: str
    raw: StoredRaw
    additions: int | None
    deletions: int | None
    stats_unread: bool
    parents_unknown: bool


@dataclass(frozen=True, slots=True)
class StoredMergeRequest:
    """A merge request with its children in the order of the source; None where they were never read. What
    only versions say is in three columns of it."""

    iid: int
    raw: StoredRaw
    base_sha: str | None
    start_sha: str | None
    changes_count: str | None
    versions: tuple[tuple[int, StoredRaw], ...] | None
    commits: tuple[StoredRaw, ...] | None


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """An event of a review, with what its raw does not say. ``is_gone``: the source no longer shows it.
    ``is_wanted``: it is of the time that is asked for; others are there because they belong together."""

    mr_iid: int
    event_id: str
    origin: Origin
    raw: StoredRaw
    discussion_id: str | None
    is_reply: bool
    duplicate_of: str | None
    is_gone: bool
    is_wanted: bool


def commits_after(
    conn: Connection, repo_id: int, after: str | None, since: datetime | None, limit: int
) -> list[StoredCommit]:
    """At most ``limit`` commits whose names come after ``after``, in order; with ``since`` (UTC) those from
    then on and those without a time."""
    params = {"repo_id": repo_id, "after": after or "", "since": since, "limit": limit}
    return [
        StoredCommit(
            sha=row["commit_sha"],
            raw=_raw(row),
            additions=row["additions"],
            deletions=row["deletions"],
            stats_unread=commits.STATS_UNREAD in row["flags"],
            parents_unknown=row["parents_unknown"],
        )
        for row in conn.execute(_COMMITS, params)
    ]


def merge_requests_after(
    conn: Connection, repo_id: int, after: int | None, since: datetime | None, limit: int
) -> list[StoredMergeRequest]:
    """The merge requests whose numbers come after ``after``, in order: as many as are ``limit`` rows with
    their children, but at least one; with ``since`` (UTC) those that were updated from then on."""
    iids = _next(conn, _NEXT_MERGE_REQUESTS, repo_id, after, since, limit)
    params = {"repo_id": repo_id, "iids": iids}
    versions: dict[int, list[tuple[int, StoredRaw]]] = {iid: [] for iid in iids}
    found: dict[int, list[StoredRaw]] = {iid: [] for iid in iids}
    for row in conn.execute(_VERSIONS, params):
        versions[row["mr_iid"]].append((row["version_id"], _raw(row)))
    for row in conn.execute(_MERGE_REQUEST_COMMITS, params):
        found[row["mr_iid"]].append(_raw(row))
    return [
        StoredMergeRequest(
            iid=row["iid"],
            raw=_raw(row),
            base_sha=row["base_sha"],
            start_sha=row["start_sha"],
            changes_count=row["changes_count"],
            versions=tuple(versions[row["iid"]]) if row["has_versions"] else None,
            commits=tuple(found[row["iid"]]) if row["has_commits"] else None,
        )
        for row in conn.execute(_MERGE_REQUESTS, params)
    ]


def events_after(
    conn: Connection, repo_id: int, after: int | None, since: datetime | None, limit: int
) -> list[StoredEvent]:
    """All events of the merge requests whose numbers come after ``after``, in order: as many merge requests
    as have ``limit`` events, but at least one; with ``since`` (UTC) those with an event that is wanted."""
    iids = _next(conn, _NEXT_REVIEWS, repo_id, after, since, limit)
    return [
        StoredEvent(
            mr_iid=row["mr_iid"],
            event_id=row["source_event_id"],
            origin=Origin(row["origin"]),
            raw=_raw(row),
            discussion_id=row["discussion_id"],
            is_reply=row["is_reply"],
            duplicate_of=row["duplicate_of"],
            is_gone=row["is_gone"],
            is_wanted=row["is_wanted"],
        )
        for row in conn.execute(_EVENTS, {"repo_id": repo_id, "iids": iids, "since": since})
    ]


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


def _raw(row: dict[str, Any]) -> StoredRaw:
    is_escaped = ESCAPED in row["flags"]
    return StoredRaw(restored(row["raw"], is_escaped), is_escaped)


def put_commits(conn: Connection, *, repo_id: int, batch_id: int | None, rows: Sequence[CommitRow]) -> Counts:
    """Make stored commits what ``rows`` say; returns how many that changes, counted by the database. Nothing
    is written without ``batch_id``."""
    columns = {(row.sha,): commits.columns(row) for row in rows}
    params = {"repo_id": repo_id, "batch_id": batch_id}
    return _put(conn, _OTHER_COMMITS, _UPDATE_COMMITS, params, columns)


def put_merge_requests(
    conn: Connection, *, repo_id: int, batch_id: int | None, rows: Sequence[MergeRequestRow]
) -> Counts:
    """As :func:`put_commits`, for merge requests with their versions and commits, where these are not None. A
    changed child is a new version of its merge request."""
    params = {"repo_id": repo_id, "batch_id": batch_id}
    children = {row.iid: merge_requests.Children(row) for row in rows}
    versions = [one for each in children.values() for one in each.versions or ()]
    found = [one for each in children.values() for one in each.commits or ()]
    touched = _put_children(
        conn,
        _OTHER_VERSIONS,
        _UPDATE_VERSIONS,
        params,
        {(one["mr_iid"], one["version_id"]): one for one in versions},
    )
    touched |= _put_children(
        conn,
        _OTHER_MERGE_REQUEST_COMMITS,
        _UPDATE_MERGE_REQUEST_COMMITS,
        params,
        {(one["mr_iid"], one["position"]): one for one in found},
    )
    columns = {(row.iid,): merge_requests.columns(row, children[row.iid]) for row in rows}
    return _put(conn, _OTHER_MERGE_REQUESTS, _UPDATE_MERGE_REQUESTS, params, columns, touched)


def put_events(
    conn: Connection, *, repo_id: int, batch_id: int | None, rows: Sequence[ReviewEventRow]
) -> Counts:
    """As :func:`put_commits`, for events of reviews. How completely a review was read stays as it is."""
    columns = {(row.mr_iid, row.event_id): reviews.columns(row) for row in rows}
    params = {"repo_id": repo_id, "batch_id": batch_id}
    return _put(conn, _OTHER_EVENTS, _UPDATE_EVENTS, params, columns)


_Columns = dict[tuple[Any, ...], dict[str, Any]]


def _put(
    conn: Connection,
    compare: str,
    update: str,
    params: dict[str, Any],
    columns: _Columns,
    touched: Iterable[tuple[Any, ...]] = (),
) -> Counts:
    raised: dict[tuple[Any, ...], int] = {}
    changed = set(touched)
    for row in _differences(conn, compare, params, columns):
        *key, is_changed, is_rehashed = row
        if is_changed or tuple(key) in changed:
            raised[tuple(key)] = 1
        elif is_rehashed:
            raised[tuple(key)] = 0
    _write(conn, update, params, (columns[key] | {"raised": n} for key, n in raised.items()))
    updated = sum(raised.values())
    return Counts(read=len(columns), updated=updated, unchanged=len(columns) - updated)


def _put_children(
    conn: Connection, compare: str, update: str, params: dict[str, Any], columns: _Columns
) -> set[tuple[Any, ...]]:
    """Returns the keys of the merge requests of which a child differs."""
    keys = _differences(conn, compare, params, columns)
    _write(conn, update, params, (columns[key] for key in keys))
    return {(iid,) for iid, _ in keys}


def _differences(
    conn: Connection, compare: str, params: dict[str, Any], columns: _Columns
) -> list[tuple[Any, ...]]:
    if not columns:
        return []
    rows = recordset(_without_raw(one) for one in columns.values())
    return [tuple(row.values()) for row in conn.execute(compare, params | {"rows": rows})]


def _write(conn: Connection, update: str, params: dict[str, Any], rows: Iterable[dict[str, Any]]) -> None:
    if params["batch_id"] is None:
        return
    if found := [_without_raw(row) for row in rows]:
        conn.execute(update, params | {"rows": recordset(found)})


def _without_raw(columns: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in columns.items() if name != "raw"}


def resolve(conn: Connection, repo_id: int, job_type: JobType, keys: Sequence[str]) -> None:
    """The raws that quarantine knows by these keys can be read now."""
    conn.execute(_RESOLVE, {"repo_id": repo_id, "job_type": str(job_type), "keys": list(keys)})
