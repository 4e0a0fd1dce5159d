"""Details of the merge requests of a page: which are read with it, and which are planned for later.

Belongs here: reading versions, commits and reviews for a page of the list, to the usable or the complete
level, and reading what was planned. Does not belong here: the list and its windows, writing
(:mod:`sync_pipeline.sync.merge_requests`), and the rules (:mod:`sync_pipeline.policy.levels`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from sync_pipeline.core.errors import Cancelled, SyncError
from sync_pipeline.core.gitlab_rows import (
    CommitRow,
    MergeRequestPage,
    MergeRequestRow,
    Origin,
    ReviewEventRow,
    ReviewPage,
    ReviewSet,
    StoredReview,
    who,
)
from sync_pipeline.core.model import DeferredFetch, JobType, Page, TimeWindow
from sync_pipeline.facts import merge_requests, quarantine, reviews
from sync_pipeline.facts.merge_requests import StoredHead
from sync_pipeline.policy import levels
from sync_pipeline.policy.levels import SeenReview
from sync_pipeline.sources.gitlab import project
from sync_pipeline.sources.gitlab.batches import BatchReader, BatchReview
from sync_pipeline.sources.gitlab.children import Refusals
from sync_pipeline.sources.gitlab.merge_requests import MergeRequestReader, deferred_of_unlisted, parts_of
from sync_pipeline.sources.gitlab.page_bisect import UNLISTED
from sync_pipeline.sources.gitlab.reviews import DUPLICATED, ReviewReader
from sync_pipeline.sources.gitlab.transport import Client
from sync_pipeline.sync.attempt import Attempt
from sync_pipeline.sync.project import ProjectVisit

_CHILDREN = (levels.VERSIONS, levels.COMMITS)
_TOGETHER = frozenset({levels.NOTES, *levels.EVENTS})
# Merge requests whose planned details are read and written together.
_PLANNED_AT_ONCE = 50
# Planned details of as many merge requests, if each has all of them.
_DETAILS_AT_ONCE = _PLANNED_AT_ONCE * len(levels.REVIEW_DETAILS)
# Merge requests whose approvals are asked for with a filter of the list. It costs up to two requests.
_MIN_FILTERED = 3
_PLANNED = "not read yet: planned"
_NOT_LISTED = "the server does not list it"

Pages = tuple[MergeRequestPage, ReviewPage | SyncError | None]
"""A page of merge requests, and the page of their reviews: the error that reading them raised, or None where
they were not asked for."""


class DetailReader:
    """Reads details for the attempts of one visit. ``counted`` attributes the requests of a block to a job
    type. With ``rereads`` everything is read, whatever is stored."""

    def __init__(
        self,
        attempts: Sequence[Attempt],
        client: Client,
        visit: ProjectVisit,
        reader: MergeRequestReader,
        review_reader: ReviewReader,
        refusals: Mapping[JobType, Refusals],
        counted: Callable[[JobType], AbstractContextManager[None]],
    ) -> None:
        first = attempts[0]
        self._database = first.database
        self._repo_id = first.repo.repo_id
        self._settings = first.settings.gitlab
        self._rereads = any(attempt.rereads for attempt in attempts)
        self._client = client
        self._visit = visit
        self._reader = reader
        self._review_reader = review_reader
        self._refusals = refusals
        self._counted = counted
        self._batches: BatchReader | None = None
        self._has_milestones: bool | None = None

    @property
    def notice(self) -> str | None:
        """Why GraphQL is not used any more, in one line; None if it is, or was not needed."""
        return None if self._batches is None else self._batches.stepped_down

    # -- a page of the list ----------------------------------------------------------------------------------

    def read(
        self,
        page: MergeRequestPage,
        job_types: Collection[JobType],
        *,
        fully: bool = False,
        children: bool = False,
    ) -> Iterator[Pages]:
        """``page`` with the details that ``job_types`` need, in one or several parts.

        With ``fully`` all details of reviews are read by REST, even if they are stored, and with ``children``
        versions and commits. A large page is read to the usable level, and the rest of its details is
        planned, if the server has GraphQL. Raises as the readers do."""
        fully = fully or self._rereads
        state = _State(fully, is_repair=children or self._rereads)
        if page.rows:
            self._look_up(page, job_types, state)
        asked = [row for row in page.rows if row.iid in state.unread or row.iid in state.stale]
        state.seen = {} if fully else self._seen(asked)
        state.is_small = len(asked) <= levels.AT_ONCE
        by_rest = sum(row.iid not in state.seen for row in asked)
        for part in [page] if state.is_small or by_rest <= levels.AT_ONCE else parts_of(page):
            # Reviews come first, because notes show that there are new versions.
            reviewed = self._reviews(part, state) if JobType.REVIEWS in job_types else None
            yield self._children(part, state, reviewed), reviewed

    def _look_up(self, page: MergeRequestPage, job_types: Collection[JobType], state: _State) -> None:
        """Read what is stored of the rows of ``page``."""
        with self._database.connection() as conn:
            if JobType.MERGE_REQUESTS in job_types:
                if not state.is_repair:
                    ids = {row.iid: row.mr_id for row in page.rows}
                    state.heads = merge_requests.stored_heads(conn, self._repo_id, ids)
                state.stale = {
                    row.iid for row in page.rows if _may_need_children(row, state.heads.get(row.iid))
                }
            if JobType.REVIEWS in job_types:
                refused = self._refusals[JobType.REVIEWS].refused
                known = {} if state.fully else reviews.reviews_as_of(conn, self._repo_id, page.rows, refused)
                unread = [row for row in page.rows if known.get(row.iid) != row.updated_at]
                state.unread = {row.iid for row in unread}
                if unread and not state.fully:
                    state.stored = reviews.stored_reviews(conn, self._repo_id, unread)

    def _seen(self, rows: Sequence[MergeRequestRow]) -> Mapping[int, BatchReview]:
        """The ``rows`` that GraphQL shows, by number. Empty where it is switched off or not used any more."""
        if not rows or not self._settings.graphql:
            return {}
        if self._batches is None:
            info = self._visit.project
            self._batches = BatchReader(self._client, info.project_id, info.path)
        return self._batches.read(rows)

    def _children(
        self, page: MergeRequestPage, state: _State, reviewed: ReviewPage | SyncError | None
    ) -> MergeRequestPage:
        stale = [row for row in page.rows if row.iid in state.stale]
        # Those that were never read are read anyway.
        notes = self._notes([row for row in stale if row.iid in state.heads], state, reviewed)
        rows = [
            row
            for row in stale
            if _needs_children(row, state.heads.get(row.iid), state.seen.get(row.iid), notes.get(row.iid))
        ]
        now = {row.iid for row in rows if state.is_now(row)}
        details = set(_CHILDREN) - self._refusals[JobType.MERGE_REQUESTS].refused
        later = [fetch for row in rows if row.iid not in now for fetch in self._planned(row, details)]
        # A repair asks the source for everything.
        known = partial(self._known_commits, state.seen)
        found = (
            self._reader.complete(page, now) if state.is_repair else self._reader.complete(page, now, known)
        )
        return replace(found, deferred=(*found.deferred, *later))

    def _notes(
        self, rows: Sequence[MergeRequestRow], state: _State, reviewed: ReviewPage | SyncError | None
    ) -> dict[int, list[_Note]]:
        """The notes about versions of those of ``rows`` of which all notes are known as of their update."""
        came = {
            one.mr_iid: one.events
            for one in (reviewed.rows if isinstance(reviewed, Page) else ())
            if Origin.NOTE in one.whole
        }
        came |= {iid: one.review.events for iid, one in state.seen.items()}
        left = [row for row in rows if row.iid not in came]
        stored = dict(state.stored)
        if unknown := [row for row in rows if row.iid not in stored]:
            with self._database.connection() as conn:
                stored |= reviews.stored_reviews(conn, self._repo_id, unknown)
        notes = {
            row.iid: [_stored_note(one) for one in stored[row.iid].notes.values()]
            for row in left
            if stored[row.iid].read_as_of == row.updated_at and levels.NOTES in stored[row.iid].complete
        }
        for row in rows:
            known = stored[row.iid].notes
            if row.iid in came:
                notes[row.iid] = [_best_note(one, known.get(one.event_id)) for one in came[row.iid]]
        return {
            iid: [one for one in found if one.kind in levels.ABOUT_VERSIONS] for iid, found in notes.items()
        }

    def _known_commits(
        self, seen: Mapping[int, BatchReview], rows: Sequence[MergeRequestRow]
    ) -> dict[int, tuple[CommitRow, ...]]:
        """The commits of those of ``rows`` of which GraphQL gave them, or the repository has them all."""
        shown = {
            row.iid: commits
            for row in rows
            # An empty list may be one that the token may not see.
            if row.iid in seen and (commits := seen[row.iid].commits) and commits[0].sha == row.head_sha
        }
        with self._database.connection() as conn:
            left = [row for row in rows if row.iid not in shown]
            return merge_requests.known_commits(conn, self._repo_id, left) | shown

    def _reviews(self, page: MergeRequestPage, state: _State) -> ReviewPage | SyncError:
        """The page of the reviews of ``page``, or the error that ended reading them."""
        rows = [row for row in page.rows if row.iid in state.unread]
        try:
            with self._counted(JobType.REVIEWS):
                sets = self._review_reader.read(rows) if state.fully else self._review_sets(rows, state)
        except Cancelled:
            raise
        except SyncError as error:
            return error
        # The review of a merge request that cannot be read is not read either.
        unlisted = [row for row in page.quarantined if row.reason == UNLISTED]
        return Page(
            page.window,
            tuple(sets),
            page.covered,
            (*page.quarantined, *(row for one in sets for row in one.quarantined)),
            (
                *(fetch for one in sets for fetch in one.deferred),
                *(deferred_of_unlisted(row, levels.NOTES) for row in unlisted),
            ),
            page.evidence,
            page.date,
        )

    def _review_sets(self, rows: Sequence[MergeRequestRow], state: _State) -> list[ReviewSet]:
        stored, seen = state.stored, state.seen
        milestones = self._may_have_milestones(rows, stored)
        news = {
            row.iid: reviews.changed_notes(seen[row.iid].review.events, stored[row.iid].notes)
            for row in rows
            if row.iid in seen
        }
        plans = {
            row.iid: levels.plan_by_graphql(
                row,
                stored[row.iid],
                _seen_review(row, seen[row.iid], stored[row.iid], news[row.iid]),
                has_milestones=milestones,
            )
            if row.iid in seen
            else levels.plan_by_rest(row, stored[row.iid], has_milestones=milestones)
            for row in rows
        }
        now = [row for row in rows if state.is_now(row)]
        approved = self._approved([row for row in now if row.iid not in seen], state)
        read = self._review_reader.read(
            now,
            {row.iid: plans[row.iid].changed for row in now},
            lambda row, notes: (
                row.iid in seen or row.iid in approved or levels.needs_approvals(row, stored[row.iid], notes)
            ),
        )
        found = {one.mr_iid: one for one in read}
        sets: list[ReviewSet] = []
        for row in rows:
            plan = plans[row.iid]
            later: Collection[str] = ()
            one = found.get(row.iid)
            if one is None:
                one = _usable(row, seen[row.iid].review, news[row.iid])
                later = plan.changed
            fetches = (
                *one.deferred,
                *self._planned(row, self._readable(later)),
                *self._planned(row, self._readable(plan.unsure), levels.CONFIRM_AFTER),
            )
            sets.append(replace(one, kept=one.kept | plan.kept, deferred=fetches))
        return sets

    def _approved(self, rows: Sequence[MergeRequestRow], state: _State) -> Collection[int]:
        """Those of ``rows`` that may be approved without a note, by REST: only before the first reading. A
        filter of the list tells it of many at once, if the server has it."""
        if levels.APPROVALS in self._refusals[JobType.REVIEWS]:
            return ()
        first = [row.iid for row in rows if levels.APPROVALS not in state.stored[row.iid].complete]
        if len(first) < _MIN_FILTERED:
            return first
        return self._review_reader.approved(first) or ()

    def _may_have_milestones(
        self, rows: Sequence[MergeRequestRow], stored: Mapping[int, StoredReview]
    ) -> bool:
        """Whether merge requests may have events of milestones. The lists of milestones are read once in a
        visit, and only if they save more requests than they cost."""
        if any(row.milestone is not None or stored[row.iid].has_milestone_events for row in rows):
            self._has_milestones = True
        if self._has_milestones is None:
            if len(rows) <= len(project.milestone_paths(self._visit.project)):
                return True
            self._has_milestones = project.has_milestones(self._client, self._visit.project)
        return self._has_milestones

    def _readable(self, details: Iterable[str]) -> set[str]:
        return set(details) - self._refusals[JobType.REVIEWS].refused

    def _planned(
        self, row: MergeRequestRow, details: Iterable[str], wait: timedelta = timedelta()
    ) -> list[DeferredFetch]:
        priority = levels.priority(row, self._visit.readable(None).until)
        return [
            DeferredFetch(str(row.iid), detail, _PLANNED, True, priority, row.updated_at, wait)
            for detail in sorted(details)
        ]

    # -- planned details -------------------------------------------------------------------------------------

    def read_planned(
        self,
        job_types: Sequence[JobType],
        window: TimeWindow,
        *,
        limit: int | None,
        waiting: bool,
        must_end: Callable[[], bool],
        updated: TimeWindow | None = None,
    ) -> Iterator[Pages]:
        """Planned details of at most ``limit`` merge requests, most urgent first, until ``must_end``. With
        ``waiting`` also those whose time has not come. With ``updated`` only those that were updated in it.
        Each page is to be stored before the next but one is asked for."""
        met: set[str] = set()
        # A page is read while the one before it is stored, so these keys may still be listed as planned.
        recent: deque[Collection[str]] = deque(maxlen=2)
        # Met before, and still planned: another job stored something newer meanwhile.
        stuck: set[str] = set()
        left = limit
        while (left is None or left > 0) and not must_end():
            most = _PLANNED_AT_ONCE if left is None else min(left, _PLANNED_AT_ONCE)
            with self._database.connection() as conn:
                wanted = quarantine.planned(
                    conn,
                    self._repo_id,
                    job_types,
                    limit=_DETAILS_AT_ONCE,
                    waiting=waiting,
                    updated=updated,
                    except_for={*stuck, *(key for keys in recent for key in keys)},
                )
            if not wanted:
                return
            stuck.update(key for key in wanted if key in met)
            chosen = {key: wanted[key] for key in [key for key in wanted if key not in met][:most]}
            met.update(chosen)
            recent.append(chosen)
            if chosen:
                left = None if left is None else left - len(chosen)
                yield self._planned_page(chosen, job_types, window)

    def _planned_page(
        self,
        wanted: Mapping[str, Mapping[JobType, Collection[str]]],
        job_types: Collection[JobType],
        window: TimeWindow,
    ) -> Pages:
        listed = list(self._reader.listed_some([int(key) for key in wanted]))
        rows = tuple({row.iid: row for page in listed for row in page.rows}.values())
        page: MergeRequestPage = Page(window, rows, date=next((page.date for page in listed), None))
        absent = wanted.keys() - {str(row.iid) for row in rows}

        def of(job_type: JobType) -> dict[int, Collection[str]]:
            return {row.iid: details for row in rows if (details := wanted[str(row.iid)].get(job_type))}

        def lost(job_type: JobType) -> list[DeferredFetch]:
            return [
                DeferredFetch(key, detail, _NOT_LISTED)
                for key in sorted(absent)
                for detail in wanted[key].get(job_type, ())
            ]

        stale = of(JobType.MERGE_REQUESTS)
        seen = self._seen([row for row in rows if row.iid in stale])
        found = self._reader.complete(page, stale.keys(), partial(self._known_commits, seen))
        found = replace(found, deferred=(*found.deferred, *lost(JobType.MERGE_REQUESTS)))
        if JobType.REVIEWS not in job_types:
            return found, None
        unread = of(JobType.REVIEWS)
        try:
            with self._counted(JobType.REVIEWS):
                sets = self._partial_reviews([row for row in rows if row.iid in unread], unread)
        except Cancelled:
            raise
        except SyncError as error:
            return found, error
        deferred = (*lost(JobType.REVIEWS), *(fetch for one in sets for fetch in one.deferred))
        lacking = tuple(row for one in sets for row in one.quarantined)
        return found, Page(window, tuple(sets), None, lacking, deferred, date=page.date)

    def _partial_reviews(
        self, rows: Sequence[MergeRequestRow], wanted: Mapping[int, Collection[str]]
    ) -> list[ReviewSet]:
        """These details of reviews that were read before, as of the reading before."""
        if not rows:
            return []
        with self._database.connection() as conn:
            stored = reviews.stored_reviews(conn, self._repo_id, rows)
        details = {
            row.iid: {*wanted[row.iid], *_TOGETHER}
            if _is_entangled((), stored[row.iid]) and _TOGETHER & set(wanted[row.iid])
            else set(wanted[row.iid])
            for row in rows
        }
        return [
            replace(one, partial=True, mr_updated_at=stored[one.mr_iid].read_as_of or one.mr_updated_at)
            for one in self._review_reader.read(rows, details)
        ]


@dataclass
class _State:
    """The known state of the merge requests of a page, by number. ``stale`` ones need versions and commits,
    and ``unread`` ones their review. ``seen`` is what GraphQL showed. ``is_small``: all is read at once.
    ``fully``: all details of reviews are read, and in a repair also all versions and commits."""

    fully: bool
    is_repair: bool
    heads: Mapping[int, StoredHead] = field(default_factory=dict)
    stored: Mapping[int, StoredReview] = field(default_factory=dict)
    seen: Mapping[int, BatchReview] = field(default_factory=dict)
    stale: Collection[int] = ()
    unread: Collection[int] = ()
    is_small: bool = False

    def is_now(self, row: MergeRequestRow) -> bool:
        """Whether the details of ``row`` are read with its page: always those that GraphQL did not show."""
        return self.is_small or row.iid not in self.seen


@dataclass(frozen=True, slots=True)
class _Note:
    """A note as far as it shows a new version. Times are exact, or in whole seconds."""

    kind: str
    at: datetime | None
    is_exact: bool

    def may_be_after(self, moment: datetime) -> bool:
        if self.at is None or self.is_exact:
            return self.at is None or self.at > moment
        return self.at >= moment.replace(microsecond=0)


def _stored_note(stored: Mapping[str, Any]) -> _Note:
    return _Note(stored["event_type"], stored["ts"], stored["time_precision"] == "millisecond")


def _best_note(row: ReviewEventRow, stored: Mapping[str, Any] | None) -> _Note:
    if stored is not None and stored["time_precision"] == "millisecond":
        return _stored_note(stored)
    return _Note(row.kind, row.occurred_at, row.time_precision == "millisecond")


def _may_need_children(row: MergeRequestRow, stored: StoredHead | None) -> bool:
    """Whether versions and commits of ``row`` may have to be read: False if nothing changed since."""
    if stored is None or stored.has_failed:
        return True
    head = (row.head_sha, row.target_branch)
    if stored.is_planned:
        return stored.listed != head
    return stored.children != head or row.updated_at > stored.updated_at


def _needs_children(
    row: MergeRequestRow, stored: StoredHead | None, seen: BatchReview | None, notes: Sequence[_Note] | None
) -> bool:
    """Whether versions and commits have to be read, of a ``row`` that may need it. ``seen`` is what GraphQL
    showed of it. ``notes`` are those about versions; None: not all are known.

    Several pushes, or changes of the target, may end with the head and target that were there before."""
    if stored is None or stored.has_failed or stored.is_planned:
        return True
    if stored.children != (row.head_sha, row.target_branch):
        return True
    if notes is None or any(one.may_be_after(stored.updated_at) for one in notes):
        return True
    if seen is not None and seen.diff_refs is not None and seen.diff_refs[2] == row.head_sha:
        return seen.diff_refs[:2] != (stored.base_sha, stored.start_sha)
    return stored.is_unsure


def _seen_review(
    row: MergeRequestRow, seen: BatchReview, stored: StoredReview, news: Sequence[ReviewEventRow]
) -> SeenReview:
    review = seen.review
    ids = {event.event_id for event in review.events}
    comments = sum(not event.is_system for event in review.events)
    return SeenReview(
        # Two updates in one second look the same.
        same_notes=not news
        and (stored.read_as_of == row.updated_at or _second(stored.read_as_of) != _second(row.updated_at))
        and ids == set(stored.notes)
        and not review.quarantined
        and row.user_notes_count in (None, comments),
        approval_notes=frozenset(
            event.event_id for event in review.events if event.kind in levels.ABOUT_APPROVALS
        ),
        reviewer_notes=frozenset(
            event.event_id for event in review.events if event.kind in levels.ABOUT_REVIEWERS
        ),
        approvers=None
        if review.approvals is None
        else frozenset(who(one.person) for one in review.approvals),
        reviewers=None
        if review.reviewers is None
        else {who(one.person): one.state for one in review.reviewers},
        is_entangled=_is_entangled(review.events, stored),
    )


def _second(moment: datetime | None) -> datetime | None:
    return None if moment is None else moment.replace(microsecond=0)


def _is_entangled(events: Iterable[ReviewEventRow], stored: StoredReview) -> bool:
    """Whether a system note is of a kind that a structured event may have too."""
    return any(event.is_system and event.kind in DUPLICATED for event in events) or any(
        note["is_system"] and (note["event_type"] in DUPLICATED or note["duplicate_of"] is not None)
        for note in stored.notes.values()
    )


def _usable(row: MergeRequestRow, review: ReviewSet, news: tuple[ReviewEventRow, ...]) -> ReviewSet:
    """The usable part of a review from GraphQL: the notes that are ``news``, and people without times. Only
    the absence of reviewers is complete, because the row shows it."""
    shown = replace(review, events=news, whole=frozenset(), quarantined=())
    if row.reviewers:
        return replace(shown, seen=frozenset({levels.APPROVALS, levels.REVIEWERS}))
    return replace(
        shown, reviewers=() if "reviewers" in row.raw else None, seen=frozenset({levels.APPROVALS})
    )
