"""Revisions of Subversion: what one attempt reads and stores.

Belongs here: the identity of the repository, HEAD, chunks and their halves, the scan for edited properties.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from functools import partial
from itertools import chain, islice
from typing import Any

import psycopg

from sync_pipeline.core.errors import (
    Cancelled,
    ConfigurationError,
    LeaseHeld,
    LeaseLost,
    Permanent,
    SourceReplaced,
    SyncError,
    Transient,
    WindowTooHard,
)
from sync_pipeline.core.model import (
    Access,
    Counts,
    Difference,
    Evidence,
    Page,
    QuarantinedRow,
    RevisionPage,
    RevisionRow,
    RevisionWindow,
    Visit,
    Window,
)
from sync_pipeline.database.pool import database_time
from sync_pipeline.facts import quarantine, svn_revisions
from sync_pipeline.facts.quarantine import QuarantineEntry
from sync_pipeline.ledger import watermarks
from sync_pipeline.policy.chunking import WindowLimit, next_size
from sync_pipeline.sync import identity
from sync_pipeline.sync.attempt import DEFERRED_PER_VISIT, Attempt, database_error, is_about_a_row
from sync_pipeline.sync.chunks import retry_on_lease_loss
from sync_pipeline.sync.pages import Batch, FactStore, write_page
from sync_pipeline.sync.retry import RetryResult
from sync_pipeline.sync.source import RevisionSource

_log = logging.getLogger(__name__)

SCAN_BLOCK = 1000
"""Older revisions that one visit of the rolling scan reads again."""

_POLL_SECONDS = 30.0
# The payload in quarantine of a revision that cannot be stored.
_MAX_QUARANTINED_PATHS = 1000
_MAX_PAYLOAD_BYTES = 1 << 20
_STOP_AFTER_FAILED_CHUNKS = 3
_STOP_AFTER_TIMEOUTS = 5
_SOURCE_IS_DOWN = frozenset({"connection", "timeout"})


@dataclass(frozen=True, slots=True)
class SourceState:
    """A visit that found the repository that is registered."""

    visit: Visit
    looked_at: datetime
    monotonic: float


@dataclass
class RevisionFacts(FactStore[RevisionPage]):
    """Writes pages of revisions of the repository at ``url``. Those in ``overriding`` replace what is stored,
    unless they show less."""

    repo_id: int
    url: str
    overriding: set[int] = field(default_factory=set)

    def store(self, batch: Batch, page: RevisionPage) -> Counts:
        """See :class:`sync_pipeline.sync.pages.FactStore`. Raises SourceReplaced where the rows are those of
        another repository."""
        window = page.window
        assert isinstance(window, RevisionWindow)
        again = self.overriding.intersection(range(window.first, window.end))
        if again:
            svn_revisions.invalidate(batch.conn, self.repo_id, again)
        return svn_revisions.store_revisions(
            batch.conn,
            repo_id=self.repo_id,
            batch_id=batch.batch_id,
            rows=self._noted(batch, page),
            window=window,
            check=partial(self.check_history, invalidated=again),
        )

    def _noted(self, batch: Batch, page: RevisionPage) -> Iterator[RevisionRow]:
        for row in marked(page):
            batch.note(self.key(row))
            yield row

    def key(self, row: RevisionRow) -> str:
        """See :class:`sync_pipeline.sync.pages.FactStore`."""
        return str(row.rev_num)

    def check_history(self, changed: Sequence[dict[str, Any]], invalidated: Collection[int] = ()) -> None:
        """Raises SourceReplaced where the changed revisions are others than the stored ones. The stored rows
        of ``invalidated`` ones may have been damaged here, so only their paths count."""
        found = (identity.Change(**row) for row in changed)
        why = identity.rewritten(
            (replace(one, message_differs=False) if one.rev_num in invalidated else one for one in found),
            self.url,
        )
        if why is not None:
            raise SourceReplaced(why)


class RevisionWork:
    """Reads revisions for one attempt."""

    def __init__(self, attempt: Attempt, source: RevisionSource, states: dict[int, SourceState]) -> None:
        self._attempt = attempt
        self._source = source
        self._states = states
        self._database = attempt.database
        self._settings = attempt.settings
        self._repo = attempt.repo
        self._job_type = attempt.job_type
        self._facts = RevisionFacts(attempt.repo.repo_id, attempt.repo.url)
        self._limit = WindowLimit()
        self.done = attempt.done
        attempt.meter = lambda: source.traffic

    def run(self) -> None:
        """Everything that the job asks for. See :class:`sync_pipeline.sync.attempt.Work`."""
        before = self._watermark()
        check_source = self.check_source(before)
        visit, looked_at = check_source.visit, check_source.looked_at
        if before.access is Access.REPLACED:
            self._read_covered_again(before, visit)
            if self.done.failures:
                # Nothing is proved, so the state stays.
                return
        target = self._target(before, visit)
        if target is not None:
            todo: tuple[Window, ...] = (target,)
            if not self._attempt.rereads:
                with self._database.connection() as conn:
                    todo = watermarks.missing(conn, self._repo.repo_id, self._job_type, target)
            self._read_windows(todo)
        if self._attempt.is_incremental and not self.done.failures:
            self._fetch_deferred()
            self._scan(before, visit)
        self._record_visit(visit, looked_at)

    def _watermark(self) -> watermarks.WatermarkRow:
        with self._database.connection() as conn:
            return watermarks.get(conn, self._repo.repo_id, self._job_type)

    def retry(self, entries: Sequence[QuarantineEntry]) -> RetryResult:
        """Read the revisions of ``entries`` again. See :class:`sync_pipeline.sync.retry.Retries`."""
        head = self.check_source(self._watermark()).visit.head
        self._read_windows(up_to(head, runs(int(entry.natural_key) for entry in entries)))
        return RetryResult()

    def repair_differences(self, found: Sequence[Difference]) -> None:
        """Read the revisions of ``found`` again. See :class:`sync_pipeline.sync.reconcile.Repairing`."""
        head = self.check_source(self._watermark()).visit.head
        self._facts.overriding = {int(one.natural_key) for one in found}
        self._read_windows(up_to(head, runs(self._facts.overriding)))

    def gone(self, found: Sequence[Difference]) -> set[str]:
        """See :class:`sync_pipeline.sync.reconcile.Repairing`."""
        head = self.check_source(self._watermark()).visit.head
        outside = set()
        for rev_num in (int(one.natural_key) for one in found):
            if rev_num <= head and self._source.is_outside(rev_num):
                with self._database.connection() as conn:
                    was_inside = svn_revisions.is_whole(conn, self._repo.repo_id, rev_num)
                if was_inside:
                    raise SourceReplaced(identity.other_paths(rev_num, self._repo.url))
                outside.add(str(rev_num))
        return outside

    def check_source(self, before: watermarks.WatermarkRow) -> SourceState:
        """Pin HEAD and check that this is still the registered repository. Raises SourceReplaced.

        The block jobs of one backfill share a visit for half a minute. Live syncing always makes its own.
        """
        known = self._states.get(self._repo.repo_id)
        is_shared = known is not None and time.monotonic() - known.monotonic < _POLL_SECONDS
        if known is not None and is_shared and not self._attempt.is_incremental:
            self.done.head = known.visit.head
            return known
        with self._database.connection() as conn:
            looked_at = database_time(conn)
        visit = self._source.visit()
        self.done.head = visit.head
        why = identity.replaced(
            known_uuid=self._repo.svn_uuid or "",
            known_root=self._repo.svn_root or "",
            known_head=before.head_rev,
            visit=visit,
            url=self._repo.url,
        )
        if why is not None:
            raise SourceReplaced(why)
        self._check_fingerprints(visit)
        check_source = SourceState(visit, looked_at, time.monotonic())
        self._states[self._repo.repo_id] = check_source
        return check_source

    def end_if_silent(self, hard: WindowTooHard) -> None:
        """After a time-out, visit the server and raise the error of the visit: if it does not answer, a
        smaller window does not help."""
        if hard.code == "timeout":
            self._source.visit()

    def _target(self, before: watermarks.WatermarkRow, visit: Visit) -> RevisionWindow | None:
        """The window of this job, cut at the pinned HEAD; None where there is nothing to read."""
        end = visit.head + 1
        wanted = self._attempt.claim.window
        if wanted is None:
            assert isinstance(before.origin, int)
            return RevisionWindow(before.origin, end) if before.origin < end else None
        assert isinstance(wanted, RevisionWindow)
        first = max(wanted.first, 1)
        if first >= end:
            self.done.beyond_head = True
            return None
        return RevisionWindow(first, min(wanted.end, end))

    def _record_visit(self, visit: Visit, looked_at: datetime) -> None:
        with self._attempt.fenced() as conn:
            now = watermarks.get(conn, self._repo.repo_id, self._job_type)
            complete = visit.head == 0 or now.watermark == visit.head + 1
            watermarks.record_visit(
                conn,
                repo_id=self._repo.repo_id,
                job_type=self._job_type,
                access=Access.EMPTY if visit.head == 0 else Access.OK,
                head_rev=visit.head,
                verified_at=looked_at if complete and not self.done.failures else None,
            )

    # -- reading and writing ------------------------------------------------------------------------------

    def _read_covered_again(self, before: watermarks.WatermarkRow, visit: Visit) -> None:
        """After the repository was another one: only its whole history proves that it is the old one."""
        covered = [window for window in before.covered if isinstance(window, RevisionWindow)]
        self._read_windows(
            RevisionWindow(window.first, min(window.end, visit.head + 1))
            for window in covered
            if window.first <= visit.head
        )

    def _read_windows(self, windows: Iterable[Window]) -> None:
        """Read window by window, chunk by chunk. A chunk that fails is a gap, and the others go on. A server
        that is down, or several failures in a row, end the job, because a retry later helps more."""
        base = self._settings.chunks.revisions
        failed_in_a_row = 0
        for window in windows:
            assert isinstance(window, RevisionWindow)
            first, size = window.first, base
            while first < window.end:
                chunk = RevisionWindow(first, min(first + size, window.end))
                rows_before = self.done.counts.read
                try:
                    retry_on_lease_loss(partial(self._read_chunk, chunk))
                    failed_in_a_row = 0
                except (LeaseLost, LeaseHeld, Cancelled, Permanent, ConfigurationError):
                    raise
                except SyncError as failure:
                    self.done.failures.append(failure)
                    failed_in_a_row += 1
                    if failed_in_a_row >= _STOP_AFTER_FAILED_CHUNKS or failure.code in _SOURCE_IS_DOWN:
                        return
                size = next_size(len(chunk), self.done.counts.read - rows_before, base)
                first = chunk.end

    def _read_chunk(self, chunk: RevisionWindow) -> None:
        with self._attempt.lease():
            todo = [chunk]
            timeouts = 0
            while todo:
                window = todo.pop()
                if len(window) > self._limit.revisions:
                    middle = window.first + self._limit.revisions
                    todo.append(RevisionWindow(middle, window.end))
                    window = RevisionWindow(window.first, middle)
                self._attempt.stop_if_asked()
                try:
                    for page in self._source.read(window):
                        self._write(page)
                    timeouts = 0
                    self._limit.grow()
                except WindowTooHard as hard:
                    self.end_if_silent(hard)
                    timeouts = timeouts + 1 if hard.code in _SOURCE_IS_DOWN else 0
                    if timeouts >= _STOP_AFTER_TIMEOUTS:
                        # Not this window is slow but the server; the ledger's longer wait helps more.
                        raise Transient(f"{timeouts} times in a row: {hard}", code=hard.code) from None
                    if len(window) == 1:
                        _log.info("%s %s: %s; reading it another way", self._repo.slug, window, hard)
                        self._write(self._source.read_single(window.first))
                        continue
                    if hard.code in _SOURCE_IS_DOWN:
                        self._limit.shrink(len(window))
                        todo.append(window)
                        continue
                    todo += halves(window)
                except psycopg.Error as refused:
                    if not is_about_a_row(refused):
                        raise
                    if len(window) == 1:
                        self._write(self._refused(window, refused))
                        continue
                    todo += halves(window)

    def _refused(self, window: RevisionWindow, error: psycopg.Error) -> RevisionPage:
        """The page that puts a single revision into quarantine, because the database refuses it."""
        payload = b""
        for page in self._source.read(window):
            for row in page.rows:
                fields = asdict(replace(row, paths=tuple(islice(row.paths, _MAX_QUARANTINED_PATHS))))
                payload = json.dumps(fields, default=str, ensure_ascii=False).encode(
                    "utf-8", "backslashreplace"
                )
        detail = str(database_error(error))
        entry = QuarantinedRow(str(window.first), "unstorable", detail, payload[:_MAX_PAYLOAD_BYTES])
        return Page(window, (), window, (entry,))

    def _write(self, page: RevisionPage) -> None:
        evidence = Evidence(f"svn log {page.window}")
        write_page(self._attempt, replace(page, evidence=evidence), self._facts)

    # -- what does not show in new revisions -------------------------------------------------------------

    def _check_fingerprints(self, visit: Visit) -> None:
        with self._database.connection() as conn:
            rows = svn_revisions.fingerprints(
                conn, self._repo.repo_id, visit.head, self._settings.reconcile.fingerprint_revisions
            )
        if not rows:
            return
        stored = [identity.Fingerprint(**row) for row in rows]
        seen: dict[int, identity.Fingerprint] = {}
        window = RevisionWindow(stored[-1].rev_num, stored[0].rev_num + 1)
        if len(window) > self._settings.reconcile.fingerprint_revisions * 4:
            # A subfolder's revisions may lie far apart; the newest one alone is proof enough.
            window = RevisionWindow(stored[0].rev_num, stored[0].rev_num + 1)
        try:
            pages = list(self._source.read(window))
        except WindowTooHard as hard:
            self.end_if_silent(hard)
            # Unreadable revisions are no proof of another repository; they are handled where they are read.
            _log.info("%s: fingerprints of %s cannot be read: %s", self._repo.slug, window, hard)
            return
        for page in pages:
            for row in page.rows:
                seen[row.rev_num] = identity.Fingerprint(
                    row.rev_num, row.ts, svn_revisions.paths_hash(row.paths), row.visibility
                )
        if identity.may_be_rewritten(stored, seen):
            with self._database.connection() as conn:
                again = chain.from_iterable(map(marked, pages))
                changed = svn_revisions.changes(conn, self._repo.repo_id, again)
            self._facts.check_history(changed)

    def _fetch_deferred(self) -> None:
        with self._database.connection() as conn:
            due = quarantine.due(conn, self._repo.repo_id, self._job_type, DEFERRED_PER_VISIT)
        for item in due:
            with self._attempt.lease():
                self._write(self._source.settle(item.natural_key, item.detail))

    def _scan(self, before: watermarks.WatermarkRow, visit: Visit) -> None:
        """Re-read the newest revisions and one older block: properties can be edited at any time."""
        if not self._settings.reconcile.enabled or before.watermark is None:
            return
        if (
            before.swept_at is not None
            and self._seconds_since(before.swept_at) < self._settings.reconcile.interval_seconds
        ):
            return
        end = visit.head + 1
        recent = RevisionWindow(max(1, end - self._settings.reconcile.recent_revisions), end)
        first = before.sweep_rev if before.sweep_rev < recent.first else 1
        older = RevisionWindow(first, max(first, min(first + SCAN_BLOCK, recent.first)))
        with self._database.connection() as conn:
            # Revisions that were never read are backfilled, not swept.
            whole = [
                window
                for window in (older, recent)
                if len(window) and not watermarks.missing(conn, self._repo.repo_id, self._job_type, window)
            ]
        self._read_windows(whole)
        if not self.done.failures:
            with self._attempt.fenced() as conn:
                watermarks.record_scan(
                    conn,
                    repo_id=self._repo.repo_id,
                    job_type=self._job_type,
                    sweep_rev=older.end if older.end < recent.first else 1,
                )

    def _seconds_since(self, moment: datetime) -> float:
        with self._database.connection() as conn:
            return (database_time(conn) - moment).total_seconds()


def runs(rev_nums: Iterable[int]) -> list[RevisionWindow]:
    """The numbers as windows of neighbours, in order."""
    found: list[RevisionWindow] = []
    for number in sorted(rev_nums):
        if found and number <= found[-1].end:
            found[-1] = RevisionWindow(found[-1].first, number + 1)
        else:
            found.append(RevisionWindow(number, number + 1))
    return found


def up_to(head: int, windows: Iterable[RevisionWindow]) -> Iterator[RevisionWindow]:
    """The windows as far as the source has them."""
    for window in windows:
        if window.first <= head:
            yield RevisionWindow(window.first, min(window.end, head + 1))


def halves(window: RevisionWindow) -> list[RevisionWindow]:
    """Both halves, the first one last: the list is worked off from its end."""
    middle = window.first + len(window) // 2
    return [RevisionWindow(middle, window.end), RevisionWindow(window.first, middle)]


def marked(page: RevisionPage) -> Iterator[RevisionRow]:
    """The rows, each flagged with its deferred details, so that it never counts as complete."""
    unread: dict[str, list[str]] = {}
    for item in page.deferred:
        unread.setdefault(item.natural_key, []).append(f"{item.detail}_unread")
    for row in page.rows:
        missing = unread.get(str(row.rev_num))
        yield replace(row, flags=(*row.flags, *missing)) if missing else row
