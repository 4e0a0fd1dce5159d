"""Merge requests of GitLab: how a page of them gets into the tables, with versions and commits.

Belongs here: ``scm.mrs``, ``scm.mr_versions`` and ``scm.mr_commits``, and which merge requests have to be
read though their ``updated_at`` is unchanged. Runs inside the caller's fenced transaction. Reviews are in
:mod:`sync_pipeline.facts.reviews`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sync_pipeline.core.gitlab_rows import CommitRow, MergeRequestRow, MergeRequestVersion
from sync_pipeline.core.model import Counts, DeferredFetch, JobType
from sync_pipeline.database.pool import Connection
from sync_pipeline.database.queries import queries
from sync_pipeline.database.rows import only_value
from sync_pipeline.database.values import content_hash, flags, payload, recordset
from sync_pipeline.facts import quarantine
from sync_pipeline.facts.tables import MERGE_REQUEST_COMMITS, MERGE_REQUESTS, VERSIONS

_SQL = queries("merge_requests")

Commits = tuple[CommitRow, ...]


# The upsert. The newer version of the source wins, then the later observation. A stored time in the server's
# future is no newer version: that clock was set back, or the time was wrong. Columns of versions, and sets of
# children, stay if they were not read. A version that was read may have no merge base. Equal content changes
# nothing.
_UPSERT = MERGE_REQUESTS.sql("""
INSERT INTO scm.mrs AS t (repo_id, {columns}, batch_id)
SELECT %(repo_id)s, {columns}, %(batch_id)s
  FROM json_to_recordset(%(rows)s) AS s ({types})
 ORDER BY iid
ON CONFLICT (repo_id, iid, replaced_id) DO UPDATE
   SET {excluded},
       base_sha = CASE WHEN EXCLUDED.versions_hash IS NULL
                        AND t.head_sha IS NOT DISTINCT FROM EXCLUDED.head_sha
                       THEN coalesce(EXCLUDED.base_sha, t.base_sha) ELSE EXCLUDED.base_sha END,
       start_sha = CASE WHEN EXCLUDED.versions_hash IS NULL
                         AND t.head_sha IS NOT DISTINCT FROM EXCLUDED.head_sha
                        THEN coalesce(EXCLUDED.start_sha, t.start_sha) ELSE EXCLUDED.start_sha END,
       changes_count = CASE WHEN EXCLUDED.versions_hash IS NULL
                             AND t.head_sha IS NOT DISTINCT FROM EXCLUDED.head_sha
                            THEN coalesce(EXCLUDED.changes_count, t.changes_count)
                            ELSE EXCLUDED.changes_count END,
       raw = CASE WHEN t.content_hash = EXCLUDED.content_hash THEN t.raw ELSE EXCLUDED.raw END,
       versions_hash = coalesce(EXCLUDED.versions_hash, t.versions_hash),
       commits_hash = coalesce(EXCLUDED.commits_hash, t.commits_hash),
       content_hash = EXCLUDED.content_hash, batch_id = EXCLUDED.batch_id, version = t.version + 1,
       deleted_at = NULL, stored_at = now()
 WHERE (t.updated_at < EXCLUDED.updated_at
        OR (t.updated_at = EXCLUDED.updated_at AND t.batch_id <= EXCLUDED.batch_id)
        OR (t.updated_at > %(server_now)s AND t.read_at < %(begun)s))
   AND (t.content_hash <> EXCLUDED.content_hash
        OR t.deleted_at IS NOT NULL
        OR (EXCLUDED.versions_hash IS NOT NULL
            AND (EXCLUDED.base_sha, EXCLUDED.start_sha, EXCLUDED.changes_count)
                IS DISTINCT FROM (t.base_sha, t.start_sha, t.changes_count))
        OR coalesce(EXCLUDED.base_sha, t.base_sha) IS DISTINCT FROM t.base_sha
        OR coalesce(EXCLUDED.start_sha, t.start_sha) IS DISTINCT FROM t.start_sha
        OR coalesce(EXCLUDED.changes_count, t.changes_count) IS DISTINCT FROM t.changes_count
        OR coalesce(EXCLUDED.versions_hash, t.versions_hash) IS DISTINCT FROM t.versions_hash
        OR coalesce(EXCLUDED.commits_hash, t.commits_hash) IS DISTINCT FROM t.commits_hash)
RETURNING iid, (xmax = 0) AS inserted
""")


_INSERT_VERSIONS = VERSIONS.sql("""
INSERT INTO scm.mr_versions (repo_id, {columns})
SELECT %(repo_id)s, {columns} FROM json_to_recordset(%(rows)s) AS s ({types})
""")


_INSERT_COMMITS = MERGE_REQUEST_COMMITS.sql("""
INSERT INTO scm.mr_commits (repo_id, {columns})
SELECT %(repo_id)s, {columns} FROM json_to_recordset(%(rows)s) AS s ({types})
""")


# Columns that the statements beside the upsert need.
_BRIEF = (
    "iid",
    "gitlab_id",
    "updated_at",
    "head_sha",
    "target_branch",
    "versions_hash",
    "commits_hash",
    "has_children",
)


def store_merge_requests(
    conn: Connection,
    *,
    repo_id: int,
    batch_id: int,
    rows: Sequence[MergeRequestRow],
    deferred: Sequence[DeferredFetch] = (),
    server_now: datetime | None = None,
    begun: datetime | None = None,
    overriding: Collection[str] = (),
) -> Counts:
    """Write merge requests and their children; returns what that changed, counted by the database.

    A changed set of versions or commits is an update of the merge request. ``deferred`` are the details of
    these rows that could not be read. ``server_now`` is the server's clock at its answer, and ``begun`` the
    database's before the server was asked. For keys in ``overriding`` the copy replaces the stored row,
    whatever its age. A merge request that comes twice is one row, the newer copy. A stored merge request with
    the same number and another ``gitlab_id`` is gone: it keeps its rows and counts as read and updated.
    Raises psycopg.Error where the database refuses a row.
    """
    once: dict[int, MergeRequestRow] = {}
    for row in rows:
        if row.iid not in once or row.updated_at >= once[row.iid].updated_at:
            once[row.iid] = row
    if not once:
        return Counts()
    children = {iid: Children(row) for iid, row in once.items()}
    values = {row.iid: columns(row, children[row.iid]) for row in once.values()}
    params: dict[str, Any] = {
        "repo_id": repo_id,
        "batch_id": batch_id,
        "server_now": server_now,
        "begun": begun,
        # Only the upsert needs all columns. Sending them with each statement took 1.4 times as long.
        "rows": recordset({name: one[name] for name in _BRIEF} for one in values.values()),
    }
    replaced = [row["iid"] for row in conn.execute(_SQL["replace"], params)]
    if replaced:
        conn.execute(_SQL["restore"], params)
        quarantine.settle_gone(conn, repo_id, [JobType.MERGE_REQUESTS], replaced)
    if again := [iid for iid in once if str(iid) in overriding]:
        conn.execute(_SQL["invalidate"], params | {"iids": again})
    other = {row["iid"]: row for row in conn.execute(_SQL["changed_sets"], params)}
    upserted = conn.execute(_UPSERT, params | {"rows": recordset(values.values())})
    written = {row["iid"]: row["inserted"] for row in upserted}
    versions = [iid for iid in written if other[iid]["versions"]]
    commits = [iid for iid in written if other[iid]["commits"]]
    if versions:
        conn.execute(_SQL["drop_versions"], params | {"iids": versions})
        found = recordset(one for iid in versions for one in children[iid].versions or ())
        conn.execute(_INSERT_VERSIONS, params | {"rows": found})
    if commits:
        conn.execute(_SQL["drop_commits"], params | {"iids": commits})
        found = recordset(one for iid in commits for one in children[iid].commits or ())
        conn.execute(_INSERT_COMMITS, params | {"rows": found})
    current = [row["iid"] for row in conn.execute(_SQL["read"], params)]
    unread = {(one.natural_key, one.detail) for one in deferred}
    read = {(str(iid), detail) for iid in current for detail in _details(once[iid])} - unread
    quarantine.settle(conn, repo_id, JobType.MERGE_REQUESTS, map(str, once), read)
    inserted = sum(written.values())
    return Counts(
        read=len(once) + len(replaced),
        inserted=inserted,
        updated=len(written) - inserted + len(replaced),
        unchanged=len(once) - len(written),
    )


class Children:
    """The sets of children of one row as columns, with their hashes; None where they were not read."""

    def __init__(self, row: MergeRequestRow) -> None:
        self.versions: list[dict[str, Any]] | None = None
        self.commits: list[dict[str, Any]] | None = None
        self.versions_hash = self.commits_hash = None
        # One that has a head has a version; where there is none the server has not made it yet, or failed.
        if row.versions or (row.versions is not None and row.head_sha is None):
            once = {version.version_id: version for version in row.versions}
            self.versions = [_version(row.iid, once[number]) for number in sorted(once)]
            self.versions_hash = _set_hash(self.versions)
        if row.commits is not None:
            self.commits = [_commit(row.iid, position, one) for position, one in enumerate(row.commits, 1)]
            self.commits_hash = _set_hash(self.commits)
        # A version is made a moment after the push: until it is there, the sets are those of an older head.
        newest = max(row.versions or (), key=lambda version: version.version_id, default=None)
        self.are_of_the_head = (
            row.commits is not None and newest is not None and newest.head_sha == row.head_sha
        )


def _set_hash(columns: Iterable[dict[str, Any]]) -> bytes:
    return content_hash([[value for name, value in one.items() if name != "raw"] for one in columns])


def _version(iid: int, version: MergeRequestVersion) -> dict[str, Any]:
    raw, escaped = payload(version.raw)
    return {"mr_iid": iid} | VERSIONS.values(version) | {"flags": flags(escaped=escaped), "raw": raw}


def _commit(iid: int, position: int, commit: CommitRow) -> dict[str, Any]:
    raw, escaped = payload(commit.raw)
    return (
        {"mr_iid": iid, "position": position}
        | MERGE_REQUEST_COMMITS.values(commit)
        | {"flags": flags(commit.flags, escaped=escaped), "raw": raw}
    )


def columns(row: MergeRequestRow, children: Children) -> dict[str, Any]:
    """The columns of ``scm.mrs`` that ``row`` says, with the hashes over them and over its ``children``."""
    raw, escaped = payload(row.raw)
    values = MERGE_REQUESTS.values(row) | {"flags": flags(row.flags, escaped=escaped)}
    return values | {
        "raw": raw,
        "versions_hash": children.versions_hash,
        "commits_hash": children.commits_hash,
        "has_children": children.are_of_the_head,
        "content_hash": MERGE_REQUESTS.hash(values),
    }


def _details(row: MergeRequestRow) -> Iterable[str]:
    """The details that came with this copy, or that it no longer needs."""
    if row.versions is not None:
        yield "versions"
    if row.commits is not None:
        yield "commits"
    if row.versions is not None or row.base_sha is not None:
        yield "detail"


def delete_unlisted(conn: Connection, repo_id: int, job_type: JobType, key: str) -> None:
    """Resolve the entry and the deferred fetch under ``key``: the rows came after all, or have other keys
    now.
    """
    conn.execute(_SQL["delete_unlisted"], {"repo_id": repo_id, "job_type": str(job_type), "key": key})


@dataclass(frozen=True, slots=True)
class StoredHead:
    """The stored state of the versions and commits of a merge request. ``children`` are the head and target
    branch for which both are stored; ``base_sha`` and ``start_sha`` are of its newest version.

    ``is_planned``: they are to be read later, for ``listed``: the head and target branch of the stored row.
    ``is_unsure``: the server may have a new comparison for the same head, if the merge request was updated
    after ``updated_at``. ``has_failed``: a fetch failed.
    """

    updated_at: datetime
    children: tuple[str | None, str | None]
    listed: tuple[str | None, str | None]
    base_sha: str | None
    start_sha: str | None
    is_unsure: bool
    is_planned: bool
    has_failed: bool


def stored_heads(conn: Connection, repo_id: int, ids: Mapping[int, int]) -> dict[int, StoredHead]:
    """The stored state of the children of merge requests, given by number with their ``gitlab_id``."""
    params = {"repo_id": repo_id, "iids": list(ids), "ids": list(ids.values())}
    return {
        row["iid"]: StoredHead(
            row["updated_at"],
            (row["children_head"], row["children_target"]),
            (row["head_sha"], row["target_branch"]),
            row["base_sha"],
            row["start_sha"],
            row["is_unsure"],
            row["is_planned"],
            row["has_failed"],
        )
        for row in conn.execute(_SQL["stored_heads"], params)
    }


# Commits that are looked up for one merge request. One with more is asked for its list.
_LONGEST_CHAIN = 250


def known_commits(conn: Connection, repo_id: int, rows: Iterable[MergeRequestRow]) -> dict[int, Commits]:
    """The commits of those merge requests whose branch is stored whole, by number, newest first. ``rows``
    have their versions: a branch goes from the head of the newest one to its merge base.
    """
    asked = []
    for row in rows:
        newest = max(row.versions or (), key=lambda version: version.version_id, default=None)
        if (
            newest is not None
            and newest.head_sha == row.head_sha
            and newest.base_sha not in (None, row.head_sha)
        ):
            asked.append({"iid": row.iid, "head": row.head_sha, "base": newest.base_sha})
    if not asked:
        return {}
    params = {"repo_id": repo_id, "rows": recordset(asked), "limit": _LONGEST_CHAIN}
    # Without the merge base.
    chains = {row["iid"]: row["shas"][:-1] for row in conn.execute(_SQL["commit_chains"], params)}
    shas = {sha for chain in chains.values() for sha in chain}
    found = {row["sha"]: row for row in conn.execute(_SQL["stored_commits"], params | {"shas": list(shas)})}
    return {iid: tuple(_stored_commit(found[sha]) for sha in chain) for iid, chain in chains.items()}


def _stored_commit(row: dict[str, Any]) -> CommitRow:
    return CommitRow(
        parents=None,
        authored_raw=None,
        committed_raw=None,
        additions=None,
        deletions=None,
        web_url=None,
        **row | {"flags": tuple(row["flags"])},
    )


def unread_heads(conn: Connection, repo_id: int, project_id: int, instance: str) -> list[int]:
    """Open merge requests whose source branch was pushed to since they were read. ``project_id`` and
    ``instance`` are those of the repository; the branch may be in another registered one of the instance."""
    params = {"repo_id": repo_id, "project_id": project_id, "instance": instance}
    return [row["iid"] for row in conn.execute(_SQL["unread_heads"], params)]


def oldest_read_open(conn: Connection, repo_id: int, older_than: timedelta, limit: int) -> list[int]:
    """At most ``limit`` open merge requests that were not read for ``older_than``, the longest first."""
    params = {"repo_id": repo_id, "older_than": older_than, "limit": limit}
    return [row["iid"] for row in conn.execute(_SQL["oldest_read_open"], params)]


def old_addresses(conn: Connection, repo_id: int, limit: int) -> list[int]:
    """At most ``limit`` merge requests that were not read since the project moved, and whose ``url`` does not
    have its path of now."""
    return [row["iid"] for row in conn.execute(_SQL["old_addresses"], {"repo_id": repo_id, "limit": limit})]


def postpone(conn: Connection, repo_id: int, iids: Sequence[int]) -> None:
    """These were requested and did not come: the scan comes back to them after all others."""
    conn.execute(_SQL["asked"], {"repo_id": repo_id, "iids": list(iids)})


def count_merge_requests(conn: Connection, repo_id: int) -> int:
    """How many merge requests of the repository are stored, without tombstones."""
    return int(only_value(conn.execute(_SQL["count_merge_requests"], {"repo_id": repo_id})))
