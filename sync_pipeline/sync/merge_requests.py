"""Merge requests and their reviews: what one or two attempts read together and store each for itself.

Belongs here: the list read by time, page by page; which merge requests are read again, and changes that do
not bump ``updated_at``. One list serves both job types. Each writes in transactions of its own, under its own
lease, and one of them may fail without the other.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import chain
from typing import Any

import psycopg

from sync_pipeline.core.errors import (
    AccessDenied,
    Cancelled,
    ClaimLost,
    LeaseLost,
    Permanent,
    RowUnreadable,
    SyncError,
)
from sync_pipeline.core.gitlab_rows import MergeRequestPage, MergeRequestRow, ReviewPage, ReviewSet
from sync_pipeline.core.model import (
    BEGINNING,
    DeferredFetch,
    Difference,
    Evidence,
    JobType,
    Page,
    Refusal,
    TimeWindow,
    Traffic,
    Trigger,
)
from sync_pipeline.core.windows import merged, overlap, span
from sync_pipeline.facts import comparison, merge_requests, quarantine, reviews, tombstones, unreadable
from sync_pipeline.facts.quarantine import QuarantineEntry
from sync_pipeline.ledger import watermarks
from sync_pipeline.policy.chunking import next_step
from sync_pipeline.policy.freshness import is_worth_an_event
from sync_pipeline.sources.gitlab.children import OWN_ERRORS, Refusals, ask_others
from sync_pipeline.sources.gitlab.fields import quarantined
from sync_pipeline.sources.gitlab.merge_requests import MergeRequestReader, unlisted_window
from sync_pipeline.sources.gitlab.project import ProjectInfo
from sync_pipeline.sources.gitlab.reviews import ReviewReader
from sync_pipeline.sources.gitlab.singles import SingleReader
from sync_pipeline.sources.gitlab.transport import Client
from sync_pipeline.sync.attempt import DEFERRED_PER_VISIT, Attempt, database_error
from sync_pipeline.sync.chunks import retry_on_lease_loss, store_in_chunks
from sync_pipeline.sync.compare_merge_requests import gone_ones, number_of
from sync_pipeline.sync.details import DetailReader
from sync_pipeline.sync.merge_request_facts import PROBE_EVERY, MergeRequestFacts, ReviewFacts
from sync_pipeline.sync.pages import open_batch
from sync_pipeline.sync.project import ProjectVisit
from sync_pipeline.sync.retry import RetryResult

_SCAN_EVERY = timedelta(days=1)
_MAX_PER_VISIT = 100
# Merge requests that are asked for a refused detail. Several, because some may be deleted.
_MAX_PROBED = 20
# Merge requests whose planned details a visit reads that a schedule started. More are for completion jobs.
_MAX_PLANNED = 50
# Merge requests that are read again under one lease.
_MAX_PER_LEASE = 20
# Rows updated within the next hour are listed anyway.
_SOON = timedelta(hours=1)
_NEVER = datetime(9000, 1, 1, tzinfo=UTC)
# Errors of one merge request, whose details stay deferred. Every other error is one of the job.
_STAYS_DEFERRED = OWN_ERRORS | {"no_object"}

_Pages = Mapping[JobType, Page[Any] | SyncError]
"""A page of the list and the page of its reviews, or the error that reading the reviews raised."""


_Listing = tuple[TimeWindow, Iterator[MergeRequestPage]]
"""A window with the pages of its list, of which the first one was read already."""


class MergeRequestWork:
    """Reads merge requests for attempts at ``merge_requests``, ``reviews`` or both of one repository."""

    def __init__(self, attempts: Sequence[Attempt], client: Client, visit: ProjectVisit) -> None:
        self._all = tuple(attempts)
        # Those that have not failed.
        self._attempts = list(attempts)
        self._client = client
        self._visit = visit
        first = attempts[0]
        self._database = first.database
        self._settings = first.settings
        self._repo = first.repo
        self._is_incremental = first.is_incremental
        self._only_planned = first.request.only_deferred
        self._is_recalled = False
        # Requests count for the first attempt, but for those of reviews that are read beside it.
        first.meter = self._other_traffic
        refusals = {job_type: Refusals(self._others) for job_type in JobType}
        self._reader = MergeRequestReader(
            client,
            visit.project_id,
            refusals=refusals[JobType.MERGE_REQUESTS],
        )
        review_reader = ReviewReader(client, visit.project_id, refusals=refusals[JobType.REVIEWS])
        self._details = DetailReader(
            attempts, client, visit, self._reader, review_reader, refusals, self._counted
        )
        self._facts: dict[JobType, MergeRequestFacts | ReviewFacts] = {
            one.job_type: ReviewFacts(one, visit, review_reader, refusals[JobType.REVIEWS])
            if one.job_type is JobType.REVIEWS
            else MergeRequestFacts(one, visit, self._reader, refusals[JobType.MERGE_REQUESTS])
            for one in attempts
        }

    def run(self) -> None:
        """Everything that the jobs ask for. See :class:`sync_pipeline.sync.attempt.Work`."""
        with self._visit.watched():
            begun = self._begin()
            self._attempts = [one for one in self._attempts if not self._visit.is_disabled(one)]
            try:
                self._read(begun)
            except Cancelled:
                raise
            except (SyncError, psycopg.Error) as failure:
                # An attempt that was done before keeps its result.
                error = database_error(failure)
                self._visit.note(error)
                for attempt in self._attempts:
                    attempt.error = error
            finally:
                for attempt in self._all:
                    attempt.notice = self._details.notice

    def _begin(self) -> _Listing | None:
        """Check the project; returns the list if its first page was requested before that. A page with rows
        of the registered project saves the request for the project, but for one each hour."""
        is_slow = any(attempt.claim.step is not None for attempt in self._attempts)
        recalled = self._visit.recall_project() if self._is_incremental and not is_slow else None
        if recalled is None or recalled.date is None:
            self._visit.check_project()
            return None
        looked_at = self._visit.looked_at
        since = min(window.since for window in self._windows(self._visit.readable(None)))

        def ends(date: datetime | None) -> datetime:
            self._visit.project = replace(recalled, date=date)
            return self._visit.readable(None).until

        pages = self._reader.listed(TimeWindow(since, _NEVER), ends)
        try:
            first = next(pages)
        except Permanent as error:
            if isinstance(error, AccessDenied) and error.is_of_the_token:
                raise
            # The project tells why.
            self._visit.check_project()
            return None
        self._is_recalled = self._shows(first, recalled)
        if not self._is_recalled:
            self._visit.check_project()
            if first.date is None or first.date < recalled.date:
                # Somebody set the server's clock back.
                return None
            # The list shows the merge requests as they were then.
            self._visit.looked_at = min(looked_at, self._visit.looked_at)
            self._visit.project = replace(self._visit.project, date=first.date)
        return TimeWindow(since, max(since, self._visit.readable(None).until)), chain([first], pages)

    def _shows(self, page: MergeRequestPage, info: ProjectInfo) -> bool:
        """Whether ``page`` has rows of the project ``info`` only, some of which are stored, and the server's
        clock was not set back. The project also tells whether the token sees internal notes."""
        is_late = page.date is None or info.date is None or page.date < info.date
        if is_late or not all(_is_of(info, row) for row in page.rows):
            return False
        with self._database.connection() as conn:
            ids = {row.iid: row.mr_id for row in page.rows}
            is_same = bool(merge_requests.stored_heads(conn, self._repo.repo_id, ids))
            return is_same and not reviews.any_internal(conn, self._repo.repo_id, ids)

    def _read(self, begun: _Listing | None) -> None:
        readable = self._visit.readable(None)
        self._load_refusals(readable)
        if self._only_planned:
            self._read_planned(readable)
            return
        if self._is_incremental:
            self._fetch_deferred(readable)
        found = ((one, self._in_steps(one)) for one in self._windows(readable)) if begun is None else [begun]
        for window, pages in found:
            self._store_pages(pages, window, covers=True)
        if self._is_incremental:
            self._read_future(readable)
            self._read_overdue(readable)
            self._read_new_addresses(readable)
            self._read_readable_again(readable)
        for attempt in list(self._attempts):
            try:
                activity_at = readable.until if self._is_recalled else None
                self._visit.record(attempt, complete=True, activity_at=activity_at)
            except LeaseLost as error:
                self._give_up(attempt, error)
        # Behind the record of the visit, which a failure here does not concern.
        self._read_planned(readable)

    def _windows(self, readable: TimeWindow) -> Iterable[TimeWindow]:
        """The windows to read. Live syncing reads from the watermark on, with the overlap. Other jobs read
        the missing parts of the window, or all of it in a reread.
        """
        again = timedelta(seconds=self._settings.gitlab.overlap_seconds)
        found: list[TimeWindow] = []
        with self._database.connection() as conn:
            for attempt in self._attempts:
                window = attempt.claim.window
                if isinstance(window, TimeWindow):
                    part = overlap(window, readable)
                    attempt.done.beyond_head = part is None
                    if part is None:
                        continue
                    if attempt.rereads:
                        found.append(part)
                    else:
                        missing = watermarks.missing(conn, self._repo.repo_id, attempt.job_type, part)
                        found += [gap for gap in missing if isinstance(gap, TimeWindow)]
                    continue
                before = self._visit.before[attempt.job_type]
                since = before.origin if before.watermark is None else before.watermark
                assert isinstance(since, datetime)
                if before.verified_at is not None:
                    # A server whose clock was set back has not passed the watermark again yet.
                    since = min(since, readable.until - (self._visit.looked_at - before.verified_at))
                since = max(BEGINNING, min(since, readable.until) - again)
                found.append(TimeWindow(since, readable.until))
        return merged(found)

    # -- the list -----------------------------------------------------------------------------------------

    def _in_steps(self, window: TimeWindow) -> Iterator[MergeRequestPage]:
        """The pages of ``window``. A server in trouble is asked step by step: it lists what was updated in an
        hour sooner than what was updated in years."""
        first = min((a.claim.step for a in self._attempts if a.claim.step is not None), default=None)
        if first is None:
            yield from self._reader.listed(window)
            return
        longest = timedelta(seconds=self._settings.degradation.max_forward_window_seconds)
        step, since = first, window.since
        while since < window.until:
            until = since + min(step, window.until - since)
            rows = 0
            for page in self._reader.listed(TimeWindow(since, until)):
                rows += len(page.rows)
                yield page
            since = until
            step = next_step(step, rows, page=self._client.per_page, first=first, longest=longest)

    def _store_pages(
        self,
        pages: Iterator[MergeRequestPage],
        window: TimeWindow,
        attempts: Sequence[Attempt] | None = None,
        *,
        covers: bool = False,
        fully: bool = False,
    ) -> dict[int, ReviewSet | None]:
        """Store pages of merge requests for ``attempts`` (None: for all). Returns which came, with their
        reviews.

        With ``covers`` coverage of ``window`` grows page by page, so an early end loses nothing. With
        ``fully`` reviews are read that are known already."""
        active = list(self._attempts if attempts is None else attempts)
        came: dict[int, ReviewSet | None] = {}
        found = self._with_reviews(pages, window, active, covers=covers, fully=fully)
        store_in_chunks(active, found, partial(self._store, active, came), rows=self._settings.chunks.rows)
        return came

    def _with_reviews(
        self,
        pages: Iterator[MergeRequestPage],
        window: TimeWindow,
        attempts: Sequence[Attempt],
        *,
        covers: bool = False,
        fully: bool = False,
        children: bool = False,
    ) -> Iterator[_Pages]:
        for listed in pages:
            covered = listed.covered if covers else None
            page = replace(listed, window=window, covered=covered)
            job_types = [attempt.job_type for attempt in attempts]
            for part, reviewed in self._details.read(page, job_types, fully=fully, children=children):
                yield _by_job_type(part, reviewed, by_number=listed.window is None)

    def _store(self, attempts: list[Attempt], came: dict[int, ReviewSet | None], pages: _Pages) -> int:
        """Store a page for each of ``attempts``; one that fails is taken out. Returns the number of rows."""
        listed = pages[JobType.MERGE_REQUESTS]
        assert isinstance(listed, Page)
        for attempt in list(attempts):
            try:
                page = pages[attempt.job_type]
                if isinstance(page, SyncError):
                    raise page
                if self._is_worth_writing(attempt, listed):
                    self._facts[attempt.job_type].write(page)
            except Cancelled:
                raise
            except (SyncError, psycopg.Error) as failure:
                error = database_error(failure)
                if isinstance(error, LeaseLost) and not isinstance(error, ClaimLost):
                    raise
                self._give_up(attempt, error)
                attempts.remove(attempt)
        came.update({row.iid: None for row in listed.rows})
        reviewed = pages.get(JobType.REVIEWS)
        came.update({one.mr_iid: one for one in reviewed.rows} if isinstance(reviewed, Page) else {})
        return len(listed.rows)

    def _is_worth_writing(self, attempt: Attempt, page: MergeRequestPage) -> bool:
        """False for a page without rows, unless what it covers is news."""
        if page.rows or page.quarantined or page.deferred:
            return True
        if not isinstance(page.covered, TimeWindow):
            return False
        readable = self._visit.readable(None)
        if not self._is_incremental or page.covered.until != readable.until:
            return True
        changed = attempt.done.counts.changed > 0
        return changed or is_worth_an_event(self._visit.before[attempt.job_type].watermark, readable.until)

    def _give_up(self, attempt: Attempt, error: SyncError) -> None:
        """One job type fails; the other one goes on. The last one fails the work."""
        if len(self._attempts) == 1:
            raise error
        self._visit.note(error)
        attempt.error = error
        self._attempts.remove(attempt)

    # -- details that the server refuses for every merge request ---------------------------------------------

    def _others(self, iids: Collection[int]) -> list[int]:
        with self._database.connection() as conn:
            return comparison.other_merge_requests(conn, self._repo.repo_id, list(iids), _MAX_PROBED)

    def _load_refusals(self, readable: TimeWindow) -> None:
        """Details that were refused before are not requested. Live syncing tests once a day whether they
        still are."""
        for attempt in self._attempts:
            refusals = self._facts[attempt.job_type].refusals
            for one in self._known_refusals(attempt):
                if one.readable_at is not None:
                    refusals.lift(one.detail)
                    continue
                refusals.load([one.detail])
                if one.is_due and self._is_incremental:
                    with self._counted(attempt.job_type):
                        self._probe(attempt, one.detail, readable)

    def _known_refusals(self, attempt: Attempt) -> Sequence[unreadable.Unreadable]:
        with self._database.connection() as conn:
            found = unreadable.known(conn, self._repo.repo_id, attempt.job_type, self._visit.fingerprint)
        return list(found.values())

    def _probe(self, attempt: Attempt, detail: str, readable: TimeWindow) -> None:
        """Ask for one detail of a few merge requests."""
        facts = self._facts[attempt.job_type]
        others = self._others(())
        # Without any merge request nothing lacks the detail.
        is_readable = not others
        refusal: Refusal | None = None
        try:
            if others:
                is_readable, refusal = ask_others(facts.reader.ask, others, detail)
        except SyncError as error:
            if error.code not in OWN_ERRORS:
                raise
        asset: dict[str, Any] = {"repo_id": self._repo.repo_id, "job_type": attempt.job_type}
        with attempt.lease(), open_batch(attempt, Page(readable, ())) as batch:
            if is_readable:
                unreadable.readable(batch.conn, **asset, detail=detail)
            elif refusal is not None:
                facts.refuse(batch, refusal)
            else:
                unreadable.postpone(
                    batch.conn,
                    **asset,
                    detail=detail,
                    fingerprint=self._visit.fingerprint,
                    pause=PROBE_EVERY,
                )
        if is_readable:
            facts.refusals.lift(detail)

    def _read_readable_again(self, readable: TimeWindow) -> None:
        """Read some of the merge requests that lack a detail which can be read again. The next visits read
        the rest, because none may delay live syncing for long."""
        for attempt in list(self._attempts):
            left = _MAX_PER_VISIT
            for one in self._known_refusals(attempt):
                if one.readable_at is not None and left and attempt in self._attempts:
                    left -= self._read_lacking(attempt, one.detail, one.readable_at, left, readable)

    def _read_lacking(
        self, attempt: Attempt, detail: str, since: datetime, limit: int, readable: TimeWindow
    ) -> int:
        """Read at most ``limit`` merge requests that lack the detail, and were not read ``since``; returns
        how many."""
        asset = (self._repo.repo_id, attempt.job_type)
        refusals = self._facts[attempt.job_type].refusals
        if detail in refusals:
            return 0
        with self._database.connection() as conn:
            # A run that knew the detail as refused may have stored some without it since then.
            iids = unreadable.without(conn, *asset, detail, since, limit, again=True)
        if iids:
            self._read_some(iids, readable, [attempt])
        if attempt in self._attempts and detail not in refusals:
            with attempt.lease(), open_batch(attempt, Page(readable, ())) as batch:
                unreadable.mark_asked(batch.conn, *asset, iids)
                if not unreadable.without(batch.conn, *asset, detail, since, 1):
                    unreadable.delete(batch.conn, *asset, detail)
        return len(iids)

    # -- changes that do not bump updated_at -----------------------------------------------------------------

    def _read_some(
        self, iids: Sequence[int], readable: TimeWindow, attempts: Sequence[Attempt]
    ) -> dict[int, ReviewSet | None]:
        """Read single merge requests as they are now, with their whole reviews; returns those that came."""
        pages = self._reader.listed_some(iids)
        return self._store_pages(pages, readable, attempts, fully=True)

    def _read_future(self, readable: TimeWindow) -> None:
        """Once a day, read merge requests whose time of update the server's clock has not reached, such as
        imported ones: no window ends behind them."""
        before = [self._visit.before[attempt.job_type].watermark for attempt in self._attempts]
        if all(isinstance(one, datetime) and one.date() == readable.until.date() for one in before):
            return
        later = TimeWindow(readable.until + _SOON, _NEVER)
        self._store_pages(self._reader.listed(later), readable)

    def _read_overdue(self, readable: TimeWindow) -> None:
        """Read merge requests whose branch moved without an update, and open ones that were not read for a
        day.

        One that does not come waits for the next day, so that it does not delay the others. It was deleted,
        or the server shows an older state.
        """
        overdue = {attempt.job_type: self._overdue(attempt) for attempt in self._attempts}
        moved: list[int] = []
        if JobType.MERGE_REQUESTS in overdue:
            with self._database.connection() as conn:
                moved = merge_requests.unread_heads(
                    conn, self._repo.repo_id, self._visit.project_id, self._repo.instance
                )
        iids = set(moved).union(*overdue.values())
        if not iids:
            return
        self._read_some(sorted(iids), readable, self._attempts)
        for attempt in list(self._attempts):
            self._postpone(attempt, sorted(self._overdue(attempt) & iids), readable)

    def _overdue(self, attempt: Attempt) -> set[int]:
        """Open merge requests that were not read for a day, if scans are on. Also those with internal notes
        that only the token of this visit sees.
        """
        found: set[int] = set()
        with self._database.connection() as conn:
            if self._settings.reconcile.enabled:
                facts = self._facts[attempt.job_type]
                found.update(facts.not_read_for(conn, _SCAN_EVERY, _MAX_PER_VISIT))
            if attempt.job_type is JobType.REVIEWS and self._visit.sees_internal_notes():
                found.update(reviews.hidden_before(conn, self._repo.repo_id, _MAX_PER_VISIT))
        return found

    def _postpone(self, attempt: Attempt, iids: Sequence[int], readable: TimeWindow) -> None:
        if iids:
            with attempt.lease(), open_batch(attempt, Page(readable, ())) as batch:
                self._facts[attempt.job_type].postpone(batch, iids)

    def _read_new_addresses(self, readable: TimeWindow) -> None:
        """After the project moved, read some of the merge requests whose addresses have the old path: the
        move updates none of them."""
        attempt = next((one for one in self._attempts if one.job_type is JobType.MERGE_REQUESTS), None)
        if attempt is None:
            return
        with self._database.connection() as conn:
            iids = merge_requests.old_addresses(conn, self._repo.repo_id, _MAX_PER_VISIT)
        came = self._read_some(iids, readable, [attempt]) if iids else {}
        if attempt in self._attempts:
            self._postpone(attempt, sorted(set(iids) - came.keys()), readable)

    # -- planned details -------------------------------------------------------------------------------------

    def _read_planned(self, readable: TimeWindow) -> None:
        """Read details that were planned: all in the window of a person's job, else as many as one visit may
        take."""
        by_itself = self._all[0].request.trigger in (Trigger.SENSOR, Trigger.WORKER, Trigger.REGISTRATION)
        limit = _MAX_PLANNED if by_itself and not self._only_planned else None
        active = list(self._attempts)
        window = self._all[0].claim.window
        pages = self._details.read_planned(
            [attempt.job_type for attempt in active],
            readable,
            limit=limit,
            waiting=not by_itself,
            updated=window if isinstance(window, TimeWindow) and not by_itself else None,
            must_end=self._all[0].must_make_room,
        )
        found = (_by_job_type(*one, by_number=True) for one in pages)
        # Live syncing of the project goes on while a page of hundreds of requests is read.
        store_in_chunks(active, found, partial(self._store, active, {}), rows=1)

    # -- deferred fetches ------------------------------------------------------------------------------------

    def _fetch_deferred(self, readable: TimeWindow) -> None:
        """Try again to read the details that could not be read at earlier visits."""
        for attempt in list(self._attempts):
            with self._database.connection() as conn:
                due = quarantine.due(conn, self._repo.repo_id, attempt.job_type, DEFERRED_PER_VISIT)
            details: dict[int, list[str]] = {}
            for item in due:
                if (window := unlisted_window(item.natural_key)) is None:
                    details.setdefault(int(item.natural_key), []).append(item.detail)
                elif attempt in self._attempts:
                    self._list_again(attempt, item.natural_key, window, readable)
            for iid, names in details.items():
                if attempt in self._attempts:
                    self._fetch_details(attempt, iid, names, readable)

    def _list_again(self, attempt: Attempt, key: str, window: TimeWindow, readable: TimeWindow) -> None:
        """Try again to list what no page could be given with, and of which only the time is known."""
        unlisted: set[str] = set()
        pages = _noting_quarantined(self._reader.listed(window), unlisted)
        self._store_pages(pages, window, [attempt])
        if key not in unlisted and attempt in self._attempts:
            with attempt.lease(), open_batch(attempt, Page(readable, ())) as batch:
                # Rows that failed again are deferred under a separate key.
                merge_requests.delete_unlisted(batch.conn, self._repo.repo_id, attempt.job_type, key)

    def _fetch_details(
        self, attempt: Attempt, iid: int, details: Sequence[str], readable: TimeWindow
    ) -> None:
        is_gone = False
        if attempt.job_type is JobType.REVIEWS:
            if self._read_some([iid], readable, [attempt]) or attempt not in self._attempts:
                return
            is_gone, error = self._reason_not_listed(iid)
            page: Page[Any] = Page(readable, (), deferred=_deferred(iid, dict.fromkeys(details, error)))
        else:
            page, is_gone = self._detailed(iid, details)
        with attempt.lease():
            self._facts[attempt.job_type].write(replace(page, window=readable))
            if is_gone:
                with open_batch(attempt, Page(readable, ())) as batch:
                    quarantine.settle_unstored(
                        batch.conn,
                        repo_id=self._repo.repo_id,
                        job_type=attempt.job_type,
                        iid=iid,
                        confirmations=self._settings.reconcile.deletion_confirmations,
                        time=timedelta(seconds=self._settings.reconcile.deletion_after_seconds),
                    )

    def _reason_not_listed(self, iid: int) -> tuple[bool, str]:
        """Whether a merge request that did not come is gone, and what is recorded of it."""
        try:
            if SingleReader(self._client, self._visit.project_id).is_gone(iid):
                return True, "the server no longer has the merge request"
        except SyncError as error:
            if error.code not in _STAYS_DEFERRED:
                raise
            return False, str(error)
        return False, "the server does not list it"

    def _detailed(self, iid: int, details: Sequence[str]) -> tuple[MergeRequestPage, bool]:
        """A merge request with its versions and commits, and whether it is gone. Details that do not come
        stay deferred, whatever the reason: they wait longer then."""
        page: MergeRequestPage = Page(None, ())
        errors: dict[str, str] = {}
        is_gone = False
        try:
            row, unread = self._reader.settle(iid)
            page = Page(None, (row,))
            errors = {"versions": "no versions"} if row.versions is None else {}
            errors |= {"commits": "no commits"} if row.commits is None else {}
            errors |= {"detail": "no diff_refs"} if row.versions is None and row.base_sha is None else {}
            errors |= {one.detail: one.error for one in unread}
        except RowUnreadable as error:
            page = replace(page, quarantined=(quarantined(str(iid), error),))
            errors = dict.fromkeys(details, str(error))
        except SyncError as error:
            if error.code not in _STAYS_DEFERRED:
                raise
            is_gone = error.code == "no_object"
            errors = dict.fromkeys(details, str(error))
        refused = self._facts[JobType.MERGE_REQUESTS].refusals
        left = {detail: errors[detail] for detail in details if detail in errors and detail not in refused}
        return replace(page, deferred=_deferred(iid, left), evidence=_evidence(page)), is_gone

    # -- quarantine ---------------------------------------------------------------------------------------

    def retry(self, entries: Sequence[QuarantineEntry]) -> RetryResult:
        """Ask again for the merge requests of ``entries``, with all that belongs to them. See
        :class:`sync_pipeline.sync.retry.Retries`.

        A merge request is asked for by its number; one that came without it is looked for where it was
        met."""
        result = RetryResult()
        (attempt,) = self._attempts
        with self._visit.watched():
            self._visit.check_project()
            if self._visit.is_disabled(attempt):
                return result
            readable = self._visit.readable(None)
            self._load_refusals(readable)
            numbered = {entry.natural_key: iid for entry in entries if (iid := _iid(entry)) is not None}
            came = self._read_some(sorted(set(numbered.values())), readable, [attempt]) if numbered else {}
            for key, iid in numbered.items():
                review = came.get(iid)
                if iid not in came:
                    result.unread[key] = (
                        "the server does not list the merge request, or not in a form that can be stored"
                    )
                elif review is not None and _is_absent(key, review):
                    result.absent.add(key)
            nameless: dict[TimeWindow, set[str]] = {}
            for entry in entries:
                window = unlisted_window(entry.natural_key) or entry.window
                if entry.natural_key not in numbered and isinstance(window, TimeWindow):
                    nameless.setdefault(window, set()).add(entry.natural_key)
            for window, keys in nameless.items():
                if (part := overlap(window, readable)) is not None:
                    self._store_pages(self._reader.listed(part), part, [attempt])
                    result.absent |= keys
        return result

    # -- differences ---------------------------------------------------------------------------------------

    def repair_differences(self, found: Sequence[Difference]) -> None:
        """Read again the merge requests that ``found`` are of, with all that belongs to them. See
        :class:`sync_pipeline.sync.reconcile.Repairing`."""
        (attempt,) = self._attempts
        iids = sorted({number_of(one) for one in found})
        with self._visit.watched():
            self._check_project()
            self._load_refusals(self._visit.readable(None))
            self._facts[attempt.job_type].overriding = {one.natural_key for one in found}
            for first in range(0, len(iids), _MAX_PER_LEASE):
                retry_on_lease_loss(partial(self._overwrite, attempt, iids[first : first + _MAX_PER_LEASE]))

    def _overwrite(self, attempt: Attempt, iids: Sequence[int]) -> None:
        """Read under the lease: these rows win, and must not be older than what others store."""
        pages = self._reader.listed_some(iids)
        readable = self._visit.readable(None)
        with attempt.lease():
            for found in self._with_reviews(pages, readable, [attempt], fully=True, children=True):
                self._store([attempt], {}, found)

    def gone(self, found: Sequence[Difference]) -> set[str]:
        """See :class:`sync_pipeline.sync.reconcile.Repairing`."""
        with self._visit.watched():
            self._check_project()
            singles = SingleReader(self._client, self._visit.project_id)
            with self._database.connection() as conn:
                internal = tombstones.internal_notes(conn, self._repo.repo_id, [d.natural_key for d in found])
            hidden = set() if self._visit.sees_internal_notes() else internal
            return gone_ones(singles, [one for one in found if one.natural_key not in hidden])

    def _check_project(self) -> None:
        self._visit.check_project()
        for attempt in self._attempts:
            # Raises: a window of its own waits until it is switched on.
            self._visit.is_disabled(attempt)

    # -- requests ------------------------------------------------------------------------------------------

    def _other_traffic(self) -> Traffic:
        """The traffic of the first attempt: all requests that were sent for no other one."""
        return self._client.traffic - sum((one.done.traffic for one in self._all[1:]), Traffic())

    @contextmanager
    def _counted(self, job_type: JobType) -> Iterator[None]:
        """Attribute the requests of this block to the attempt at ``job_type``."""
        (attempt,) = (one for one in self._all if one.job_type is job_type)
        before = self._client.traffic
        try:
            yield
        finally:
            if attempt is not self._all[0]:
                attempt.done.traffic += self._client.traffic - before


def _by_job_type(
    listed: MergeRequestPage, reviewed: ReviewPage | SyncError | None, *, by_number: bool
) -> _Pages:
    evidence = _evidence(replace(listed, window=None) if by_number else listed)
    found: dict[JobType, Page[Any] | SyncError] = {JobType.MERGE_REQUESTS: replace(listed, evidence=evidence)}
    if reviewed is not None:
        found[JobType.REVIEWS] = (
            replace(reviewed, evidence=evidence) if isinstance(reviewed, Page) else reviewed
        )
    return found


def _noting_quarantined(pages: Iterator[MergeRequestPage], keys: set[str]) -> Iterator[MergeRequestPage]:
    """``pages``; the keys of the rows that they quarantine are added to ``keys``."""
    for page in pages:
        keys.update(row.natural_key for row in page.quarantined)
        yield page


def _deferred(iid: int, errors: Mapping[str, str]) -> tuple[DeferredFetch, ...]:
    return tuple(DeferredFetch(str(iid), detail, error) for detail, error in errors.items())


def _iid(entry: QuarantineEntry) -> int | None:
    """The number of the merge request that an entry is about."""
    first = entry.natural_key.partition(":")[0]
    # ASCII digits only: Python takes others for numbers as well.
    return int(first) if re.fullmatch(r"[0-9]{1,18}", first) else None


def _is_absent(key: str, one: ReviewSet) -> bool:
    """Whether the row that quarantine calls ``key`` is no longer part of the review of its merge request."""
    event_id = key.partition(":")[2]
    is_there = any(event.event_id == event_id for event in one.events)
    return not is_there and event_id.partition(":")[0] in {str(origin) for origin in one.whole}


def _evidence(page: MergeRequestPage) -> Evidence:
    """Where a page was read. A replay reads the list between the times that the page covers. A merge request
    that was requested by its number is replayed from where its last update puts it in that list."""
    times = [row.updated_at for row in page.rows]
    if page.window is None:
        return Evidence("merge requests by number", merged(one for at in times for one in span([at])))
    covered = (page.covered,) if isinstance(page.covered, TimeWindow) else span(times)
    return Evidence("page of the list by time of update", covered)


def _is_of(info: ProjectInfo, row: MergeRequestRow) -> bool:
    """Whether ``row`` is of this project, at its path as far as the server shows one."""
    address = row.web_url or ""
    is_there = "/-/" not in address or f"/{info.path}/-/" in address
    return row.project_id == info.project_id and is_there
