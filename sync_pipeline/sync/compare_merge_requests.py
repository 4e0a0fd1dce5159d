"""Merge requests and reviews compared with their source.

Belongs here: which of them are listed or asked for one by one, and the kind of each difference. The list is
read by the time of the last update, as coverage is. So every merge request of either side is in exactly one
window. A merge request that is stored in a window and not listed there is asked for by its number.

With the depth of lists, GraphQL compares notes, approvers and reviewers in batches. Only merge requests that
differ there, or have an open difference, are read one by one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sync_pipeline.core.errors import Transient
from sync_pipeline.core.gitlab_rows import MergeRequestRow, Origin, ReviewSet
from sync_pipeline.core.model import Depth, Difference, JobType, Page, TimeWindow, Window
from sync_pipeline.facts import comparison, unreadable
from sync_pipeline.facts.comparison import ComparedRow
from sync_pipeline.ledger import reconciliations
from sync_pipeline.sources.gitlab.batches import BatchReader
from sync_pipeline.sources.gitlab.children import Refusals
from sync_pipeline.sources.gitlab.merge_requests import MergeRequestReader, parts_of
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
_CHILDREN = ("versions", "commits")
# Columns that follow from versions and commits.
_OF_CHILDREN = frozenset({*_CHILDREN, "base_sha", "start_sha", "changes_count"})

Planned = Collection[tuple[int, str]]
"""Details that are to be read yet, by the number of the merge request."""


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


@dataclass(slots=True)
class _Plan:
    """How the reviews of a piece are compared: ``single`` ones are read one by one. ``parts`` are those of
    the others, as GraphQL shows them. ``newer`` is the number of reviews that are newer than the latest
    visit."""

    single: Sequence[MergeRequestRow]
    newer: int
    parts: Sequence[ComparedRow] = ()


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
        self._batches: BatchReader | None = None

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
        reader = MergeRequestReader(self._client, self._visit.project_id, refusals=self._refusals)
        seen: set[int] = set()
        reached = window.since
        pages = reader.listed(window)
        if depth is Depth.DETAILS:
            pages = (part for page in pages for part in parts_of(page))
        for batch in pages:
            # The question goes outward to milliseconds.
            rows = [row for row in batch.rows if window.since <= row.updated_at < window.until]
            rows = list({row.iid: row for row in rows if row.iid not in seen}.values())
            seen |= {row.iid for row in batch.rows}
            until = batch.covered.until if isinstance(batch.covered, TimeWindow) else reached
            part = TimeWindow(reached, until)
            unlisted = self._unlisted(part, seen)
            came = [row for some in reader.listed_some(sorted(unlisted)) for row in some.rows]
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
            if self._of_reviews:
                yield self._compare_reviews(listed, depth)
            else:
                yield self._compare(reader, listed, depth)
            reached = until

    def _require_any(self, reader: MergeRequestReader, absent: Sequence[int]) -> None:
        """Raises Transient where the server shows no merge request at all that it should have: that is a
        fault on the way, not a deletion."""
        others = self._stored_others(absent)
        if not others and len(absent) == 1:
            return
        if not others or not any(some.rows for some in reader.listed_some(others)):
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

    def _known(self, listed: _Listed) -> tuple[Planned, set[int]]:
        """The planned details, and the merge requests with open differences."""
        job_type = self._attempt.job_type
        with self._database.connection() as conn:
            iids = (row.iid for row in listed.rows)
            planned = comparison.planned_details(conn, self._repo_id, job_type, iids)
            found = reconciliations.open_ones(conn, self._repo_id, job_type, window=listed.window)
        return planned, {number_of(one.difference) for one in found}

    def _compare(self, reader: MergeRequestReader, listed: _Listed, depth: Depth) -> Compared:
        planned, wanted = self._known(listed)
        if depth is Depth.DETAILS:
            wanted = {row.iid for row in listed.rows}
        else:
            with self._database.connection() as conn:
                found = comparison.compare_merge_requests(conn, self._repo_id, listed.rows)
            wanted |= {row.key[0] for row in found if row.kind is not None}
        page = reader.complete(Page(None, tuple(listed.rows), None), dict.fromkeys(sorted(wanted), _CHILDREN))
        with self._database.connection() as conn:
            compared = comparison.compare_merge_requests(conn, self._repo_id, page.rows, listed.gone)
        updated_at = {row.iid: row.updated_at for row in listed.rows} | listed.gone

        def position(row: ComparedRow) -> TimeWindow:
            moment = updated_at[row.key[0]]
            if row.stored is not None and not listed.window.since <= moment < listed.window.until:
                moment = row.stored["updated_at"]
            return _point(moment)

        newer = [
            row.natural_key
            for row in compared
            if row.kind and row.source is not None
            if row.source["updated_at"] >= self._settled or _is_planned_change(row, planned)
        ]
        return Compared.of(
            listed.window,
            compared,
            position,
            excluded=newer,
            newer=len(newer),
            unread=[*listed.unread, *(one.natural_key for one in page.deferred)],
            whole=map(str, wanted),
        )

    def _compare_reviews(self, listed: _Listed, depth: Depth) -> Compared:
        gone = listed.gone
        planned, differing = self._known(listed)
        plan = self._plan(listed, depth, planned, differing)
        sets = self._reviews.read(plan.single)
        with self._database.connection() as conn:
            parts = [*plan.parts, *comparison.compare_reviews(conn, self._repo_id, sets, gone)]
        windows = {row.iid: _point(row.updated_at) for row in listed.rows} | {
            iid: _point(updated_at) for iid, updated_at in gone.items()
        }
        short = self._short(sets)
        newer: list[str] = []
        hidden: list[str] = []
        unread: list[str] = []
        for part in parts:
            if _is_later(part, listed.date) or (part.kind and _part_of(part) in planned):
                # It came while the list was read already: the merge request will be listed again. Or it is
                # to be read yet.
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
            newer=plan.newer + len(newer),
            unread=[
                *listed.unread,
                *unread,
                *(fetch.natural_key for one in sets for fetch in one.deferred),
                *(row.natural_key for one in sets for row in one.quarantined),
            ],
            hidden=hidden,
            whole=(str(row.iid) for row in plan.single),
        )

    def _plan(self, listed: _Listed, depth: Depth, planned: Planned, differing: set[int]) -> _Plan:
        """Decides which reviews of a piece are read one by one. With the depth of lists these are the
        ``differing`` ones, and those that differ in the list or by GraphQL."""
        # All parts of a merge request that was updated since the latest reading may be new.
        settled = [row for row in listed.rows if row.updated_at < self._settled]
        if depth is Depth.DETAILS:
            return _Plan(settled, len(listed.rows) - len(settled))
        with self._database.connection() as conn:
            differing = differing | comparison.reviews_that_differ(conn, self._repo_id, listed.rows)
        newer = sum(row.iid in differing and row.updated_at >= self._settled for row in listed.rows)
        rest = [row for row in settled if row.iid not in differing]
        shown, parts = self._batched(rest)
        differing |= {part.key[0] for part in parts if self._differs(part) and _part_of(part) not in planned}
        if self._attempt.notice is None:
            # Nothing follows from the absence of one.
            differing |= {row.iid for row in rest if row.iid not in shown}
        single = [row for row in settled if row.iid in differing]
        return _Plan(single, newer, [part for part in parts if part.key[0] not in differing])

    def _batched(self, rows: Sequence[MergeRequestRow]) -> tuple[set[int], list[ComparedRow]]:
        """The merge requests whose reviews GraphQL shows, and the comparison of those."""
        if not self._attempt.settings.gitlab.graphql:
            self._attempt.notice = "GraphQL is switched off by the setting gitlab_graphql"
        if self._attempt.notice is not None or not rows:
            return set(), []
        if self._batches is None:
            self._batches = BatchReader(self._client, self._visit.project_id, self._info.path)
        found = [one.review for one in self._batches.read(rows).values()]
        self._attempt.notice = self._batches.stepped_down
        if "reviewers" in self._client.instance.unknown_fields:
            self._attempt.notice = "GraphQL of this server does not show reviewers"
        elif self._attempt.notice is None:
            found = [one for one in found if one.reviewers is not None]
        found = [one for one in found if one.approvals is not None]
        with self._database.connection() as conn:
            return {one.mr_iid for one in found}, comparison.compare_batches(conn, self._repo_id, found)

    def _differs(self, part: ComparedRow) -> bool:
        return part.kind is not None and not (part.source is None and self._is_hidden(part, ()))

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


def _part_of(part: ComparedRow) -> tuple[int, str]:
    """The merge request and the name of the detail that a part of a review is of."""
    iid, name, *person = part.key
    return iid, f"{name}s" if person else str(name).partition(":")[0]


def _is_planned_change(row: ComparedRow, planned: Planned) -> bool:
    """True if a merge request differs only in what is to be read yet."""
    is_planned = any((row.key[0], name) in planned for name in _CHILDREN)
    return is_planned and row.stored is not None and _OF_CHILDREN.issuperset(row.fields)


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
