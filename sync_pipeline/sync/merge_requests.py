"""Merge requests and their reviews: what one or two attempts read together and store each for itself.

Belongs here: the list read by time, page by page; which children are asked for again; what no time of update
reveals. One list serves both job types; each writes in transactions of its own, under its own lease, and one
of them may fail without the other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import psycopg

from sync_pipeline.errors import Cancelled, ClaimLost, LeaseLost, RowUnreadable, SyncError
from sync_pipeline.gitlab_rows import MergeRequestBatch, MergeRequestRow, ReviewSet
from sync_pipeline.model import (
    BEGINNING,
    Counts,
    DeferredFetch,
    Difference,
    Evidence,
    JobType,
    QuarantinedRow,
    Refusal,
    TimeWindow,
    Traffic,
)
from sync_pipeline.policy.chunking import next_step
from sync_pipeline.policy.freshness import is_worth_an_event
from sync_pipeline.policy.windows import merged, overlap, span
from sync_pipeline.sources.gitlab.children import OWN_ERRORS, Refusals, ask_others
from sync_pipeline.sources.gitlab.fields import payload, quarantined
from sync_pipeline.sources.gitlab.merge_requests import (
    LISTED,
    Head,
    MergeRequestReader,
    owed_of_unlisted,
    unlisted_window,
)
from sync_pipeline.sources.gitlab.page_bisect import UNLISTED
from sync_pipeline.sources.gitlab.reviews import ReviewReader
from sync_pipeline.sources.gitlab.singles import SingleReader
from sync_pipeline.sources.gitlab.transport import Client
from sync_pipeline.store import (
    comparison,
    merge_requests,
    quarantine,
    reviews,
    tombstones,
    unreadable,
    watermarks,
)
from sync_pipeline.store.database import Connection
from sync_pipeline.store.leases import Lease
from sync_pipeline.store.quarantine import QuarantineEntry
from sync_pipeline.sync.attempt import OBLIGATIONS_PER_RUN, Attempt, database_error
from sync_pipeline.sync.chunks import retry_on_lease_loss, store_in_chunks
from sync_pipeline.sync.compare_merge_requests import gone_ones, number_of
from sync_pipeline.sync.project import ProjectVisit
from sync_pipeline.sync.retry import RetryResult

_SWEEP_EVERY = timedelta(days=1)
_SWEPT_PER_VISIT = 100
# How often the server is asked for what it refuses for every merge request, and of how many at the most: some
# of them may be gone.
_PROBE_EVERY = timedelta(days=1)
_PROBED = 20
# Merge requests that are read again under one lease.
_HEALED_AT_ONCE = 20
# What is updated within the next hour comes by itself.
_AHEAD = timedelta(hours=1)
_FAR = datetime(9000, 1, 1, tzinfo=UTC)
# Errors of one merge request, whose detail stays owed; everything else is an error of the job.
_STILL_OWED = OWN_ERRORS | {"no_object"}

_Note = Callable[[Connection, int, int, Sequence[int]], None]


@dataclass(frozen=True, slots=True)
class _Page:
    """A page of merge requests with the reviews that were read for it, or why they could not be."""

    batch: MergeRequestBatch
    sets: Sequence[ReviewSet] = ()
    error: SyncError | None = None


class MergeRequestWork:
    """Reads merge requests for attempts at ``merge_requests``, ``reviews`` or both of one repository."""

    def __init__(self, attempts: Sequence[Attempt], client: Client, visit: ProjectVisit) -> None:
        self._all = tuple(attempts)
        self._attempts = list(attempts)
        self._client = client
        self._visit = visit
        first = attempts[0]
        self._database = first.database
        self._settings = first.settings
        self._repo = first.repo
        self._is_incremental = first.is_incremental
        for attempt in attempts:
            attempt.meter = partial(self._sent, attempt)
        self._rereads = any(attempt.rereads for attempt in attempts)
        parallel = self._settings.gitlab.parallel
        # What the server refuses for every merge request, for each of the two.
        self._refusals = {
            job_type: Refusals(self._others) for job_type in (JobType.MERGE_REQUESTS, JobType.REVIEWS)
        }
        self._reader = MergeRequestReader(
            client,
            visit.project_id,
            parallel=parallel,
            children=any(a.job_type is JobType.MERGE_REQUESTS for a in attempts),
            refusals=self._refusals[JobType.MERGE_REQUESTS],
        )
        self._review_reader = ReviewReader(
            client, visit.project_id, parallel=parallel, refusals=self._refusals[JobType.REVIEWS]
        )
        # Keys of rows whose next copy wins over what is stored.
        self._distrusted: set[str] = set()

    def run(self) -> None:
        """Everything that the jobs ask for. See :class:`sync_pipeline.sync.attempt.Work`."""
        with self._counted(self._attempts[0]), self._visit.watched():
            self._visit.look()
            self._attempts = [a for a in self._attempts if not self._visit.is_disabled(a)]
            try:
                self._read()
            except Cancelled:
                raise
            except (SyncError, psycopg.Error) as failure:
                # Of those only that were still reading.
                error = database_error(failure)
                self._visit.note(error)
                for attempt in self._attempts:
                    attempt.error = error

    def _read(self) -> None:
        readable = self._visit.readable(None)
        self._load_refusals(readable)
        if self._is_incremental:
            self._settle_obligations(readable)
        for window in self._windows(readable):
            self._read_window(window)
        if self._is_incremental:
            self._look_ahead(readable)
            self._look_behind(readable)
            self._read_new_addresses(readable)
            self._read_what_was_refused(readable)
        for attempt in list(self._attempts):
            try:
                self._visit.record(attempt, complete=True)
            except LeaseLost as error:
                self._give_up(attempt, error)

    def _windows(self, readable: TimeWindow) -> Iterable[TimeWindow]:
        """What is to be read: for live syncing from the watermark on, with the overlap; else what is missing
        of the window, or all of it where it is read again."""
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

    def _read_window(self, window: TimeWindow) -> None:
        """Page by page, oldest update first. Coverage grows with each page, so that whatever ends this early
        loses nothing."""
        store_in_chunks(
            self._pages(self._in_steps(window)),
            self._leases,
            lambda leases, page: self._store(leases, page, window),
            self._settings.chunks.rows,
            self._attempts[:],
        )

    def _in_steps(self, window: TimeWindow) -> Iterator[MergeRequestBatch]:
        """The batches of ``window``; of a server in trouble a step after the other is asked for, because it
        finds what was updated in an hour sooner than what was updated in years."""
        first = min((a.claim.step for a in self._attempts if a.claim.step is not None), default=None)
        if first is None:
            yield from self._reader.read(window, self._known)
            return
        longest = timedelta(seconds=self._settings.degradation.max_forward_window_seconds)
        step, since = first, window.since
        while since < window.until:
            until = since + min(step, window.until - since)
            rows = 0
            for batch in self._reader.read(TimeWindow(since, until), self._known):
                rows += len(batch.rows)
                yield batch
            since = until
            step = next_step(step, rows, page=self._client.per_page, first=first, longest=longest)

    def _pages(self, batches: Iterator[MergeRequestBatch], *, fully: bool = False) -> Iterator[_Page]:
        """The pages with their reviews; with ``fully`` also of those whose review was read already."""
        for batch in batches:
            sets: Sequence[ReviewSet] = ()
            error: SyncError | None = None
            for attempt in list(self._attempts):
                if attempt.job_type is JobType.REVIEWS:
                    rows = batch.rows if fully else self._unread(batch.rows)
                    try:
                        with self._counted(attempt):
                            sets = self._review_reader.read(rows)
                    except Cancelled:
                        raise
                    except SyncError as failure:
                        error = failure
            yield _Page(batch, sets, error)

    def _store(self, leases: Mapping[JobType, Lease], page: _Page, window: TimeWindow) -> int:
        """Store a page for each attempt that is left; returns how many rows it had."""
        batch = page.batch
        covered = () if batch.covered is None else (batch.covered,)
        last = batch.covered is not None and batch.covered.until == window.until

        def write(attempt: Attempt) -> None:
            nothing = not batch.rows and not batch.quarantined and self._is_incremental
            if nothing and last and not self._is_news(attempt, window.until):
                return
            self._write(attempt, leases[attempt.job_type], page, window, covered)

        self._each(self._attempts, page, write)
        return len(batch.rows)

    def _each(self, attempts: Iterable[Attempt], page: _Page, write: Callable[[Attempt], None]) -> None:
        """Write a page for each of ``attempts`` that is still at work; what fails for one of them ends that
        one."""
        for attempt in [one for one in attempts if one in self._attempts]:
            try:
                if attempt.job_type is JobType.REVIEWS and page.error is not None:
                    raise page.error
                write(attempt)
            except Cancelled:
                raise
            except LeaseLost as error:
                if not isinstance(error, ClaimLost):
                    raise
                self._give_up(attempt, error)
            except SyncError as error:
                self._give_up(attempt, error)
            except psycopg.Error as error:
                self._give_up(attempt, database_error(error))

    def _is_news(self, attempt: Attempt, until: datetime) -> bool:
        changed = attempt.done.counts.changed > 0
        return changed or is_worth_an_event(self._visit.before[attempt.job_type].watermark, until)

    def _give_up(self, attempt: Attempt, error: SyncError) -> None:
        """One job type fails; the other one goes on. The last one fails the work."""
        if len(self._attempts) == 1:
            raise error
        self._visit.note(error)
        attempt.error = error
        self._attempts.remove(attempt)

    def _write(
        self,
        attempt: Attempt,
        lease: Lease,
        page: _Page,
        window: TimeWindow,
        covered: Sequence[TimeWindow] = (),
    ) -> None:
        repo_id, batch, sets = attempt.repo.repo_id, page.batch, page.sets
        refusals = self._refusals[attempt.job_type].unsaved
        if attempt.job_type is JobType.REVIEWS:
            updated_at = {row.iid: row.updated_at for row in batch.rows}

            def store_sets(conn: Connection, batch_id: int, some: Sequence[ReviewSet]) -> Counts:
                return reviews.store_reviews(
                    conn,
                    repo_id=repo_id,
                    batch_id=batch_id,
                    sets=[(one, updated_at[one.mr_iid]) for one in some],
                    server_now=batch.date,
                    begun=self._visit.looked_at,
                    distrusted=self._distrusted,
                    sees_internal=self._visit.sees_internal_notes(),
                )

            attempt.write_rows(
                lease,
                sets,
                store_sets,
                key=lambda one: str(one.mr_iid),
                payload=lambda one: payload([dict(event.raw) for event in one.events]),
                window=window,
                evidence=_evidence(batch),
                covered=covered,
                # Of a merge request that cannot be read the review is not read either.
                quarantined=[*batch.quarantined, *(entry for one in sets for entry in one.quarantined)],
                obligations=[
                    *(owed for one in sets for owed in one.obligations),
                    *(owed_of_unlisted(row, "notes") for row in batch.quarantined if row.reason == UNLISTED),
                ],
                also=self._save_refusals(attempt, refusals),
            )
            self._refusals[attempt.job_type].saved(refusals)
            return

        def store_rows(conn: Connection, batch_id: int, some: Sequence[MergeRequestRow]) -> Counts:
            return merge_requests.store_merge_requests(
                conn,
                repo_id=repo_id,
                batch_id=batch_id,
                rows=some,
                owed=batch.obligations,
                server_now=batch.date,
                begun=self._visit.looked_at,
                distrusted=self._distrusted,
            )

        attempt.write_rows(
            lease,
            batch.rows,
            store_rows,
            key=lambda row: str(row.iid),
            payload=lambda row: payload(row.raw),
            window=window,
            evidence=_evidence(batch),
            covered=covered,
            quarantined=batch.quarantined,
            obligations=batch.obligations,
            also=self._save_refusals(attempt, refusals),
        )
        self._refusals[attempt.job_type].saved(refusals)

    def _known(self, ids: Mapping[int, int]) -> Mapping[int, Head]:
        """The heads of those whose versions and commits need not be read again."""
        if self._rereads:
            return {}
        with self._database.connection() as conn:
            return merge_requests.known_heads(conn, self._repo.repo_id, ids, ids.values())

    def _unread(self, rows: Sequence[MergeRequestRow]) -> list[MergeRequestRow]:
        """Those whose review was not read since they were updated, or got another head."""
        if self._rereads or not rows:
            return list(rows)
        with self._database.connection() as conn:
            heads = {row.iid: row.head_sha for row in rows}
            ids = {row.iid: row.mr_id for row in rows}
            known = reviews.reviews_as_of(
                conn, self._repo.repo_id, heads, ids, self._refusals[JobType.REVIEWS].refused
            )
        return [row for row in rows if known.get(row.iid) != row.updated_at]

    # -- what the server refuses for all of them -----------------------------------------------------------

    def _others(self, iids: Collection[int]) -> list[int]:
        with self._database.connection() as conn:
            return comparison.other_merge_requests(conn, self._repo.repo_id, list(iids), _PROBED)

    def _ask(self, job_type: JobType, iid: int, detail: str) -> Refusal | None:
        if job_type is JobType.REVIEWS:
            return self._review_reader.ask(iid, detail)
        return self._reader.ask(iid, detail)

    def _load_refusals(self, readable: TimeWindow) -> None:
        """Details that were refused before are not requested. Live syncing tests once a day whether they
        still are."""
        for attempt in self._attempts:
            refusals = self._refusals[attempt.job_type]
            with self._database.connection() as conn:
                known = unreadable.known(conn, self._repo.repo_id, attempt.job_type, self._visit.fingerprint)
            refusals.load(one.detail for one in known.values() if one.readable_at is None)
            for one in known.values():
                if one.readable_at is not None:
                    refusals.lift(one.detail)
                elif one.is_due and self._is_incremental:
                    with self._counted(attempt):
                        self._probe(attempt, one.detail, readable)

    def _probe(self, attempt: Attempt, detail: str, readable: TimeWindow) -> None:
        """Ask for one detail of a few merge requests."""
        refusals = self._refusals[attempt.job_type]
        refusal: Refusal | None = None
        others = self._others(())
        # Without any merge request nothing lacks the detail.
        is_readable = not others
        try:
            if others:
                is_readable, refusal = ask_others(partial(self._ask, attempt.job_type), others, detail)
        except SyncError as error:
            if error.code not in OWN_ERRORS:
                raise
        key: dict[str, Any] = {"repo_id": self._repo.repo_id, "job_type": attempt.job_type}
        how: dict[str, Any] = {"fingerprint": self._visit.fingerprint, "pause": _PROBE_EVERY}

        def store(conn: Connection, batch_id: int) -> Counts:
            if is_readable:
                unreadable.readable(conn, **key, detail=detail)
            elif refusal is not None:
                unreadable.refuse(conn, **key, refusal=refusal, **how)
            else:
                unreadable.postpone(conn, **key, detail=detail, **how)
            return Counts()

        with attempt.lease() as lease:
            attempt.write(lease, store, window=readable)
        if is_readable:
            refusals.lift(detail)

    def _save_refusals(
        self, attempt: Attempt, refusals: Sequence[Refusal]
    ) -> Callable[[Connection, int], None]:
        def save(conn: Connection, batch_id: int) -> None:
            for one in refusals:
                unreadable.refuse(
                    conn,
                    repo_id=self._repo.repo_id,
                    job_type=attempt.job_type,
                    refusal=one,
                    fingerprint=self._visit.fingerprint,
                    pause=_PROBE_EVERY,
                )

        return save

    def _read_what_was_refused(self, readable: TimeWindow) -> None:
        """Read some of the merge requests that lack a detail which can be read again. The next visits read
        the rest: none holds up live syncing for long."""
        for attempt in list(self._attempts):
            with self._database.connection() as conn:
                known = unreadable.known(conn, self._repo.repo_id, attempt.job_type, self._visit.fingerprint)
            left = _SWEPT_PER_VISIT
            for one in known.values():
                if one.readable_at is not None and left and attempt in self._attempts:
                    left -= self._read_refused(attempt, one.detail, one.readable_at, left, readable)

    def _read_refused(
        self, attempt: Attempt, detail: str, since: datetime, limit: int, readable: TimeWindow
    ) -> int:
        """Read at most ``limit`` merge requests that lack the detail, and were not read ``since``; returns
        how many."""
        key = (self._repo.repo_id, attempt.job_type)
        refusals = self._refusals[attempt.job_type]
        if detail in refusals:
            return 0
        with self._database.connection() as conn:
            # A run that knew the detail as refused may have stored some without it since then.
            iids = unreadable.without(conn, *key, detail, since, limit, again=True)
        if iids:
            self._read_some(iids, readable, [attempt])
        if attempt not in self._attempts or detail in refusals:
            return len(iids)

        def store(conn: Connection, batch_id: int) -> Counts:
            unreadable.mark_asked(conn, *key, iids)
            if not unreadable.without(conn, *key, detail, since, 1):
                unreadable.forget(conn, *key, detail)
            return Counts()

        with attempt.lease() as lease:
            attempt.write(lease, store, window=readable)
        return len(iids)

    # -- what no time of update reveals -------------------------------------------------------------------

    def _look_ahead(self, readable: TimeWindow) -> None:
        """Merge requests whose time of update the server's clock has not reached, such as imported ones: no
        window ends behind them. Once a day."""
        before = [self._visit.before[attempt.job_type].watermark for attempt in self._attempts]
        if all(isinstance(one, datetime) and one.date() == readable.until.date() for one in before):
            return

        def store(leases: Mapping[JobType, Lease], page: _Page) -> int:
            if page.batch.rows or page.batch.quarantined:
                self._each(self._attempts, page, lambda a: self._write(a, leases[a.job_type], page, readable))
            return len(page.batch.rows)

        later = TimeWindow(readable.until + _AHEAD, _FAR)
        store_in_chunks(
            self._pages(self._reader.read(later, self._known)),
            self._leases,
            store,
            self._settings.chunks.rows,
            self._attempts[:],
        )

    def _look_behind(self, readable: TimeWindow) -> None:
        """Merge requests whose branch moved without a word, and open ones that were not read for a day."""
        iids: set[int] = set()
        for attempt in self._attempts:
            iids |= self._overdue(attempt)
            if attempt.job_type is JobType.MERGE_REQUESTS:
                with self._database.connection() as conn:
                    iids |= set(
                        merge_requests.unread_heads(
                            conn, self._repo.repo_id, self._visit.project_id, self._repo.instance
                        )
                    )
        if iids:
            self._read_some(sorted(iids), readable, self._attempts)
            self._postpone(iids, readable)

    def _read_new_addresses(self, readable: TimeWindow) -> None:
        """After the project moved, read some of the merge requests whose addresses have the old path: the
        move updates none of them."""
        attempt = next((one for one in self._attempts if one.job_type is JobType.MERGE_REQUESTS), None)
        if attempt is None:
            return
        with self._database.connection() as conn:
            iids = merge_requests.old_addresses(conn, self._repo.repo_id, _SWEPT_PER_VISIT)
        if not iids:
            return
        left = sorted(set(iids) - self._read_some(iids, readable, [attempt]))
        if left and attempt in self._attempts:
            self._note_asked(attempt, merge_requests.postpone, left, readable)

    def _overdue(self, attempt: Attempt) -> set[int]:
        """Open merge requests that were not read for a day, where sweeps are on, and those with internal
        notes that only the token of this visit sees."""
        is_reviews = attempt.job_type is JobType.REVIEWS
        find = reviews.stale_reviews if is_reviews else merge_requests.oldest_read_open
        found: set[int] = set()
        with self._database.connection() as conn:
            if self._settings.reconcile.enabled:
                found.update(find(conn, self._repo.repo_id, _SWEEP_EVERY, _SWEPT_PER_VISIT))
            if is_reviews and self._visit.sees_internal_notes():
                found.update(reviews.hidden_before(conn, self._repo.repo_id, _SWEPT_PER_VISIT))
        return found

    def _postpone(self, asked: Collection[int], readable: TimeWindow) -> None:
        """What was asked for and did not come (it was deleted, or the server shows an older state) waits for
        the next day, so that it does not keep others from being read."""
        for attempt in self._attempts:
            left = sorted(self._overdue(attempt).intersection(asked))
            if not left:
                continue
            is_reviews = attempt.job_type is JobType.REVIEWS
            sees_internal = self._visit.sees_internal_notes()
            note = (
                partial(reviews.postpone, sees_internal=sees_internal)
                if is_reviews
                else merge_requests.postpone
            )
            self._note_asked(attempt, note, left, readable)

    def _note_asked(self, attempt: Attempt, note: _Note, iids: Sequence[int], readable: TimeWindow) -> None:
        def store(conn: Connection, batch_id: int) -> Counts:
            note(conn, self._repo.repo_id, batch_id, iids)
            return Counts()

        with attempt.lease() as lease:
            attempt.write(lease, store, window=readable)

    def _read_some(
        self, iids: Sequence[int], readable: TimeWindow, attempts: Collection[Attempt]
    ) -> set[int]:
        """Read single merge requests as they are now, with their whole reviews; returns which came."""
        came: set[int] = set()

        def store(leases: Mapping[JobType, Lease], page: _Page) -> int:
            self._each(attempts, page, lambda a: self._write(a, leases[a.job_type], page, readable))
            came.update(row.iid for row in page.batch.rows)
            return len(page.batch.rows)

        pages = self._pages(self._reader.read_some(iids, self._known), fully=True)
        store_in_chunks(pages, self._leases, store, self._settings.chunks.rows, self._attempts[:])
        return came

    def _settle_obligations(self, readable: TimeWindow) -> None:
        """Try again to read the details that are owed from earlier visits."""
        for attempt in list(self._attempts):
            with self._database.connection() as conn:
                due = quarantine.due(conn, self._repo.repo_id, attempt.job_type, OBLIGATIONS_PER_RUN)
            owed: dict[int, list[str]] = {}
            for item in due:
                if item.detail == LISTED:
                    self._list_again(attempt, item.natural_key, readable)
                else:
                    owed.setdefault(int(item.natural_key), []).append(item.detail)
            for iid, details in owed.items():
                if attempt.job_type is not JobType.REVIEWS:
                    self._settle(attempt, iid, details, readable)
                elif not self._read_some([iid], readable, [attempt]):
                    self._not_listed(attempt, iid, details, readable)

    def _list_again(self, attempt: Attempt, key: str, readable: TimeWindow) -> None:
        """Try again to read what the list could not be given with, and of which only the time is known."""
        window = unlisted_window(key)
        assert window is not None
        left: set[str] = set()

        def batches() -> Iterator[MergeRequestBatch]:
            for batch in self._reader.read(window, self._known):
                left.update(row.natural_key for row in batch.quarantined)
                yield batch

        self._read_again(attempt, batches(), window)
        if key in left:
            return

        def settled(conn: Connection, batch_id: int) -> Counts:
            # Whatever could not be read this time either is owed under a key of its own.
            merge_requests.forget_unlisted(conn, self._repo.repo_id, attempt.job_type, key)
            return Counts()

        with attempt.lease() as lease:
            attempt.write(lease, settled, window=readable)

    def _not_listed(self, attempt: Attempt, iid: int, details: Sequence[str], readable: TimeWindow) -> None:
        """The details of a merge request that did not come stay owed, unless it is gone."""
        is_gone = False
        error = "the server does not list it"
        try:
            is_gone = SingleReader(self._client, self._visit.project_id).is_gone(iid)
            error = "the server no longer has the merge request" if is_gone else error
        except SyncError as failure:
            if failure.code not in _STILL_OWED:
                raise
            error = str(failure)
        owed = [DeferredFetch(str(iid), detail, error) for detail in details]
        with attempt.lease() as lease:
            attempt.write(lease, lambda conn, batch_id: Counts(), window=readable, obligations=owed)
            if is_gone:
                self._settle_unstored(attempt, lease, iid, readable)

    def _settle_unstored(self, attempt: Attempt, lease: Lease, iid: int, readable: TimeWindow) -> None:
        def settle(conn: Connection, batch_id: int) -> Counts:
            quarantine.settle_unstored(
                conn,
                repo_id=self._repo.repo_id,
                job_type=attempt.job_type,
                iid=iid,
                looks=self._settings.reconcile.deletion_confirmations,
                time=timedelta(seconds=self._settings.reconcile.deletion_after_seconds),
            )
            return Counts()

        attempt.write(lease, settle, window=readable)

    def _settle(self, attempt: Attempt, iid: int, details: Sequence[str], readable: TimeWindow) -> None:
        rows: tuple[MergeRequestRow, ...] = ()
        set_aside: tuple[QuarantinedRow, ...] = ()
        errors: dict[str, str] = {}
        is_gone = False
        try:
            row, unread = self._reader.settle(iid)
            rows = (row,)
            # What does not come stays owed, whatever the reason: it waits longer then.
            errors = {"versions": "no versions"} if row.versions is None else {}
            errors |= {"commits": "no commits"} if row.commits is None else {}
            errors |= {"detail": "no diff_refs"} if row.versions is None and row.base_sha is None else {}
            errors |= {one.detail: one.error for one in unread}
        except RowUnreadable as error:
            set_aside = (quarantined(str(iid), error),)
            errors = dict.fromkeys(details, str(error))
        except SyncError as error:
            if error.code not in _STILL_OWED:
                raise
            is_gone = error.code == "no_object"
            errors = dict.fromkeys(details, str(error))
        refused = self._refusals[attempt.job_type]
        owed = tuple(
            DeferredFetch(str(iid), detail, errors[detail])
            for detail in details
            if detail in errors and detail not in refused
        )
        batch = MergeRequestBatch(None, rows, None, None, set_aside, owed)
        with attempt.lease() as lease:
            self._write(attempt, lease, _Page(batch), readable)
            if is_gone:
                self._settle_unstored(attempt, lease, iid, readable)

    # -- quarantine ---------------------------------------------------------------------------------------

    def retry(self, entries: Sequence[QuarantineEntry]) -> RetryResult:
        """Ask again for the merge requests of ``entries``, with all that belongs to them. See
        :class:`sync_pipeline.sync.retry.Retries`.

        A merge request is asked for by its number; one that came without it is looked for where it was
        met."""
        outcome = RetryResult()
        (attempt,) = self._attempts
        with self._counted(attempt), self._visit.watched():
            self._visit.look()
            if self._visit.is_disabled(attempt):
                return outcome
            readable = self._visit.readable(None)
            self._load_refusals(readable)
            numbered = {entry.natural_key: iid for entry in entries if (iid := _iid(entry)) is not None}
            if numbered:
                iids = sorted(set(numbered.values()))
                answers = self._reader.read_some(iids, self._known)
                came, sets = self._read_again(attempt, answers, readable, fully=True)
                for key, iid in numbered.items():
                    if iid not in came:
                        outcome.unread[key] = (
                            "the server does not list the merge request, or not in a form that can be stored"
                        )
                    elif iid in sets and _is_absent(key, sets[iid]):
                        outcome.absent.add(key)
            places: dict[TimeWindow, set[str]] = {}
            for entry in entries:
                place = unlisted_window(entry.natural_key) or entry.window
                if entry.natural_key not in numbered and isinstance(place, TimeWindow):
                    places.setdefault(place, set()).add(entry.natural_key)
            for window, keys in places.items():
                if (part := overlap(window, readable)) is not None:
                    self._read_again(attempt, self._reader.read(part, self._known), part)
                    outcome.absent |= keys
        return outcome

    def _read_again(
        self,
        attempt: Attempt,
        batches: Iterator[MergeRequestBatch],
        window: TimeWindow,
        *,
        fully: bool = False,
    ) -> tuple[set[int], dict[int, ReviewSet]]:
        """Store what comes for one attempt, without a word about coverage; returns which merge requests came,
        and their reviews."""
        came: set[int] = set()
        sets: dict[int, ReviewSet] = {}

        def store(leases: Mapping[JobType, Lease], page: _Page) -> int:
            if page.error is not None:
                raise page.error
            self._write(attempt, leases[attempt.job_type], page, window)
            came.update(row.iid for row in page.batch.rows)
            sets.update({one.mr_iid: one for one in page.sets})
            return len(page.batch.rows)

        pages = self._pages(batches, fully=fully)
        store_in_chunks(pages, self._leases, store, self._settings.chunks.rows, self._attempts[:])
        return came, sets

    # -- what differs from the source ---------------------------------------------------------------------

    def heal(self, found: Sequence[Difference]) -> None:
        """Read again the merge requests that ``found`` are of, with all that belongs to them. See
        :class:`sync_pipeline.sync.reconcile.Healing`."""
        (attempt,) = self._attempts
        iids = sorted({number_of(one) for one in found})
        with self._counted(attempt), self._visit.watched():
            self._look()
            self._load_refusals(self._visit.readable(None))
            self._distrusted = {one.natural_key for one in found}
            for first in range(0, len(iids), _HEALED_AT_ONCE):
                retry_on_lease_loss(partial(self._heal_some, attempt, iids[first : first + _HEALED_AT_ONCE]))

    def _heal_some(self, attempt: Attempt, iids: Sequence[int]) -> None:
        """Read under the lease: what is stored here wins, and must not be older than what others store."""
        window = self._visit.readable(None)
        with attempt.lease() as lease:
            for page in self._pages(self._reader.read_some(iids, lambda _: {}), fully=True):
                if page.error is not None:
                    raise page.error
                self._write(attempt, lease, page, window)

    def gone(self, found: Sequence[Difference]) -> set[str]:
        """See :class:`sync_pipeline.sync.reconcile.Healing`."""
        (attempt,) = self._attempts
        with self._counted(attempt), self._visit.watched():
            self._look()
            singles = SingleReader(self._client, self._visit.project_id)
            with self._database.connection() as conn:
                internal = tombstones.internal_notes(conn, self._repo.repo_id, [d.natural_key for d in found])
            hidden = set() if self._visit.sees_internal_notes() else internal
            return gone_ones(singles, [one for one in found if one.natural_key not in hidden])

    def _look(self) -> None:
        self._visit.look()
        for attempt in self._attempts:
            # Raises: a window of its own waits until it is switched on.
            self._visit.is_disabled(attempt)

    # -- both together ------------------------------------------------------------------------------------

    @contextmanager
    def _leases(self) -> Iterator[Mapping[JobType, Lease]]:
        """The leases of all attempts, always taken in the same order."""
        with ExitStack() as stack:
            yield {attempt.job_type: stack.enter_context(attempt.lease()) for attempt in self._attempts}

    def _sent(self, attempt: Attempt) -> Traffic:
        """What was sent so far for ``attempt``: for the first one what was sent for no other."""
        if attempt is not self._all[0]:
            return attempt.done.traffic
        return self._client.traffic - sum((one.done.traffic for one in self._all[1:]), Traffic())

    @contextmanager
    def _counted(self, attempt: Attempt) -> Iterator[None]:
        """Count the requests sent in the block for ``attempt``, and for nobody else."""
        before = self._client.traffic
        already = sum((one.done.traffic for one in self._all), Traffic())
        try:
            yield
        finally:
            inner = sum((one.done.traffic for one in self._all), Traffic()) - already
            attempt.done.traffic += self._client.traffic - before - inner


def _iid(entry: QuarantineEntry) -> int | None:
    """The number of the merge request that an entry is about."""
    first = entry.natural_key.partition(":")[0]
    # No digits but these: others are numbers for Python as well.
    return int(first) if re.fullmatch(r"[0-9]{1,18}", first) else None


def _is_absent(key: str, one: ReviewSet) -> bool:
    """Whether the row that quarantine calls ``key`` is no longer among the review of its merge request."""
    event_id = key.partition(":")[2]
    is_there = any(event.event_id == event_id for event in one.events)
    return not is_there and event_id.partition(":")[0] in {str(origin) for origin in one.whole}


def _evidence(batch: MergeRequestBatch) -> Evidence:
    """Where a batch was read. A replay reads the list between the times that a page of it covers, and what
    came one by one where its last update puts it in that list."""
    times = [row.updated_at for row in batch.rows]
    if batch.window is None:
        return Evidence("merge requests by number", merged(one for at in times for one in span([at])))
    covered = (batch.covered,) if batch.covered is not None else span(times)
    return Evidence("page of the list by time of update", covered)
