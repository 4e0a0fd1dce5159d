"""Merge requests and reviews compared with their source.

Belongs here: which of them are listed, which are asked for one by one, and what each difference is. The list
is read by the time of the last update, as coverage is, so that every merge request of either side is in
exactly one window; one that is stored in a window and not listed there is asked for by its number.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from datetime import datetime, timedelta

from sync_pipeline.errors import Transient
from sync_pipeline.gitlab_rows import MergeRequestRow, Origin, ReviewSet
from sync_pipeline.model import Depth, Difference, DifferenceKind, JobType, TimeWindow, Traffic, Window
from sync_pipeline.sources.gitlab.children import Refusals
from sync_pipeline.sources.gitlab.merge_requests import MergeRequestReader
from sync_pipeline.sources.gitlab.reviews import ReviewReader
from sync_pipeline.sources.gitlab.singles import SingleReader
from sync_pipeline.sources.gitlab.transport import Client
from sync_pipeline.store import comparison, unreadable
from sync_pipeline.sync.attempt import Attempt
from sync_pipeline.sync.project import ProjectVisit
from sync_pipeline.sync.reconcile import Compared

_ASKED_ONE_BY_ONE = 200
# Asked for to tell a deletion from a server that shows nothing.
_OTHERS = 3
# A Date header shows whole seconds.
_SECOND = timedelta(seconds=1)
# What the API shows of time.
_STEP = timedelta(milliseconds=1)


class MergeRequestComparison:
    """Compares merge requests, or their reviews, for one attempt."""

    def __init__(self, attempt: Attempt, client: Client, visit: ProjectVisit) -> None:
        self._attempt = attempt
        self._client = client
        self._visit = visit
        self._database = attempt.database
        self._repo_id = attempt.repo.repo_id
        self._parallel = attempt.settings.gitlab.parallel
        self._of_reviews = attempt.job_type is JobType.REVIEWS
        # Details that the server refuses for every merge request are not compared.
        self._refusals = Refusals(self._stored_others)
        self._reviews = ReviewReader(
            client, visit.project_id, parallel=self._parallel, refusals=self._refusals
        )
        self._singles = SingleReader(client, visit.project_id)
        self._asked = 0

    def _stored_others(self, iids: Collection[int]) -> list[int]:
        with self._database.connection() as conn:
            return comparison.other_merge_requests(conn, self._repo_id, list(iids), _OTHERS)

    # See sync_pipeline.sync.reconcile.Comparison.
    lists_are_whole = False

    @property
    def traffic(self) -> Traffic:
        """What was sent so far."""
        return self._client.traffic

    def begin(self) -> None:
        """Look at the project. Raises Permanent where it has merge requests switched off."""
        with self._visit.watched():
            self._visit.look()
            self._visit.is_disabled(self._attempt)
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
            parallel=self._parallel,
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
            # Of more than these the others are asked for when these are tombstones.
            gone = [iid for iid in absent[:_ASKED_ONE_BY_ONE] if self._singles.is_gone(iid)]
            if gone and not rows and not came:
                self._require_any(reader, absent)
            seen |= unlisted.keys()
            compare = self._compare_reviews if self._of_reviews else self._compare
            yield compare(
                part,
                [*rows, *came],
                {iid: unlisted[iid] for iid in gone},
                depth,
                batch.date,
                [
                    *(row.natural_key for row in batch.quarantined),
                    *(one.natural_key for one in batch.deferred),
                    *(str(iid) for iid in absent if iid not in gone),
                ],
            )
            reached = until

    def _require_any(self, reader: MergeRequestReader, absent: Sequence[int]) -> None:
        """Raises Transient where the server shows no merge request at all that it should have: that is no
        deletion but something between us and them."""
        others = self._stored_others(absent)
        if not others and len(absent) == 1:
            return
        if not others or not any(some.rows for some in reader.read_some(others)):
            raise Transient(
                "the server shows none of the merge requests that are stored, which is believed of no list",
                code="incomplete",
            )

    def _unlisted(self, part: TimeWindow, seen: Collection[int]) -> dict[int, datetime]:
        """What is stored as last updated in ``part``, before all or behind all that is covered, and was not
        listed."""
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

    def _compare(
        self,
        part: TimeWindow,
        rows: Sequence[MergeRequestRow],
        gone: dict[int, datetime],
        depth: Depth,
        date: datetime | None,
        unread: list[str],
    ) -> Compared:
        with self._database.connection() as conn:
            compared = comparison.compare_merge_requests(conn, self._repo_id, rows)
        at = {row.iid: row.updated_at for row in rows}
        found = [
            Difference(str(iid), DifferenceKind.EXTRA, _point(updated_at)) for iid, updated_at in gone.items()
        ]
        newer = 0
        for one in compared:
            if not one.missing and not one.fields:
                continue
            if at[one.iid] >= self._settled:
                newer += 1
                continue
            kind = DifferenceKind.MISSING if one.missing else DifferenceKind.CHANGED
            place = at[one.iid] if one.updated_at is None or _holds(part, at[one.iid]) else one.updated_at
            found.append(Difference(str(one.iid), kind, _point(place), one.fields))
        stored = sum(not one.missing for one in compared) + len(gone)
        return Compared(part, len(compared), stored, tuple(found), newer, unread=tuple(dict.fromkeys(unread)))

    def _compare_reviews(
        self,
        part: TimeWindow,
        rows: Sequence[MergeRequestRow],
        gone: dict[int, datetime],
        depth: Depth,
        date: datetime | None,
        unread: list[str],
    ) -> Compared:
        if depth is Depth.LISTING:
            with self._database.connection() as conn:
                differ = comparison.reviews_that_differ(conn, self._repo_id, rows)
            rows = [row for row in rows if row.iid in differ]
        # Of what was updated since it was read last everything may be new.
        newer_ones = {row.iid for row in rows if row.updated_at >= self._settled}
        sets = self._reviews.read([row for row in rows if row.iid not in newer_ones])
        with self._database.connection() as conn:
            parts = comparison.compare_reviews(conn, self._repo_id, sets, gone)
        places = {row.iid: row.updated_at for row in rows} | gone
        short = self._short(sets)
        hidden: list[str] = []
        found: list[Difference] = []
        newer = len(newer_ones)
        for one in parts:
            if not (one.missing or one.extra or one.fields):
                continue
            if date is not None and one.happened_at is not None and one.happened_at > date + _SECOND:
                # It came while the list was read already: the merge request will be listed again.
                newer += 1
                continue
            if one.extra and self._is_hidden(one, gone, short):
                hidden.append(one.natural_key)
                continue
            if one.extra and one.origin is not None and not self._is_gone(one, gone):
                # It is there, and the list does not give it.
                unread.append(one.natural_key)
                continue
            kind = (
                DifferenceKind.MISSING
                if one.missing
                else DifferenceKind.EXTRA
                if one.extra
                else DifferenceKind.CHANGED
            )
            found.append(Difference(one.natural_key, kind, _point(places[one.iid]), one.fields))
        expected = sum(not one.extra for one in parts)
        stored = sum(not one.missing for one in parts)
        unread += [owed.natural_key for one in sets for owed in one.deferred]
        unread += [row.natural_key for one in sets for row in one.quarantined]
        return Compared(
            part,
            expected,
            stored,
            tuple(found),
            newer,
            unread=tuple(dict.fromkeys(unread)),
            hidden=tuple(hidden),
        )

    def _short(self, sets: Sequence[ReviewSet]) -> set[int]:
        """Those of which fewer comments came than the merge request counts, without those that the token
        never saw: some were withheld."""
        with self._database.connection() as conn:
            known = comparison.hidden_notes(conn, self._repo_id, [one.mr_iid for one in sets])
        return {one.mr_iid for one in sets if (one.notes_hidden or 0) > known.get(one.mr_iid, 0)}

    def _is_hidden(self, one: comparison.ComparedPart, gone: Collection[int], short: Collection[int]) -> bool:
        """True if the token may not see a stored note, so that its state at the source is unknown."""
        if one.origin is not Origin.NOTE or one.iid in gone:
            return False
        return one.iid in short or (one.is_internal and not self._visit.sees_internal_notes())

    def _is_gone(self, one: comparison.ComparedPart, gone: Collection[int]) -> bool:
        if one.iid in gone:
            return True
        assert one.origin is not None
        self._asked += 1
        # Of more than these the others are asked for when these are tombstones.
        return self._asked <= _ASKED_ONE_BY_ONE and self._singles.is_event_gone(
            one.iid, one.origin, one.natural_key
        )


def _point(moment: datetime) -> TimeWindow:
    """The smallest window that a merge request of this time of update is in."""
    return TimeWindow(moment, moment + _STEP)


def _holds(window: TimeWindow, moment: datetime) -> bool:
    return window.since <= moment < window.until


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
