"""Rows as a source has them now, compared with the stored rows, value by value.

Belongs here: reading the stored rows of some keys, and which columns differ by the column lists of
:mod:`sync_pipeline.facts.tables`. It compares values and no stored hash: a row that was changed behind
our back keeps its old hash. ``raw`` is not compared, because it holds values that change without meaning.
Does not belong here: reading a source, and what follows from a difference.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby
from operator import itemgetter
from typing import Any, LiteralString

from psycopg.types.json import Jsonb

from sync_pipeline.core.gitlab_rows import CommitRow, MergeRequestRow, Origin, ReviewSet
from sync_pipeline.core.model import (
    BEGINNING,
    DifferenceKind,
    JobType,
    PathChange,
    RevisionRow,
    RevisionWindow,
    Visibility,
)
from sync_pipeline.database.pool import Connection
from sync_pipeline.database.queries import queries
from sync_pipeline.database.values import ESCAPED, recordset, restored
from sync_pipeline.facts import commits, merge_requests, reviews, svn_revisions
from sync_pipeline.facts.tables import (
    COMMITS,
    MERGE_REQUEST_COMMITS,
    MERGE_REQUESTS,
    REVIEW_EVENTS,
    VERSIONS,
    Table,
    comparable,
)

Row = Mapping[str, Any]
Key = tuple[Any, ...]

# Stored rows by the first part of their key, with the columns that the source fills.
_ROWS = """
SELECT {names} FROM {table}
 WHERE repo_id = %(repo_id)s AND {group} = ANY (%(keys)s) AND deleted_at IS NULL
"""
_COMMITS = COMMITS.sql(_ROWS)
_MERGE_REQUESTS = MERGE_REQUESTS.sql(_ROWS)
_EVENTS = REVIEW_EVENTS.sql("""
SELECT {names}, missing_since FROM {table}
 WHERE repo_id = %(repo_id)s AND {group} = ANY (%(keys)s) AND deleted_at IS NULL
""")
# Children of merge requests, in the order of their keys.
_CHILDREN = """
SELECT {names} FROM {table}
 WHERE repo_id = %(repo_id)s AND {group} = ANY (%(keys)s) AND replaced_id = 0
 ORDER BY 1, 2
"""
_VERSIONS = VERSIONS.sql(_CHILDREN)
_MERGE_REQUEST_COMMITS = MERGE_REQUEST_COMMITS.sql(_CHILDREN)


_SQL = queries("comparison")


# Origins whose events repeat some notes, and the columns of such a note that depend on them.
_STRUCTURED = frozenset({Origin.STATE, Origin.LABEL, Origin.MILESTONE})
_FROM_EVENTS = frozenset({"event_type", "duplicate_of"})


@dataclass(frozen=True, slots=True)
class ComparedRow:
    """The columns of a row as the ``source`` has it and as it is ``stored``; None where it is absent.
    ``fields`` are the names of the columns whose values differ."""

    key: Key
    source: Row | None
    stored: Row | None
    fields: tuple[str, ...] = ()

    @property
    def natural_key(self) -> str:
        """The key in one text."""
        return ":".join(map(str, self.key))

    @property
    def kind(self) -> DifferenceKind | None:
        """How the two differ; None if they do not."""
        if self.stored is None:
            return DifferenceKind.MISSING
        if self.source is None:
            return DifferenceKind.EXTRA
        return DifferenceKind.CHANGED if self.fields else None


Differing = Callable[[Row, Row], Collection[str]]
"""Returns the names of the columns that differ between a row of the source and the stored row."""


def compare_rows(
    source: Mapping[Key, Row], stored: Mapping[Key, Row], differing: Differing
) -> list[ComparedRow]:
    """The rows of both sides, in the order of their keys."""
    found: list[ComparedRow] = []
    for key in sorted(source.keys() | stored.keys(), key=lambda key: (key[0], *map(str, key[1:]))):
        new, old = source.get(key), stored.get(key)
        fields = () if new is None or old is None else tuple(sorted(differing(new, old)))
        found.append(ComparedRow(key, new, old, fields))
    return found


def _by_key(rows: Iterable[Row], *names: str) -> dict[Key, Row]:
    return {tuple(row[name] for name in names): row for row in rows}


def compare_commits(
    conn: Connection, repo_id: int, rows: Iterable[CommitRow], gone: Collection[str] = ()
) -> list[ComparedRow]:
    """Commits as the source has them, and stored ones that are ``gone`` there. A tombstone counts as not
    stored. A stored commit whose parents are still to be read does not differ."""
    source = _by_key((commits.columns(row) for row in rows), "commit_sha")
    params = {"repo_id": repo_id, "keys": [*(sha for (sha,) in source), *gone]}
    stored = _by_key(conn.execute(_COMMITS, params), "commit_sha") if params["keys"] else {}
    return compare_rows(source, stored, _differing_commit)


def _differing_commit(source: Row, stored: Row) -> Collection[str]:
    return () if stored["parents"] is None else set(COMMITS.differing(source, stored)) - {"flags"}


def compare_merge_requests(
    conn: Connection, repo_id: int, rows: Iterable[MergeRequestRow], gone: Collection[int] = ()
) -> list[ComparedRow]:
    """Merge requests as the source has them, and stored ones that are ``gone`` there. A tombstone counts as
    not stored. Sets of versions and commits are compared where they were read."""
    once = {row.iid: row for row in rows}
    keys = [*once, *gone]
    if not keys:
        return []
    children = {iid: merge_requests.Children(row) for iid, row in once.items()}
    source = {(iid,): merge_requests.columns(row, children[iid]) for iid, row in once.items()}
    params = {"repo_id": repo_id, "keys": keys}
    stored = _by_key(conn.execute(_MERGE_REQUESTS, params), "iid")
    versions = _by_merge_request(conn.execute(_VERSIONS, params))
    listed = _by_merge_request(conn.execute(_MERGE_REQUEST_COMMITS, params))

    def differing(new: Row, old: Row) -> list[str]:
        iid = new["iid"]
        fields = [*MERGE_REQUESTS.differing(new, old)]
        if _sets_differ(VERSIONS, children[iid].versions, versions.get(iid, [])):
            fields.append("versions")
        if _sets_differ(MERGE_REQUEST_COMMITS, children[iid].commits, listed.get(iid, [])):
            fields.append("commits")
        return fields

    return compare_rows(source, stored, differing)


def _by_merge_request(rows: Iterable[Row]) -> dict[int, list[Row]]:
    found: dict[int, list[Row]] = {}
    for row in rows:
        found.setdefault(row["mr_iid"], []).append(row)
    return found


def _sets_differ(table: Table, source: Sequence[Row] | None, stored: Sequence[Row]) -> bool:
    """False where the set was not read."""
    if source is None:
        return False
    return len(source) != len(stored) or any(map(table.differing, source, stored))


def merge_requests_in(
    conn: Connection,
    repo_id: int,
    since: datetime,
    until: datetime,
    *,
    of_reviews: bool = False,
    to_end: bool = False,
) -> dict[int, datetime]:
    """The numbers of the stored merge requests that were last updated in a window, with that time; with
    ``of_reviews`` of those whose review is stored. One from the beginning holds also those before it, and
    with ``to_end`` it holds also those after it, unless they are of reviews."""
    query = _SQL["reviews_in"] if of_reviews else _SQL["merge_requests_in"]
    params = {"repo_id": repo_id, "since": since, "until": until}
    rows = conn.execute(query, params | {"from_beginning": since <= BEGINNING, "to_end": to_end})
    return {row["iid"]: row["updated_at"] for row in rows}


def other_merge_requests(conn: Connection, repo_id: int, iids: Sequence[int], limit: int) -> list[int]:
    """At most ``limit`` stored merge requests that are not among ``iids``, the newest."""
    rows = conn.execute(_SQL["others"], {"repo_id": repo_id, "iids": list(iids), "limit": limit})
    return [row["iid"] for row in rows]


def planned_details(
    conn: Connection, repo_id: int, job_type: JobType, iids: Iterable[int]
) -> set[tuple[int, str]]:
    """The details of some merge requests that are planned to be read: the numbers, and the names as in
    ``scm.mr_reviews.whole``."""
    keys = [str(iid) for iid in iids]
    params = {"repo_id": repo_id, "job_type": str(job_type), "keys": keys}
    rows = conn.execute(_SQL["planned"], params)
    return {(int(row["natural_key"]), reviews.part_of(row["detail"])) for row in rows}


def reviews_that_differ(conn: Connection, repo_id: int, rows: Sequence[MergeRequestRow]) -> set[int]:
    """The merge requests whose stored review differs as the list alone shows."""
    listed = recordset(
        {
            "iid": row.iid,
            "gitlab_id": row.mr_id,
            "updated_at": row.updated_at,
            "user_notes_count": row.user_notes_count,
        }
        for row in rows
    )
    return {row["iid"] for row in conn.execute(_SQL["reviews_differ"], {"repo_id": repo_id, "rows": listed})}


def hidden_notes(conn: Connection, repo_id: int, iids: Collection[int]) -> dict[int, int]:
    """How many comments of these merge requests the token may not see, as far as that is known."""
    rows = conn.execute(_SQL["hidden_notes"], {"repo_id": repo_id, "iids": list(iids)})
    return {row["mr_iid"]: row["hidden_notes"] for row in rows}


def compare_reviews(
    conn: Connection, repo_id: int, sets: Sequence[ReviewSet], gone: Collection[int] = ()
) -> list[ComparedRow]:
    """The events, approvals and reviewers of reviews as the source has them; the stored ones of merge
    requests that are ``gone`` are all extra. Nothing is extra of an origin or set that was not read to its
    end, nor what could not be read. Which note repeats an event is known only with all events."""
    found = reviews.with_discussions(conn, repo_id, sets)
    if not found and not gone:
        return []
    unreadable = {row.natural_key for one in found for row in one.quarantined}
    approvals, reviewers = reviews.approvals_of(found), reviews.reviewers_of(found)
    rows = [
        *_compare_events(conn, repo_id, found, gone),
        *_compare_people(conn, repo_id, "approval", _SQL["approvals"], approvals, gone),
        *_compare_people(conn, repo_id, "reviewer", _SQL["reviewers"], reviewers, gone),
    ]
    return [row for row in rows if row.natural_key not in unreadable]


def compare_batches(conn: Connection, repo_id: int, sets: Sequence[ReviewSet]) -> list[ComparedRow]:
    """The notes, approvers and reviewers of reviews as GraphQL has them. Times are compared in whole seconds.
    Not compared are the times of approvals and of requests for a review, and the range of lines of a note."""
    found = reviews.with_discussions(conn, repo_id, sets)
    if not found:
        return []
    timeless = [
        replace(one, approvals=tuple(replace(row, approved_at=None) for row in one.approvals))
        for one in found
        if one.approvals is not None
    ]
    approvals, reviewers = reviews.approvals_of(timeless), reviews.reviewers_of(found)
    return [
        *_compare_events(conn, repo_id, found, (), in_seconds=True),
        *_compare_people(conn, repo_id, "approval", _SQL["approvals"], approvals, ()),
        *_compare_people(conn, repo_id, "reviewer", _SQL["reviewers"], reviewers, ()),
    ]


def _compare_events(
    conn: Connection,
    repo_id: int,
    found: Sequence[ReviewSet],
    gone: Collection[int],
    *,
    in_seconds: bool = False,
) -> list[ComparedRow]:
    whole = {(one.mr_iid, str(origin)) for one in found for origin in reviews.complete_origins(one)}
    whole |= {(iid, str(origin)) for iid in gone for origin in Origin}
    partly = {one.mr_iid for one in found if not one.whole.issuperset(_STRUCTURED)}

    def differing(source: Row, stored: Row) -> set[str]:
        if in_seconds:
            fields = set(REVIEW_EVENTS.differing(_as_graphql(source), _as_graphql(stored)))
        else:
            fields = set(REVIEW_EVENTS.differing(source, stored))
        # An event that went missing at an earlier reading is there.
        fields |= set() if stored["missing_since"] is None else {"missing_since"}
        return fields - _FROM_EVENTS if source["mr_iid"] in partly else fields

    params = {"repo_id": repo_id, "keys": [*(one.mr_iid for one in found), *gone]}
    source = _by_key(
        (reviews.columns(row) for one in found for row in one.events), "mr_iid", "source_event_id"
    )
    stored = _by_key(conn.execute(_EVENTS, params), "mr_iid", "source_event_id")
    return [
        row
        for row in compare_rows(source, stored, differing)
        if row.source is not None or row.stored is None or (row.key[0], row.stored["origin"]) in whole
    ]


def _as_graphql(row: Row) -> dict[str, Any]:
    """The columns of an event that GraphQL and REST give alike. Flags depend on the shape of the raw."""
    is_escaped = ESCAPED in row["flags"]
    shown: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, datetime):
            value = value.replace(microsecond=0)
        elif name in ("position", "details"):
            value = restored(value.obj if isinstance(value, Jsonb) else value, is_escaped)
            value = {k: v for k, v in value.items() if k != "line_range"} if value else None
        shown[name] = value
    for name in ("flags", "time_precision"):
        shown.pop(name, None)
    return shown


def _compare_people(
    conn: Connection,
    repo_id: int,
    role: str,
    query: LiteralString,
    read: reviews.PeopleOf,
    gone: Collection[int],
) -> list[ComparedRow]:
    """The people of one set. A person that is listed twice is one, the later, as where they are stored."""
    params = {"repo_id": repo_id, "keys": [*(iid for iid, _ in read), *gone]}
    source = {(row["mr_iid"], role, row["person"]): row for _, rows in read for row in rows}
    stored = {(row["mr_iid"], role, row["person"]): row for row in conn.execute(query, params)}
    return compare_rows(source, stored, _differing_person)


def _differing_person(source: Row, stored: Row) -> list[str]:
    """A value that the source does not give is no difference."""
    return [
        name
        for name, value in stored.items()
        if source[name] is not None and comparable(source[name]) != value
    ]


def commits_in(
    conn: Connection, repo_id: int, since: datetime, until: datetime, *, to_end: bool
) -> dict[str, Row]:
    """The stored commits that were committed in a window, each with ``ts`` (UTC or None) and ``unreachable``:
    whether no branch and no tag reaches it. A window from the beginning holds also those before it
    and those without a date; with ``to_end`` it holds also those after it."""
    params = {
        "repo_id": repo_id,
        "since": since,
        "until": until,
        "from_beginning": since <= BEGINNING,
        "to_end": to_end,
    }
    return {row["sha"]: row for row in conn.execute(_SQL["commits_in"], params)}


def unstored_commits(conn: Connection, repo_id: int) -> list[str]:
    """Commits in the history of covered refs that are missing or only tombstones, as far as stored commits
    lead there. Also any other commit that was read once.
    """
    named = conn.execute(_SQL["unstored"], {"repo_id": repo_id}).fetchall()
    lost = {row["sha"] for row in named if row["lost"]}
    others = [row["sha"] for row in named if not row["lost"]]
    if others:
        rows = conn.execute(_SQL["covered"], {"repo_id": repo_id, "shas": others})
        lost.update(row["sha"] for row in rows)
    return sorted(lost)


def compare_revisions(
    conn: Connection, repo_id: int, window: RevisionWindow, rows: Iterable[RevisionRow]
) -> tuple[list[ComparedRow], set[int]]:
    """The revisions of ``window`` on both sides, and the numbers of those of which the source shows less than
    is stored. Access was reduced, and nothing is known of them. The fields name ``paths`` where the changed
    paths differ. ``rows`` is consumed once, and memory does not grow with the number of paths.
    """
    params = {"repo_id": repo_id, "first": window.first, "end": window.end}
    stored = {(row["rev_num"],): row for row in conn.execute(_SQL["revisions_in"], params)}
    hashes = _paths_hashes(conn, params)
    nothing = svn_revisions.paths_hash(())
    source: dict[Key, Row] = {}
    regressed: set[int] = set()
    for row in rows:
        count, digest = svn_revisions.counted_paths(row.paths)
        columns = svn_revisions.columns(row, count) | {"paths_hash": digest}
        source[row.rev_num,] = columns
        known = stored.get((row.rev_num,))
        if known is None:
            continue
        # Later readings rely on the level that is noted: it follows from visibility and flags.
        columns["detail_level"] = svn_revisions.detail_level_of(
            Visibility(known["visibility"]), known["flags"]
        )
        columns["paths"] = digest
        known["paths"] = hashes.get(row.rev_num, nothing)
        if svn_revisions.detail_level(row) < columns["detail_level"]:
            regressed.add(row.rev_num)

    def differing(new: Row, old: Row) -> set[str]:
        fields = {name for name, value in new.items() if old[name] != value}
        if new["rev_num"] in regressed:
            return set()
        return fields - {"paths_hash"} if "paths" in fields else fields

    return compare_rows(source, stored, differing), regressed


def _paths_hashes(conn: Connection, params: Mapping[str, Any]) -> dict[int, bytes]:
    """The hash over the stored paths of each revision, made from the rows themselves."""
    with conn.transaction(), conn.cursor(name="paths") as cursor:
        cursor.itersize = 5000
        return {
            rev_num: svn_revisions.paths_hash(
                PathChange(**{name: value for name, value in path.items() if name != "rev_num"})
                for path in paths
            )
            for rev_num, paths in groupby(cursor.execute(_SQL["paths_in"], params), itemgetter("rev_num"))
        }
