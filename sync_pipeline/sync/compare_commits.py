"""Refs and commits of a GitLab project compared with their source.

Belongs here: the kind of each difference. Commits are complete by refs: every commit that a ref reaches must
be stored. The parents of stored rows show that without a request. Dates only select the commits whose values
are compared, because a listing by date may omit some; omitted ones are asked for by name. Listed commits that
no branch and no tag reaches, such as heads of merge requests of forks, do not count.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from enum import Enum

from sync_pipeline.core.errors import RowUnreadable, SyncError, Transient
from sync_pipeline.core.gitlab_rows import CommitRow
from sync_pipeline.core.model import (
    BEGINNING,
    Depth,
    Difference,
    DifferenceKind,
    TimeWindow,
    Window,
)
from sync_pipeline.facts import comparison, quarantine, refs
from sync_pipeline.facts.comparison import ComparedRow, Row
from sync_pipeline.sources.gitlab.children import OWN_ERRORS
from sync_pipeline.sources.gitlab.commits import CommitReader
from sync_pipeline.sources.gitlab.fields import quarantine_key
from sync_pipeline.sources.gitlab.refs import RefReader
from sync_pipeline.sources.gitlab.transport import Client
from sync_pipeline.sync.attempt import Attempt
from sync_pipeline.sync.project import ProjectComparison, ProjectVisit
from sync_pipeline.sync.reconcile import Compared

_MAX_SINGLE_REQUESTS = 200
_ASKED_AT_ONCE = 20
_STEP = timedelta(milliseconds=1)
# The columns of a ref that change when it moves.
_MOVED = frozenset({"tip", "target"})


class _Answer(Enum):
    """Why a commit that was asked for did not come."""

    GONE = "gone"
    UNREADABLE = "unreadable"
    NOT_ASKED = "not asked"


class CommitComparison(ProjectComparison):
    """Compares refs and commits for one attempt."""

    def __init__(self, attempt: Attempt, client: Client, visit: ProjectVisit) -> None:
        super().__init__(attempt, client, visit)
        self._refs = RefReader(client, visit.project_id)
        self._asked = 0

    def read(self, window: Window, depth: Depth) -> Iterator[Compared]:
        """See :class:`sync_pipeline.sync.reconcile.Comparison`."""
        assert isinstance(window, TimeWindow)
        self._window = window
        found, newer, unread = self._compare_refs()
        start = TimeWindow(window.since, window.since)
        # Differences without a place, in a piece without any time.
        yield Compared(start, 0, 0, tuple(found), newer, unread=unread)
        reader = CommitReader(self._client, self._visit.project_id, stats=depth is Depth.DETAILS)
        with self._database.connection() as conn:
            stored = comparison.commits_in(
                conn, self._repo_id, window.since, window.until, to_end=self._is_last(window)
            )
        seen: set[str] = set()
        absent: dict[str, CommitRow] = {}
        for batch in reader.read_days(window):
            rows = [row for row in batch.rows if row.sha not in seen]
            seen |= {row.sha for row in rows}
            compared = self._compare(start, rows, absent)
            yield replace(compared, unreadable=len(batch.quarantined))
        yield from self._unlisted(start, stored, seen, absent, reader, depth)
        yield self._missing(window, absent, reader)

    def _is_last(self, window: TimeWindow) -> bool:
        """Whether nothing that is covered lies behind ``window``."""
        watermark = self._visit.before[self._attempt.job_type].watermark
        return watermark is None or window.until == watermark

    def _position(self, moment: datetime | None) -> TimeWindow:
        """The smallest window that a commit of this time is in. A commit without a date, or outside of all
        time that can be covered, is in the first or last part of the window."""
        moment = self._window.since if moment is None else moment
        if moment < BEGINNING:
            moment = BEGINNING
        elif moment >= self._window.until and self._is_last(self._window):
            moment = self._window.until - _STEP
        return TimeWindow(moment, moment + _STEP)

    def _is_elsewhere(self, position: TimeWindow) -> bool:
        return not self._window.since <= position.since < self._window.until

    # -- refs ---------------------------------------------------------------------------------------------

    def _compare_refs(self) -> tuple[list[Difference], int, tuple[str, ...]]:
        """The refs that differ, how many are newer than the latest visit, and which cannot be compared. A ref
        that moved on, or is new, is newer; one that is gone, or leads back or elsewhere, differs."""
        listing = self._refs.listing()
        with self._database.connection() as conn:
            changes = refs.changes(conn, self._repo_id, listing.refs)
        if not listing.refs and changes.gone:
            raise Transient(
                f"{self._info.path}: the server lists no branch and no tag, where there were some",
                code="incomplete",
            )
        quarantined_now = {row.natural_key for row in listing.quarantined}
        found = [Difference(f"{kind}:{name}", DifferenceKind.MISSING, None) for kind, name in changes.lost]
        unread: list[str] = []
        newer = len(changes.new)
        for kind, name in changes.gone:
            if kind in listing.partial or quarantine_key(f"{kind}:{name}") in quarantined_now:
                continue
            if not self._refs.is_there(kind, name):
                found.append(Difference(f"{kind}:{name}", DifferenceKind.EXTRA, None))
        for (kind, name), change in changes.changed.items():
            if set(change.fields) <= _MOVED:
                if self._asked >= _MAX_SINGLE_REQUESTS:
                    unread.append(f"{kind}:{name}")
                    continue
                self._asked += 1
                if self._refs.leads_to(change.new_tip, change.old_tip):
                    newer += 1
                    continue
            found.append(Difference(f"{kind}:{name}", DifferenceKind.CHANGED, None, change.fields))
        return found, newer, (*sorted(quarantined_now), *unread)

    # -- commits ------------------------------------------------------------------------------------------

    def _compare(
        self,
        window: TimeWindow,
        rows: Sequence[CommitRow],
        absent: dict[str, CommitRow],
        *,
        gone: Collection[str] = (),
        unread: Collection[str] = (),
    ) -> Compared:
        """Compare the values of ``rows``, and note those that are not stored in ``absent``."""
        by_sha = {row.sha: row for row in rows}
        with self._database.connection() as conn:
            compared = comparison.compare_commits(conn, self._repo_id, rows, gone)
        absent |= {row.key[0]: by_sha[row.key[0]] for row in compared if row.stored is None}
        known = [row for row in compared if row.stored is not None]
        return Compared.of(window, known, self._position_of, unread=unread)

    def _position_of(self, row: ComparedRow) -> TimeWindow:
        columns = row.source or row.stored or {}
        return self._position(columns["committed_at"] or columns["authored_at"])

    def _unlisted(
        self,
        window: TimeWindow,
        stored: dict[str, Row],
        seen: set[str],
        absent: dict[str, CommitRow],
        reader: CommitReader,
        depth: Depth,
    ) -> Iterator[Compared]:
        """Stored commits of the window that were not listed there, asked for by name."""
        left = {
            sha: one
            for sha, one in stored.items()
            if sha not in seen and not (one["unreachable"] and depth is Depth.LISTING)
        }
        todo = list(left)
        for first in range(0, len(todo), _ASKED_AT_ONCE):
            came: list[CommitRow] = []
            gone: list[str] = []
            unread: list[str] = []
            for sha in todo[first : first + _ASKED_AT_ONCE]:
                row = self._ask(reader, sha)
                if isinstance(row, CommitRow):
                    came.append(row)
                else:
                    (gone if row is _Answer.GONE else unread).append(sha)
            with self._database.connection() as conn:
                # A commit that a branch or a tag reaches exists, whatever its own address answers.
                reached = refs.reached(conn, self._repo_id, gone) if gone else set()
            unread += sorted(reached)
            gone = [sha for sha in gone if sha not in reached]
            yield self._compare(window, came, absent, gone=gone, unread=unread)

    def _ask(self, reader: CommitReader, sha: str) -> CommitRow | _Answer:
        """A commit by its name, as long as not too many were asked for."""
        if self._asked >= _MAX_SINGLE_REQUESTS:
            return _Answer.NOT_ASKED
        self._asked += 1
        try:
            return reader.settle(sha)
        except SyncError as error:
            if error.code == "no_object":
                return _Answer.GONE
            if error.code not in OWN_ERRORS and not isinstance(error, RowUnreadable):
                raise
            return _Answer.UNREADABLE

    def _missing(self, window: TimeWindow, absent: dict[str, CommitRow], reader: CommitReader) -> Compared:
        """Commits that covered refs reach and that are not stored: those that stored commits and refs name,
        their parents, and so on. No ref reaches a listed commit that no other row names."""
        with self._database.connection() as conn:
            todo = comparison.unstored_commits(conn, self._repo_id)
            quarantined_keys = (
                quarantine.open_keys(conn, self._repo_id, self._attempt.job_type) if todo else set()
            )
        met = set(todo)
        found: list[Difference] = []
        unread: list[str] = []
        while todo:
            sha = todo.pop()
            row: CommitRow | _Answer | None = absent.get(sha)
            if row is None:
                row = _Answer.UNREADABLE if sha in quarantined_keys else self._ask(reader, sha)
            if row is _Answer.UNREADABLE or row is _Answer.GONE:
                # The server names it and does not have it.
                unread.append(sha)
                continue
            position: TimeWindow | None = None
            if isinstance(row, CommitRow):
                position = self._position(_moment(row))
                with self._database.connection() as conn:
                    parents = refs.not_stored(conn, self._repo_id, row.parents or ()) - met
                met |= parents
                todo += sorted(parents)
            if position is None or not self._is_elsewhere(position):
                found.append(Difference(sha, DifferenceKind.MISSING, position))
        return Compared(window, len(found), 0, tuple(found), unread=tuple(unread))


def _moment(row: CommitRow) -> datetime | None:
    return row.committed_at or row.authored_at
