"""Merge requests and reviews compared with their source.

Belongs here: which of them are listed or asked for one by one, and the kind of each difference. The list is
read by the time of the last update, as coverage is. So every merge request of either side is in exactly one
window. A merge request that is stored in a window and not listed there is asked for by its number.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sync_pipeline.core.errors import Transient
from sync_pipeline.core.gitlab_rows import MergeRequestRow, Origin, ReviewSet
from sync_pipeline.core.model import Depth, Difference, JobType, TimeWindow, Window
from sync_pipeline.facts import comparison, unreadable
from sync_pipeline.facts.comparison import ComparedRow
from sync_pipeline.sources.gitlab.children import Refusals
from sync_pipeline.sources.gitlab.merge_requests import MergeRequestReader
from sync_pipeline.sources.gitlab.reviews import ReviewReader
from sync_pipeline.sources.gitlab.singles import SingleReader
from sync_pipeline.sources.gitlab.transport import Client
from sync_pipeline.sync.attempt import Attempt
from sync_pipeline.sync.project import ProjectComparison, ProjectVisit
from sync_pipeline.sync.reconcile import Compared

_MAX_SINGLE_REQUESTS = 200
# So many are asked for to distinguish a deletion from a server that shows nothing.
_OTHERS = 3
# A Date header shows whole seconds.
_SECOND = timedelta(seconds=1)
# The resolution of times in the API.
_STEP = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class _Listed:
    """A piece of the list with the merge requests in it. ``gone`` ones are stored and no longer at the
    source, with their time of update; ``date`` is when the list was read. ``unread`` keys came without
    something that a comparison needs."""

    window: TimeWindow
    rows: Sequence[MergeRequestRow]
    gone: dict[int, datetime]
    date: datetime | None
    unread: Sequence[str]


class MergeRequestComparison(ProjectComparison):
    """Compares merge requests, or their reviews, for one attempt."""

    def __init__(self, attempt: Attempt, client: Client, visit: ProjectVisit) -> None:
        super().__init__(attempt, client, visit)
        self._of_reviews = attempt.job_type is JobType.REVIEWS
        # Details that the server refuses for every merge request are not compared.
        self._refusals = Refusals(self._stored_others)
        self._reviews = ReviewReader(client, visit.project_id, refusals=self._refusals)
        self._singles = SingleReader(client, visit.project_id)
        self._asked = 0

    def _stored_others(self, iids: Collection[int]) -> list[int]:
        with self._database.connection() as conn:
            return comparison.other_merge_requests(conn, self._repo_id, list(iids), _OTHERS)

    def begin(self) -> None:
        """Read the project, and what the server refuses for every merge request."""
        super().begin()
        settled = self._visit.before[self._attempt.job_type].watermark
        with self._database.connection() as conn:
            known = unreadable.known(conn, self._repo_id, self._attempt.job_type, self._visit.fingerprint)
        self._refusals.load(known)
        self._settled = settled if isinstance(settled, datetime) else self._visit.readable(None).until

    def read(self, window: Window, depth: Depth) -> Iterator[Compared]:
        """See :class:`sync_pipeline.sync.reconcile.Comparison`."""
        assert isinstance(window, TimeWindow)
        reader = MergeRequestReader(
            self._client,
            self._visit.project_id,
            children=not self._of_reviews and depth is Depth.DETAILS,
            refusals=self._refusals,
        )
        seen: set[int] = set()
        reached = window.since
        for batch in reader.read(window):
            # The question goes outward to milliseconds.
            rows = [row for row in batch.rows if window.since <= row.updated_at < window.until]
            rows = list({row.iid: row for row in rows if row.iid not in seen}.values())
            seen |= {row.iid for row in batch.rows}
            until = batch.covered.until if isinstance(batch.covered, TimeWindow) else reached
            part = TimeWindow(reached, until)
            unlisted = self._unlisted(part, seen)
            came = [row for some in reader.read_some(sorted(unlisted)) for row in some.rows]
            absent = sorted(unlisted.keys() - {row.iid for row in came})
            # Further ones are asked for when these are tombstones.
            gone = [iid for iid in absent[:_MAX_SINGLE_REQUESTS] if self._singles.is_gone(iid)]
            if gone and not rows and not came:
                self._require_any(reader, absent)
            seen |= unlisted.keys()
            unread = [
                *(row.natural_key for row in batch.quarantined),
                *(one.natural_key for one in batch.deferred),
                *(str(iid) for iid in absent if iid not in gone),
            ]
            listed = _Listed(part, [*rows, *came], {iid: unlisted[iid] for iid in gone}, batch.date, unread)
            yield self._compare_reviews(listed, depth) if self._of_reviews else self._compare(listed)
            reached = until

    def _require_any(self, reader: MergeRequestReader, absent: Sequence[int]) -> None:
        """Raises Transient where the server shows no merge request at all that it should have: that is a
        fault on the way, not a deletion."""
        others = self._stored_others(absent)
        if not others and len(absent) == 1:
            return
        if not others or not any(some.rows for some in reader.read_some(others)):
            raise Transient(
                "the server shows none of the merge requests that are stored, which is believed of no list",
                code="incomplete",
            )

    def _unlisted(self, part: TimeWindow, seen: Collection[int]) -> dict[int, datetime]:
        """Stored merge requests that were last updated in ``part``, or outside of all that is covered, and
        were not listed."""
        with self._database.connection() as conn:
            stored = comparison.merge_requests_in(
                conn,
                self._repo_id,
                part.since,
                part.until,
                of_reviews=self._of_reviews,
                to_end=part.until >= self._settled,
            )
        return {iid: updated_at for iid, updated_at in stored.items() if iid not in seen}

    def _compare(self, listed: _Listed) -> Compared:
        with self._database.connection() as conn:
            compared = comparison.compare_merge_requests(conn, self._repo_id, listed.rows, listed.gone)
        updated_at = {row.iid: row.updated_at for row in listed.rows} | listed.gone

        def position(row: ComparedRow) -> TimeWindow:
            moment = updated_at[row.key[0]]
            if row.stored is not None and not listed.window.since <= moment < listed.window.until:
                moment = row.stored["updated_at"]
            return _point(moment)

        newer = [
            row.natural_key
            for row in compared
            if row.kind and row.source is not None and row.source["updated_at"] >= self._settled
        ]
        return Compared.of(
            listed.window, compared, position, excluded=newer, newer=len(newer), unread=listed.unread
        )

    def _compare_reviews(self, listed: _Listed, depth: Depth) -> Compared:
        rows, gone = listed.rows, listed.gone
        if depth is Depth.LISTING:
            with self._database.connection() as conn:
                differ = comparison.reviews_that_differ(conn, self._repo_id, rows)
            rows = [row for row in rows if row.iid in differ]
        # All parts of a merge request that was updated since the latest reading may be new.
        settled = [row for row in rows if row.updated_at < self._settled]
        sets = self._reviews.read(settled)
        with self._database.connection() as conn:
            parts = comparison.compare_reviews(conn, self._repo_id, sets, gone)
        windows = {row.iid: _point(row.updated_at) for row in settled} | {
            iid: _point(updated_at) for iid, updated_at in gone.items()
        }
        short = self._short(sets)
        newer: list[str] = []
        hidden: list[str] = []
        unread: list[str] = []
        for part in parts:
            if _is_later(part, listed.date):
                # It came while the list was read already: the merge request will be listed again.
                newer.append(part.natural_key)
            elif part.source is None and part.stored is not None and part.key[0] not in gone:
                if self._is_hidden(part, short):
                    hidden.append(part.natural_key)
                elif "origin" in part.stored and not self._is_gone(part):
                    # It is there, and the list does not give it.
                    unread.append(part.natural_key)
        return Compared.of(
            listed.window,
            parts,
            lambda part: windows[part.key[0]],
            excluded={*newer, *hidden, *unread},
            newer=len(rows) - len(settled) + len(newer),
            unread=[
                *listed.unread,
                *unread,
                *(fetch.natural_key for one in sets for fetch in one.deferred),
                *(row.natural_key for one in sets for row in one.quarantined),
            ],
            hidden=hidden,
        )

    def _short(self, sets: Sequence[ReviewSet]) -> set[int]:
        """Merge requests that sent fewer comments than they count, apart from comments that the token never
        saw: some were withheld."""
        with self._database.connection() as conn:
            known = comparison.hidden_notes(conn, self._repo_id, [one.mr_iid for one in sets])
        return {one.mr_iid for one in sets if (one.notes_hidden or 0) > known.get(one.mr_iid, 0)}

    def _is_hidden(self, part: ComparedRow, short: Collection[int]) -> bool:
        """True if the token may not see a stored note, so that its state at the source is unknown."""
        assert part.stored is not None
        if part.stored.get("origin") != Origin.NOTE:
            return False
        is_internal = part.stored["is_internal"]
        return part.key[0] in short or (is_internal and not self._visit.sees_internal_notes())

    def _is_gone(self, part: ComparedRow) -> bool:
        assert part.stored is not None
        self._asked += 1
        # Further ones are asked for when these are tombstones.
        return self._asked <= _MAX_SINGLE_REQUESTS and self._singles.is_event_gone(
            part.key[0], Origin(part.stored["origin"]), part.natural_key
        )


def _is_later(part: ComparedRow, listed_at: datetime | None) -> bool:
    """True if a part that differs happened after the list was read."""
    if part.kind is None or part.source is None or listed_at is None:
        return False
    names = ("ts", "updated_at", "approved_at", "requested_at")
    moments = [part.source[name] for name in names if part.source.get(name) is not None]
    return bool(moments) and max(moments) > listed_at + _SECOND


def _point(moment: datetime) -> TimeWindow:
    """The smallest window that a merge request of this time of update is in."""
    return TimeWindow(moment, moment + _STEP)


def number_of(one: Difference) -> int:
    """The number of the merge request that a difference is of."""
    return int(one.natural_key.partition(":")[0])


def gone_ones(singles: SingleReader, found: Sequence[Difference]) -> set[str]:
    """The keys of those merge requests and events that the source does not have."""
    absent: dict[int, bool] = {}
    keys: set[str] = set()
    for one in found:
        iid = number_of(one)
        event = one.natural_key.partition(":")[2]
        if iid not in absent:
            absent[iid] = singles.is_gone(iid)
        if absent[iid] or (
            event and singles.is_event_gone(iid, Origin(event.partition(":")[0]), one.natural_key)
        ):
            keys.add(one.natural_key)
    return keys
