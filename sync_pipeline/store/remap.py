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

# What differs, for each kind of fact: ``changed`` where a reader of the table would see it, else only the
# hash, as after a change of what is hashed. Sets of people and labels come in any order.
_OTHER_COMMITS = """
SELECT s.commit_sha,
       (c.parents, c.author_name, c.author_email, c.authored_at, c.authored_raw, c.committer_name,
        c.committer_email, c.committed_at, c.committed_raw, c.title, c.message, c.additions, c.deletions,
        c.web_url, c.flags) IS DISTINCT FROM
       (s.parents, s.author_name, s.author_email, s.authored_at, s.authored_raw, s.committer_name,
        s.committer_email, s.committed_at, s.committed_raw, s.title, s.message, s.additions, s.deletions,
        s.web_url, s.flags) AS changed,
       c.content_hash <> s.content_hash AS rehashed
  FROM json_to_recordset(%(rows)s)
    AS s (commit_sha text, parents text[], author_name text, author_email text, authored_at timestamptz,
          authored_raw text, committer_name text, committer_email text, committed_at timestamptz,
          committed_raw text, title text, message text, additions bigint, deletions bigint, web_url text,
          flags text[], content_hash bytea)
  JOIN scm.git_commits AS c ON c.repo_id = %(repo_id)s AND c.commit_sha = s.commit_sha
"""
_OTHER_MERGE_REQUESTS = """
SELECT s.iid,
       (m.gitlab_id, m.project_id, m.status, m.title, m.description, m.is_draft, m.author_id,
        m.author_username, m.author_name, m.merged_by_id, m.merged_by_username, m.closed_by_id,
        m.closed_by_username, m.milestone, m.created_at, m.updated_at, m.merged_at, m.closed_at,
        m.prepared_at, m.source_project_id, m.source_branch, m.target_branch, m.head_sha, m.merge_commit_sha,
        m.squash_commit_sha, m.base_sha, m.start_sha, m.changes_count, m.user_notes_count, m.url, m.flags)
       IS DISTINCT FROM
       (s.gitlab_id, s.project_id, s.status, s.title, s.description, s.is_draft, s.author_id,
        s.author_username, s.author_name, s.merged_by_id, s.merged_by_username, s.closed_by_id,
        s.closed_by_username, s.milestone, s.created_at, s.updated_at, s.merged_at, s.closed_at,
        s.prepared_at, s.source_project_id, s.source_branch, s.target_branch, s.head_sha, s.merge_commit_sha,
        s.squash_commit_sha, s.base_sha, s.start_sha, s.changes_count, s.user_notes_count, s.url, s.flags)
       OR NOT (m.assignees @> s.assignees AND m.assignees <@ s.assignees)
       OR NOT (m.reviewers @> s.reviewers AND m.reviewers <@ s.reviewers)
       OR NOT (m.labels @> s.labels AND m.labels <@ s.labels) AS changed,
       m.content_hash <> s.content_hash
       OR coalesce(s.versions_hash, m.versions_hash) IS DISTINCT FROM m.versions_hash
       OR coalesce(s.commits_hash, m.commits_hash) IS DISTINCT FROM m.commits_hash AS rehashed
  FROM json_to_recordset(%(rows)s)
    AS s (iid bigint, gitlab_id bigint, project_id bigint, status text, title text, description text,
          is_draft boolean, author_id bigint, author_username text, author_name text, merged_by_id bigint,
          merged_by_username text, closed_by_id bigint, closed_by_username text, assignees jsonb,
          reviewers jsonb, labels text[], milestone text, created_at timestamptz, updated_at timestamptz,
          merged_at timestamptz, closed_at timestamptz, prepared_at timestamptz, source_project_id bigint,
          source_branch text, target_branch text, head_sha text, merge_commit_sha text,
          squash_commit_sha text, base_sha text, start_sha text, changes_count text, user_notes_count bigint,
          url text, flags text[], versions_hash bytea, commits_hash bytea, content_hash bytea)
  JOIN scm.mrs AS m ON m.repo_id = %(repo_id)s AND m.replaced_id = 0 AND m.iid = s.iid
"""
_OTHER_VERSIONS = """
SELECT s.mr_iid, s.version_id
  FROM json_to_recordset(%(rows)s)
    AS s (mr_iid bigint, version_id bigint, head_sha text, base_sha text, start_sha text,
          created_at timestamptz, state text, size text, patch_id text, flags text[])
  JOIN scm.mr_versions AS v
    ON v.repo_id = %(repo_id)s AND v.replaced_id = 0 AND v.mr_iid = s.mr_iid AND v.version_id = s.version_id
 WHERE (v.head_sha, v.base_sha, v.start_sha, v.created_at, v.state, v.size, v.patch_id, v.flags)
       IS DISTINCT FROM
       (s.head_sha, s.base_sha, s.start_sha, s.created_at, s.state, s.size, s.patch_id, s.flags)
"""
_OTHER_MERGE_REQUEST_COMMITS = """
SELECT s.mr_iid, s.position
  FROM json_to_recordset(%(rows)s)
    AS s (mr_iid bigint, position integer, commit_sha text, title text, message text, author_name text,
          author_email text, authored_at timestamptz, committer_name text, committer_email text,
          committed_at timestamptz, flags text[])
  JOIN scm.mr_commits AS c
    ON c.repo_id = %(repo_id)s AND c.replaced_id = 0 AND c.mr_iid = s.mr_iid AND c.position = s.position
 WHERE (c.commit_sha, c.title, c.message, c.author_name, c.author_email, c.authored_at, c.committer_name,
        c.committer_email, c.committed_at, c.flags) IS DISTINCT FROM
       (s.commit_sha, s.title, s.message, s.author_name, s.author_email, s.authored_at, s.committer_name,
        s.committer_email, s.committed_at, s.flags)
"""
_OTHER_EVENTS = """
SELECT s.mr_iid, s.source_event_id,
       (e.event_type, e.reviewer_id, e.reviewer_username, e.reviewer_name, e.ts, e.updated_at, e.body,
        e.is_system, e.is_internal, e.resolvable, e.resolved, e.resolved_by_id, e.resolved_by_username,
        e.resolved_at, e.position, e.details, e.duplicate_of, e.flags) IS DISTINCT FROM
       (s.event_type, s.reviewer_id, s.reviewer_username, s.reviewer_name, s.ts, s.updated_at, s.body,
        s.is_system, s.is_internal, s.resolvable, s.resolved, s.resolved_by_id, s.resolved_by_username,
        s.resolved_at, s.position, s.details, s.duplicate_of, s.flags) AS changed,
       e.content_hash <> s.content_hash AS rehashed
  FROM json_to_recordset(%(rows)s)
    AS s (mr_iid bigint, source_event_id text, event_type text, reviewer_id bigint, reviewer_username text,
          reviewer_name text, ts timestamptz, updated_at timestamptz, body text, is_system boolean,
          is_internal boolean, resolvable boolean, resolved boolean, resolved_by_id bigint,
          resolved_by_username text, resolved_at timestamptz, position jsonb, details jsonb,
          duplicate_of text, flags text[], content_hash bytea)
  JOIN scm.review_events AS e
    ON e.repo_id = %(repo_id)s AND e.replaced_id = 0 AND e.mr_iid = s.mr_iid
   AND e.source_event_id = s.source_event_id
"""

# Writes what differs; ``raised`` is 1 for a new version, 0 where only the hash is another one.
_UPDATE_COMMITS = """
UPDATE scm.git_commits AS c
   SET parents = s.parents, author_name = s.author_name, author_email = s.author_email,
       authored_at = s.authored_at, authored_raw = s.authored_raw, committer_name = s.committer_name,
       committer_email = s.committer_email, committed_at = s.committed_at, committed_raw = s.committed_raw,
       title = s.title, message = s.message, additions = s.additions, deletions = s.deletions,
       web_url = s.web_url, flags = s.flags, content_hash = s.content_hash, version = c.version + s.raised,
       batch_id = CASE s.raised WHEN 1 THEN %(batch_id)s ELSE c.batch_id END,
       stored_at = CASE s.raised WHEN 1 THEN now() ELSE c.stored_at END
  FROM json_to_recordset(%(rows)s)
    AS s (commit_sha text, parents text[], author_name text, author_email text, authored_at timestamptz,
          authored_raw text, committer_name text, committer_email text, committed_at timestamptz,
          committed_raw text, title text, message text, additions bigint, deletions bigint, web_url text,
          flags text[], content_hash bytea, raised integer)
 WHERE c.repo_id = %(repo_id)s AND c.commit_sha = s.commit_sha
"""
_UPDATE_MERGE_REQUESTS = """
UPDATE scm.mrs AS m
   SET gitlab_id = s.gitlab_id, project_id = s.project_id, status = s.status, title = s.title,
       description = s.description, is_draft = s.is_draft, author_id = s.author_id,
       author_username = s.author_username, author_name = s.author_name, merged_by_id = s.merged_by_id,
       merged_by_username = s.merged_by_username, closed_by_id = s.closed_by_id,
       closed_by_username = s.closed_by_username, assignees = s.assignees, reviewers = s.reviewers,
       labels = s.labels, milestone = s.milestone, created_at = s.created_at, updated_at = s.updated_at,
       merged_at = s.merged_at, closed_at = s.closed_at, prepared_at = s.prepared_at,
       source_project_id = s.source_project_id, source_branch = s.source_branch,
       target_branch = s.target_branch, head_sha = s.head_sha, merge_commit_sha = s.merge_commit_sha,
       squash_commit_sha = s.squash_commit_sha, base_sha = s.base_sha, start_sha = s.start_sha,
       changes_count = s.changes_count, user_notes_count = s.user_notes_count, url = s.url, flags = s.flags,
       versions_hash = coalesce(s.versions_hash, m.versions_hash),
       commits_hash = coalesce(s.commits_hash, m.commits_hash), content_hash = s.content_hash,
       version = m.version + s.raised,
       batch_id = CASE s.raised WHEN 1 THEN %(batch_id)s ELSE m.batch_id END,
       stored_at = CASE s.raised WHEN 1 THEN now() ELSE m.stored_at END
  FROM json_to_recordset(%(rows)s)
    AS s (iid bigint, gitlab_id bigint, project_id bigint, status text, title text, description text,
          is_draft boolean, author_id bigint, author_username text, author_name text, merged_by_id bigint,
          merged_by_username text, closed_by_id bigint, closed_by_username text, assignees jsonb,
          reviewers jsonb, labels text[], milestone text, created_at timestamptz, updated_at timestamptz,
          merged_at timestamptz, closed_at timestamptz, prepared_at timestamptz, source_project_id bigint,
          source_branch text, target_branch text, head_sha text, merge_commit_sha text,
          squash_commit_sha text, base_sha text, start_sha text, changes_count text, user_notes_count bigint,
          url text, flags text[], versions_hash bytea, commits_hash bytea, content_hash bytea,
          raised integer)
 WHERE m.repo_id = %(repo_id)s AND m.replaced_id = 0 AND m.iid = s.iid
"""
_UPDATE_VERSIONS = """
UPDATE scm.mr_versions AS v
   SET head_sha = s.head_sha, base_sha = s.base_sha, start_sha = s.start_sha, created_at = s.created_at,
       state = s.state, size = s.size, patch_id = s.patch_id, flags = s.flags
  FROM json_to_recordset(%(rows)s)
    AS s (mr_iid bigint, version_id bigint, head_sha text, base_sha text, start_sha text,
          created_at timestamptz, state text, size text, patch_id text, flags text[])
 WHERE v.repo_id = %(repo_id)s AND v.replaced_id = 0 AND v.mr_iid = s.mr_iid AND v.version_id = s.version_id
"""
_UPDATE_MERGE_REQUEST_COMMITS = """
UPDATE scm.mr_commits AS c
   SET commit_sha = s.commit_sha, title = s.title, message = s.message, author_name = s.author_name,
       author_email = s.author_email, authored_at = s.authored_at, committer_name = s.committer_name,
       committer_email = s.committer_email, committed_at = s.committed_at, flags = s.flags
  FROM json_to_recordset(%(rows)s)
    AS s (mr_iid bigint, position integer, commit_sha text, title text, message text, author_name text,
          author_email text, authored_at timestamptz, committer_name text, committer_email text,
          committed_at timestamptz, flags text[])
 WHERE c.repo_id = %(repo_id)s AND c.replaced_id = 0 AND c.mr_iid = s.mr_iid AND c.position = s.position
"""
_UPDATE_EVENTS = """
UPDATE scm.review_events AS e
   SET event_type = s.event_type, reviewer_id = s.reviewer_id, reviewer_username = s.reviewer_username,
       reviewer_name = s.reviewer_name, ts = s.ts, updated_at = s.updated_at, body = s.body,
       is_system = s.is_system, is_internal = s.is_internal, resolvable = s.resolvable,
       resolved = s.resolved, resolved_by_id = s.resolved_by_id,
       resolved_by_username = s.resolved_by_username, resolved_at = s.resolved_at, position = s.position,
       details = s.details, duplicate_of = s.duplicate_of, flags = s.flags, content_hash = s.content_hash,
       version = e.version + s.raised,
       batch_id = CASE s.raised WHEN 1 THEN %(batch_id)s ELSE e.batch_id END,
       stored_at = CASE s.raised WHEN 1 THEN now() ELSE e.stored_at END
  FROM json_to_recordset(%(rows)s)
    AS s (mr_iid bigint, source_event_id text, event_type text, reviewer_id bigint, reviewer_username text,
          reviewer_name text, ts timestamptz, updated_at timestamptz, body text, is_system boolean,
          is_internal boolean, resolvable boolean, resolved boolean, resolved_by_id bigint,
          resolved_by_username text, resolved_at timestamptz, position jsonb, details jsonb,
          duplicate_of text, flags text[], content_hash bytea, raised integer)
 WHERE e.repo_id = %(repo_id)s AND e.replaced_id = 0 AND e.mr_iid = s.mr_iid
   AND e.source_event_id = s.source_event_id
"""

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
    columns = {(row.mr_iid, row.event_id): reviews.columns(row.mr_iid, row) for row in rows}
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
