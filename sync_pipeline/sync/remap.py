"""Stored facts of GitLab derived anew from the objects they came from, by today's mapping.

Belongs here: the request for it, one attempt at it, and a preview that writes nothing. It sends no request to
the source. Values that the stored objects do not have stay as they are. Such values are the thread of a note,
fractions of a second that GraphQL cuts off, columns from versions of a merge request, and marks. Does not
belong here: parsing an object (:mod:`sync_pipeline.sources.gitlab`), reading and writing stored facts
(:mod:`sync_pipeline.facts.remap`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any, TypeVar

import psycopg

from sync_pipeline.core.errors import Cancelled, ConfigurationError, RowUnreadable
from sync_pipeline.core.gitlab_rows import (
    CommitRow,
    MergeRequestRow,
    MergeRequestVersion,
    Origin,
    ReviewEventRow,
)
from sync_pipeline.core.model import (
    BEGINNING,
    Counts,
    Evidence,
    JobRequest,
    JobType,
    Kind,
    Mode,
    Page,
    QuarantinedRow,
    Repository,
    TimeWindow,
    Trigger,
)
from sync_pipeline.database.pool import Connection, Database
from sync_pipeline.database.values import ESCAPED, restored
from sync_pipeline.facts import commits, listed, merge_requests, remap, reviews
from sync_pipeline.facts.commits import STATS_UNREAD
from sync_pipeline.facts.job_types import LIST_TABLES
from sync_pipeline.facts.remap import DerivedRow
from sync_pipeline.facts.tables import (
    COMMITS,
    MERGE_REQUEST_COMMITS,
    MERGE_REQUESTS,
    REVIEW_EVENTS,
    VERSIONS,
)
from sync_pipeline.sources.gitlab.batches import note_of
from sync_pipeline.sources.gitlab.fields import commit, payload
from sync_pipeline.sources.gitlab.lists import LISTS
from sync_pipeline.sources.gitlab.merge_requests import merge_request, merge_request_version
from sync_pipeline.sources.gitlab.reviews import resource_event, without_duplicates
from sync_pipeline.sync.attempt import Attempt, database_error
from sync_pipeline.sync.chunks import retry_on_lease_loss
from sync_pipeline.sync.pages import Batch, FactStore, write_page

BATCH_ROWS = 500
"""Rows that one transaction changes at most, but for a merge request that alone has more children."""

_NO_END = datetime.max.replace(tzinfo=UTC)
_UNMAPPABLE = "unmappable"

Stored = Mapping[str, Any]
Record = TypeVar("Record")
Mapped = TypeVar("Mapped", CommitRow, MergeRequestRow, ReviewEventRow)


def request(
    repository: Repository, job_type: JobType, since: datetime | None, *, actor: str, reason: str
) -> JobRequest:
    """The request to remap facts of one job type, from ``since`` (UTC) on, and those without a time; None:
    all. Raises ConfigurationError for a repository without raw.
    """
    require_raw(repository)
    return JobRequest(
        repo_id=repository.repo_id,
        job_type=job_type,
        mode=Mode.REPAIR,
        trigger=Trigger.RUNNER,
        actor=actor,
        reason=reason,
        window=TimeWindow(since or BEGINNING, _NO_END),
        from_raw=True,
    )


def require_raw(repository: Repository) -> None:
    """Raises ConfigurationError where the facts of a repository are stored without what they came from."""
    if repository.kind is not Kind.GITLAB:
        raise ConfigurationError(
            f"{repository.spec}: only facts of GitLab keep the raw that rows can be derived from; to read "
            f"revisions again: scm-sync watermark reset {repository.spec}"
        )


@dataclass(frozen=True, slots=True)
class _Fact:
    """A fact derived anew. ``keys`` are the names of its raws in quarantine, its own first."""

    keys: list[str]
    raw: Mapping[str, Any]
    row: DerivedRow


@dataclass(slots=True)
class _Page:
    """Facts as they should be stored, the raws that cannot be read, and the key where the next page
    begins."""

    last: Any
    facts: list[_Fact] = field(default_factory=list)
    quarantined: list[QuarantinedRow] = field(default_factory=list)

    def read(self, key: str, stored: Stored, parse: Callable[[Stored], Record]) -> Record | None:
        """The record of a stored row; None where its raw cannot be read, which goes to quarantine."""
        try:
            return parse(stored)
        except RowUnreadable as error:
            found = error.payload or payload(stored["raw"])
            self.quarantined.append(QuarantinedRow(key, _UNMAPPABLE, str(error), found))
            return None

    def read_set(
        self, key: str, stored: Sequence[Stored] | None, parse: Callable[[Stored], Record]
    ) -> tuple[Record, ...] | None:
        """The records of a set; None where it was never read, or one of its raws cannot be."""
        found: list[Record] = []
        for one in stored or ():
            record = self.read(key, one, parse)
            if record is None:
                return None
            found.append(record)
        return None if stored is None else tuple(found)


class RemapWork(FactStore[Page[Sequence[_Fact]]]):
    """Derives the facts of one job type anew for one attempt."""

    def __init__(self, attempt: Attempt) -> None:
        window = attempt.claim.window
        assert isinstance(window, TimeWindow)
        self._attempt = attempt
        self._window = window
        self._since = window.since if window.since > BEGINNING else None

    def run(self) -> None:
        """Do the whole job, each page under a lease of its own: no page is written after another job could
        write. See :class:`sync_pipeline.sync.attempt.Work`."""
        after: Any = None
        while (page := retry_on_lease_loss(partial(self._derive, after))) is not None:
            after = page.last

    def _derive(self, after: Any) -> _Page | None:
        attempt = self._attempt
        with attempt.lease():
            with attempt.database.connection() as conn:
                page = _PAGES[attempt.job_type](conn, attempt.repo.repo_id, after, self._since)
            if page is None:
                return None
            quarantined = tuple(page.quarantined)
            for first in range(0, max(len(page.facts), 1), BATCH_ROWS):
                facts = page.facts[first : first + BATCH_ROWS]
                evidence = Evidence("stored JSON")
                write_page(
                    attempt, Page(self._window, facts, quarantined=quarantined, evidence=evidence), self
                )
                quarantined = ()
            return page

    def store(self, batch: Batch, page: Page[Sequence[_Fact]]) -> Counts:
        """See :class:`sync_pipeline.sync.pages.FactStore`."""
        repo_id = self._attempt.repo.repo_id
        rows = [fact.row for fact in page.rows]
        counts = remap.put(batch.conn, repo_id=repo_id, batch_id=batch.batch_id, rows=rows)
        keys = [key for fact in page.rows for key in fact.keys]
        remap.resolve(batch.conn, repo_id, self._attempt.job_type, keys)
        return counts

    def key(self, row: _Fact) -> str:
        """See :class:`sync_pipeline.sync.pages.FactStore`."""
        return row.keys[0]


def estimate(
    database: Database,
    repository: Repository,
    job_type: JobType,
    since: datetime | None,
    *,
    cancel: threading.Event | None = None,
    progress: Callable[[Counts], None] | None = None,
) -> Counts:
    """How many facts :func:`request` would change; nothing is written. Raises ConfigurationError as that
    does, Cancelled after ``cancel`` was set, SyncError where the database fails."""
    require_raw(repository)
    repo_id = repository.repo_id
    counts = Counts()
    after: Any = None
    try:
        with database.connection() as conn:
            while (page := _PAGES[job_type](conn, repo_id, after, since)) is not None:
                if cancel is not None and cancel.is_set():
                    raise Cancelled("stopped; nothing was changed")
                unreadable = len(page.quarantined)
                counts += Counts(read=unreadable, quarantined=unreadable)
                counts += remap.changes([fact.row for fact in page.facts])
                after = page.last
                if progress is not None:
                    progress(counts)
    except psycopg.Error as failure:
        raise database_error(failure) from None
    return counts


# Commits ------------------------------------------------------------------------------------------------


def _commit_page(conn: Connection, repo_id: int, after: Any, since: datetime | None) -> _Page | None:
    stored = remap.commits_after(conn, repo_id, after, since, BATCH_ROWS)
    if not stored:
        return None
    page = _Page(stored[-1]["commit_sha"])
    for one in stored:
        key = _key(one["commit_sha"])
        row = page.read(key, one, _commit)
        if row is not None:
            page.facts.append(_Fact([key], row.raw, DerivedRow(COMMITS, commits.columns(row), one)))
    return page


def _commit(stored: Stored) -> CommitRow:
    row = commit(stored["raw"])
    _check_identity(row.sha, stored["commit_sha"])
    row = replace(
        row,
        parents=None if stored["parents"] is None else row.parents,
        additions=stored["additions"] if row.additions is None else row.additions,
        deletions=stored["deletions"] if row.deletions is None else row.deletions,
    )
    if STATS_UNREAD in stored["flags"] and (row.additions is None or row.deletions is None):
        row = replace(row, flags=(*row.flags, STATS_UNREAD))
    return _with_mark(row, stored)


# Merge requests -----------------------------------------------------------------------------------------


def _merge_request_page(conn: Connection, repo_id: int, after: Any, since: datetime | None) -> _Page | None:
    stored = remap.merge_requests_after(conn, repo_id, after, since, BATCH_ROWS)
    if not stored:
        return None
    page = _Page(stored[-1]["iid"])
    for one in stored:
        iid = one["iid"]
        row = page.read(_key(iid), one, _merge_request)
        if row is None:
            continue
        row = replace(
            row,
            versions=page.read_set(_key(iid, "versions"), one["versions"], _version),
            commits=page.read_set(_key(iid, "commits"), one["commits"], _commit_of_merge_request),
        )
        keys = [_key(iid)]
        keys += [] if row.versions is None else [_key(iid, "versions")]
        keys += [] if row.commits is None else [_key(iid, "commits")]
        page.facts.append(_Fact(keys, row.raw, _with_children(row, one)))
    return page


def _with_children(row: MergeRequestRow, stored: Stored) -> DerivedRow:
    sets = merge_requests.Children(row)
    children = [
        DerivedRow(table, one, known[one[name]])
        for table, name, derived, rows in (
            (VERSIONS, "version_id", sets.versions, stored["versions"]),
            (MERGE_REQUEST_COMMITS, "position", sets.commits, stored["commits"]),
        )
        for known in [{child[name]: child for child in rows or ()}]
        for one in derived or ()
        if one[name] in known
    ]
    return DerivedRow(MERGE_REQUESTS, merge_requests.columns(row, sets), stored, tuple(children))


def _merge_request(stored: Stored) -> MergeRequestRow:
    row = merge_request(stored["raw"])
    _check_identity(row.iid, stored["iid"])
    # Where there are versions, these are theirs, and may be later than the raw.
    names = ("base_sha", "start_sha", "changes_count")
    own = {name: None if stored["versions"] else getattr(row, name) for name in names}
    return _with_mark(replace(row, **{name: own[name] or stored[name] for name in names}), stored)


def _version(stored: Stored) -> MergeRequestVersion:
    version = merge_request_version(stored["raw"])
    _check_identity(version.version_id, stored["version_id"])
    return version


def _commit_of_merge_request(stored: Stored) -> CommitRow:
    return _with_mark(commit(stored["raw"]), stored)


# Reviews ------------------------------------------------------------------------------------------------


def _event_page(conn: Connection, repo_id: int, after: Any, since: datetime | None) -> _Page | None:
    stored = remap.events_after(conn, repo_id, after, since, BATCH_ROWS)
    if not stored:
        return None
    page = _Page(stored[-1]["mr_iid"])
    for _, review in groupby(stored, key=itemgetter("mr_iid")):
        _add_review(page, list(review))
    return page


def _add_review(page: _Page, stored: Sequence[Stored]) -> None:
    """The events of one merge request, each fact once."""
    mapped: dict[str, ReviewEventRow] = {}
    unreadable: set[str] = set()
    for one in stored:
        event_id = one["source_event_id"]
        # An event that is not asked for only matters to the others.
        target = page if one["is_wanted"] else _Page(None)
        row = target.read(_key(one["mr_iid"], event_id), one, _event)
        if row is None:
            unreadable.add(event_id)
        else:
            mapped[event_id] = row
    there = [
        mapped[one["source_event_id"]]
        for one in stored
        if one["source_event_id"] in mapped and not one["is_gone"]
    ]
    rows = mapped | {row.event_id: row for row in without_duplicates(there)}
    for one in stored:
        event_id = one["source_event_id"]
        if event_id in unreadable or not one["is_wanted"]:
            continue
        row = rows[event_id]
        if one["is_gone"] or one["duplicate_of"] in unreadable:
            # The events beside it when it was last seen, or the other event, cannot be known.
            kind = mapped[event_id].kind if one["duplicate_of"] is None else "system"
            row = replace(row, kind=kind, duplicate_of=one["duplicate_of"])
        key = _key(row.mr_iid, row.event_id)
        page.facts.append(_Fact([key], row.raw, DerivedRow(REVIEW_EVENTS, reviews.columns(row), one)))


def _event(stored: Stored) -> ReviewEventRow:
    iid, origin = stored["mr_iid"], Origin(stored["origin"])
    if origin is Origin.NOTE:
        row = note_of(stored["raw"], iid, stored["discussion_id"], stored["is_reply"])
        row = _at_stored_precision(row, stored)
    else:
        row = resource_event(stored["raw"], iid, origin)
    _check_identity(row.event_id, stored["source_event_id"])
    return _with_mark(row, stored)


def _at_stored_precision(row: ReviewEventRow, stored: Stored) -> ReviewEventRow:
    """``row`` with the stored values that say the same more precisely. GraphQL has whole seconds, and no
    range of lines."""
    if row.time_precision != "second":
        return row
    times = {"occurred_at": "ts", "updated_at": "updated_at", "resolved_at": "resolved_at"}
    finer: dict[str, Any] = {
        name: stored[column]
        for name, column in times.items()
        if stored[column] is not None and stored[column].replace(microsecond=0) == getattr(row, name)
    }
    position = restored(stored["position"], ESCAPED in stored["flags"])
    if position is not None and row.position == {k: v for k, v in position.items() if k != "line_range"}:
        finer["position"] = position
    return replace(row, **finer)


# Flat lists ---------------------------------------------------------------------------------------------


def _list_page(
    job_type: JobType, conn: Connection, repo_id: int, after: Any, since: datetime | None
) -> _Page | None:
    table, parse = LIST_TABLES[job_type], LISTS[job_type].parse
    stored = remap.listed_after(conn, table, repo_id, after, since, BATCH_ROWS)
    if not stored:
        return None

    def derive(one: Stored) -> Any:
        row = parse(one["raw"])
        _check_identity(listed.key_of(table, row), str(one[table.key[0]]))
        return _with_mark(row, one)

    page = _Page(str(stored[-1][table.key[0]]))
    for one in stored:
        key = _key(one[table.key[0]])
        row = page.read(key, one, derive)
        if row is not None:
            page.facts.append(_Fact([key], row.raw, DerivedRow(table, listed.columns(table, row), one)))
    return page


_PAGES: Mapping[JobType, Callable[[Connection, int, Any, datetime | None], _Page | None]] = {
    JobType.COMMITS: _commit_page,
    JobType.MERGE_REQUESTS: _merge_request_page,
    JobType.REVIEWS: _event_page,
    **{job_type: partial(_list_page, job_type) for job_type in LISTS},
}


def _with_mark(row: Mapped, stored: Stored) -> Mapped:
    """The raw stays as it is stored, and so does the flag that says how to read it."""
    return replace(row, flags=(*row.flags, ESCAPED)) if ESCAPED in stored["flags"] else row


def _check_identity(derived: object, stored: object) -> None:
    """Raises RowUnreadable where the raw is not that of its row: nothing is written to another one."""
    if derived != stored:
        raise RowUnreadable(f"the raw is of {derived}, not of {stored}")


def _key(*parts: object) -> str:
    """The name of a raw in quarantine, which differs from the names of rows that the source sent."""
    return "raw:" + ":".join(map(str, parts))
