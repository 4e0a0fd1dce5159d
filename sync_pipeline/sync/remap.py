"""Stored facts of GitLab derived anew from the objects they came from, by today's mapping.

Belongs here: the request for it, what one attempt at it does, and a look ahead that writes nothing. The
source is not asked: what its objects do not say (the thread of a note, what only versions of a merge request
tell, marks) stays as it is stored. Does not belong here: what is in an object
(:mod:`sync_pipeline.sources.gitlab`), how stored facts are found and compared
(:mod:`sync_pipeline.store.remap`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import groupby
from typing import Any, Generic, Protocol, TypeVar

import psycopg

from sync_pipeline.errors import Cancelled, ConfigurationError, RowUnreadable
from sync_pipeline.gitlab_rows import CommitRow, MergeRequestRow, MergeRequestVersion, Origin, ReviewEventRow
from sync_pipeline.model import (
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
from sync_pipeline.sources.gitlab.fields import commit, payload
from sync_pipeline.sources.gitlab.merge_requests import merge_request, merge_request_version
from sync_pipeline.sources.gitlab.reviews import note, resource_event, told_once
from sync_pipeline.store import remap
from sync_pipeline.store.commits import STATS_UNREAD
from sync_pipeline.store.database import Connection, Database
from sync_pipeline.store.raw import ESCAPED
from sync_pipeline.sync.attempt import Attempt, database_error, is_about_a_row
from sync_pipeline.sync.chunks import retry_on_lease_loss
from sync_pipeline.sync.pages import Batch, FactStore, write_page

BATCH_ROWS = 500
"""Rows that one transaction changes at most, but for a merge request that alone has more children."""

_NO_END = datetime.max.replace(tzinfo=UTC)
_UNMAPPABLE = "unmappable"

Row = TypeVar("Row")
Mapped = TypeVar("Mapped", CommitRow, MergeRequestRow, ReviewEventRow)


def request(
    repository: Repository, job_type: JobType, since: datetime | None, *, actor: str, reason: str
) -> JobRequest:
    """The request to derive facts of one job type anew: those whose time at the source is ``since`` (UTC) or
    later, and those without a time; None: all. Raises ConfigurationError for a repository without raw."""
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
class _Page(Generic[Row]):
    """Rows as they should be stored, the raws that cannot be read, and the key where the next page begins."""

    rows: Sequence[Row]
    aside: Sequence[QuarantinedRow]
    last: Any


class _Facts(Protocol[Row]):
    """One kind of fact."""

    def page(self, conn: Connection, after: Any) -> _Page[Row] | None:
        """The facts that come after the key; None where there are none."""
        ...

    def put(self, conn: Connection, batch_id: int | None, rows: Sequence[Row]) -> Counts:
        """Write what differs, or, without a batch, only count it."""
        ...

    def keys(self, row: Row) -> list[str]:
        """What quarantine calls the raws of the row, its own first."""
        ...

    def payload(self, row: Row) -> bytes:
        """Its raw, without secrets."""
        ...


def _facts(job_type: JobType, repo_id: int, since: datetime | None) -> _Facts[Any]:
    kinds: dict[JobType, Callable[[int, datetime | None], _Facts[Any]]] = {
        JobType.COMMITS: _Commits,
        JobType.MERGE_REQUESTS: _MergeRequests,
        JobType.REVIEWS: _Events,
    }
    return kinds[job_type](repo_id, since)


class RemapWork(FactStore[Page[Any]]):
    """Derives the facts of one job type anew for one attempt."""

    def __init__(self, attempt: Attempt) -> None:
        window = attempt.claim.window
        assert isinstance(window, TimeWindow)
        self._attempt = attempt
        self._window = window
        since = window.since if window.since > BEGINNING else None
        self._facts = _facts(attempt.job_type, attempt.repo.repo_id, since)

    def run(self) -> None:
        """Everything that the job asks for, a page under a lease of its own: what was read before somebody
        else could write is not written after it. See :class:`sync_pipeline.sync.attempt.Work`."""
        after: Any = None
        while (page := retry_on_lease_loss(partial(self._derive, after))) is not None:
            after = page.last

    def _derive(self, after: Any) -> _Page[Any] | None:
        with self._attempt.lease():
            with self._attempt.database.connection() as conn:
                page = self._facts.page(conn, after)
            for part, aside in _parts(page) if page is not None else ():
                write_page(
                    self._attempt,
                    Page(self._window, part, quarantined=tuple(aside), evidence=Evidence("stored JSON")),
                    self,
                )
            return page

    def store(self, batch: Batch, page: Page[Any]) -> Counts:
        """See :class:`sync_pipeline.sync.pages.FactStore`."""
        counts = self._facts.put(batch.conn, batch.batch_id, page.rows)
        keys = [key for row in page.rows for key in self._facts.keys(row)]
        remap.resolve(batch.conn, self._attempt.repo.repo_id, self._attempt.job_type, keys)
        return counts

    def key(self, row: Any) -> str:
        """See :class:`sync_pipeline.sync.pages.FactStore`."""
        return self._facts.keys(row)[0]

    def payload(self, row: Any) -> bytes:
        """See :class:`sync_pipeline.sync.pages.FactStore`."""
        return self._facts.payload(row)


def look_ahead(
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
    facts = _facts(job_type, repository.repo_id, since)
    counts = Counts()
    after: Any = None
    try:
        with database.connection() as conn:
            while (page := facts.page(conn, after)) is not None:
                if cancel is not None and cancel.is_set():
                    raise Cancelled("stopped; nothing was changed")
                aside = len(page.aside)
                counts += Counts(read=aside, quarantined=aside)
                for part, _ in _parts(page):
                    counts += _would_change(conn, facts, part)
                after = page.last
                if progress is not None:
                    progress(counts)
    except psycopg.Error as failure:
        raise database_error(failure) from None
    return counts


def _would_change(conn: Connection, facts: _Facts[Row], rows: Sequence[Row]) -> Counts:
    try:
        return facts.put(conn, None, rows)
    except psycopg.Error as refused:
        if not is_about_a_row(refused):
            raise
    if len(rows) <= 1:
        return Counts(read=1, quarantined=1)
    middle = len(rows) // 2
    return _would_change(conn, facts, rows[:middle]) + _would_change(conn, facts, rows[middle:])


def _parts(page: _Page[Row]) -> Iterator[tuple[Sequence[Row], Sequence[QuarantinedRow]]]:
    """A page in batches; what is set aside goes with the first."""
    aside = page.aside
    for first in range(0, max(len(page.rows), 1), BATCH_ROWS):
        yield page.rows[first : first + BATCH_ROWS], aside
        aside = ()


class _Commits:
    def __init__(self, repo_id: int, since: datetime | None) -> None:
        self._repo_id = repo_id
        self._since = since

    def page(self, conn: Connection, after: str | None) -> _Page[CommitRow] | None:
        stored = remap.commits_after(conn, self._repo_id, after, self._since, BATCH_ROWS)
        if not stored:
            return None
        rows: list[CommitRow] = []
        aside: list[QuarantinedRow] = []
        for one in stored:
            try:
                rows.append(self._derived(one))
            except RowUnreadable as error:
                aside.append(_unmappable(_key(one.sha), error, one.raw))
        return _Page(rows, aside, stored[-1].sha)

    def _derived(self, one: remap.StoredCommit) -> CommitRow:
        row = commit(one.raw.data)
        _check_identity(row.sha, one.sha)
        row = replace(
            row,
            parents=None if one.parents_unknown else row.parents,
            additions=one.additions if row.additions is None else row.additions,
            deletions=one.deletions if row.deletions is None else row.deletions,
        )
        if one.stats_unread and (row.additions is None or row.deletions is None):
            row = replace(row, flags=(*row.flags, STATS_UNREAD))
        return _with_mark(row, one.raw)

    def put(self, conn: Connection, batch_id: int | None, rows: Sequence[CommitRow]) -> Counts:
        return remap.put_commits(conn, repo_id=self._repo_id, batch_id=batch_id, rows=rows)

    def keys(self, row: CommitRow) -> list[str]:
        return [_key(row.sha)]

    def payload(self, row: CommitRow) -> bytes:
        return payload(row.raw)


class _MergeRequests:
    def __init__(self, repo_id: int, since: datetime | None) -> None:
        self._repo_id = repo_id
        self._since = since

    def page(self, conn: Connection, after: int | None) -> _Page[MergeRequestRow] | None:
        stored = remap.merge_requests_after(conn, self._repo_id, after, self._since, BATCH_ROWS)
        if not stored:
            return None
        rows: list[MergeRequestRow] = []
        aside: list[QuarantinedRow] = []
        for one in stored:
            try:
                row = self._derived(one)
            except RowUnreadable as error:
                aside.append(_unmappable(_key(one.iid), error, one.raw))
            else:
                rows.append(
                    replace(row, versions=self._versions(one, aside), commits=self._commits(one, aside))
                )
        return _Page(rows, aside, stored[-1].iid)

    def _derived(self, one: remap.StoredMergeRequest) -> MergeRequestRow:
        row = merge_request(one.raw.data)
        _check_identity(row.iid, one.iid)
        # Where there are versions, these are theirs, and may be later than the raw.
        own = not one.versions
        return _with_mark(
            replace(
                row,
                base_sha=(row.base_sha if own else None) or one.base_sha,
                start_sha=(row.start_sha if own else None) or one.start_sha,
                changes_count=(row.changes_count if own else None) or one.changes_count,
            ),
            one.raw,
        )

    def _versions(
        self, one: remap.StoredMergeRequest, aside: list[QuarantinedRow]
    ) -> tuple[MergeRequestVersion, ...] | None:
        """None where they were never read, or one of them cannot be: then all stay as they are."""
        found: list[MergeRequestVersion] = []
        for number, raw in one.versions or ():
            try:
                version = merge_request_version(raw.data)
                _check_identity(version.version_id, number)
            except RowUnreadable as error:
                aside.append(_unmappable(_key(one.iid, "versions"), error, raw))
                return None
            found.append(version)
        return None if one.versions is None else tuple(found)

    def _commits(
        self, one: remap.StoredMergeRequest, aside: list[QuarantinedRow]
    ) -> tuple[CommitRow, ...] | None:
        found: list[CommitRow] = []
        for raw in one.commits or ():
            try:
                found.append(_with_mark(commit(raw.data), raw))
            except RowUnreadable as error:
                aside.append(_unmappable(_key(one.iid, "commits"), error, raw))
                return None
        return None if one.commits is None else tuple(found)

    def put(self, conn: Connection, batch_id: int | None, rows: Sequence[MergeRequestRow]) -> Counts:
        return remap.put_merge_requests(conn, repo_id=self._repo_id, batch_id=batch_id, rows=rows)

    def keys(self, row: MergeRequestRow) -> list[str]:
        keys = [_key(row.iid)]
        keys += [] if row.versions is None else [_key(row.iid, "versions")]
        keys += [] if row.commits is None else [_key(row.iid, "commits")]
        return keys

    def payload(self, row: MergeRequestRow) -> bytes:
        return payload(row.raw)


class _Events:
    def __init__(self, repo_id: int, since: datetime | None) -> None:
        self._repo_id = repo_id
        self._since = since

    def page(self, conn: Connection, after: int | None) -> _Page[ReviewEventRow] | None:
        stored = remap.events_after(conn, self._repo_id, after, self._since, BATCH_ROWS)
        if not stored:
            return None
        rows: list[ReviewEventRow] = []
        aside: list[QuarantinedRow] = []
        for _, review in groupby(stored, key=lambda one: one.mr_iid):
            self._review(list(review), rows, aside)
        return _Page(rows, aside, stored[-1].mr_iid)

    def _review(
        self,
        stored: Sequence[remap.StoredEvent],
        rows: list[ReviewEventRow],
        aside: list[QuarantinedRow],
    ) -> None:
        """The events of one merge request, each fact told once."""
        mapped: dict[str, ReviewEventRow] = {}
        unreadable: set[str] = set()
        for one in stored:
            try:
                mapped[one.event_id] = self._derived(one)
            except RowUnreadable as error:
                unreadable.add(one.event_id)
                if one.is_wanted:
                    aside.append(_unmappable(_key(one.mr_iid, one.event_id), error, one.raw))
        there = [mapped[one.event_id] for one in stored if one.event_id in mapped and not one.is_gone]
        told = mapped | {row.event_id: row for row in told_once(there)}
        for one in stored:
            if one.event_id in unreadable or not one.is_wanted:
                continue
            row = told[one.event_id]
            if one.is_gone or one.duplicate_of in unreadable:
                # What was there beside it when it was last seen, or what that one is, cannot be known.
                kind = mapped[one.event_id].kind if one.duplicate_of is None else "system"
                row = replace(row, kind=kind, duplicate_of=one.duplicate_of)
            rows.append(row)

    def _derived(self, one: remap.StoredEvent) -> ReviewEventRow:
        if one.origin is Origin.NOTE:
            row = note(one.raw.data, one.mr_iid, one.discussion_id, one.is_reply)
        else:
            row = resource_event(one.raw.data, one.mr_iid, one.origin)
        _check_identity(row.event_id, one.event_id)
        return _with_mark(row, one.raw)

    def put(self, conn: Connection, batch_id: int | None, rows: Sequence[ReviewEventRow]) -> Counts:
        return remap.put_events(conn, repo_id=self._repo_id, batch_id=batch_id, rows=rows)

    def keys(self, row: ReviewEventRow) -> list[str]:
        return [_key(row.mr_iid, row.event_id)]

    def payload(self, row: ReviewEventRow) -> bytes:
        return payload(row.raw)


def _with_mark(row: Mapped, raw: remap.StoredRaw) -> Mapped:
    """The raw stays as it is stored, and so does the flag that says how to read it."""
    return replace(row, flags=(*row.flags, ESCAPED)) if raw.is_escaped else row


def _check_identity(derived: object, stored: object) -> None:
    """Raises RowUnreadable where the raw is not that of its row: nothing is written to another one."""
    if derived != stored:
        raise RowUnreadable(f"the raw is of {derived}, not of {stored}")


def _key(*parts: object) -> str:
    """What quarantine calls a raw, told from rows that the source sent."""
    return "raw:" + ":".join(map(str, parts))


def _unmappable(key: str, error: RowUnreadable, raw: remap.StoredRaw) -> QuarantinedRow:
    return QuarantinedRow(key, _UNMAPPABLE, str(error), error.payload or payload(raw.data))
