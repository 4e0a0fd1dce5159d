"""One attempt at one job: look, chunks, batches, one transaction each, finish.

Belongs here: the order of things and what follows from each kind of error. Does not belong here: how a source
is read (:mod:`sync_pipeline.sources`), how rows are written (:mod:`sync_pipeline.store`), when something is
due or how long to wait (:mod:`sync_pipeline.policy`), who gets the job (:mod:`sync_pipeline.sync.engine`).
"""

from __future__ import annotations

import json
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from itertools import islice

import psycopg

from sync_pipeline.errors import (
    AccessDenied,
    Cancelled,
    ClaimLost,
    ConfigurationError,
    LeaseHeld,
    LeaseLost,
    Permanent,
    SourceGone,
    SourceReplaced,
    SyncError,
    Transient,
    WindowTooHard,
)
from sync_pipeline.model import (
    Access,
    Batch,
    Counts,
    JobReport,
    JobRequest,
    JobStatus,
    JobType,
    Mode,
    QuarantinedRow,
    Repository,
    RevisionRow,
    RevisionWindow,
    RunStatus,
    Trigger,
    Visit,
    Window,
)
from sync_pipeline.policy.backoff import seconds_until_retry
from sync_pipeline.policy.chunking import next_size
from sync_pipeline.settings import Settings
from sync_pipeline.store import aside, facts, jobs, leases, watermarks
from sync_pipeline.store.database import Connection, Database, database_time
from sync_pipeline.sync import identity
from sync_pipeline.sync.heartbeat import Heartbeat
from sync_pipeline.sync.source import RevisionSource
from sync_pipeline.sync.worker import worker_name

_log = logging.getLogger(__name__)

SWEEP_BLOCK = 1000
"""Older revisions that one visit of the rolling sweep re-reads."""

_OBLIGATIONS_PER_RUN = 20
_LOOK_SECONDS = 30.0
# What quarantine keeps of a revision that cannot be stored.
_PATHS_SET_ASIDE = 1000
_PAYLOAD_BYTES = 1 << 20
_STOP_AFTER_FAILED_CHUNKS = 3
_STOP_AFTER_TIMEOUTS = 5
# Smaller goes first at the lease: live syncing passes a backfill between two of its chunks.
_LEASE_PRIORITY = {Mode.INCREMENTAL: 0, Mode.PROBE: 0, Mode.REPAIR: 1, Mode.BACKFILL: 2}
_SOURCE_IS_DOWN = frozenset({"connection", "timeout"})


@dataclass
class _Progress:
    """What one attempt has done so far."""

    counts: Counts = field(default_factory=Counts)
    batches: int = 0
    covered: list[Window] = field(default_factory=list)
    failures: list[SyncError] = field(default_factory=list)
    head: int | None = None
    beyond_head: bool = False
    waited: float = 0.0


@dataclass(frozen=True, slots=True)
class Look:
    """A look at the front door that found the repository that we know."""

    visit: Visit
    looked_at: datetime
    monotonic: float


class Attempt:
    """One attempt at one job: from the claim to the finished ledger rows."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        source: RevisionSource,
        repo: Repository,
        request: JobRequest,
        claim: jobs.Claim,
        *,
        looks: dict[int, Look],
        cancel: threading.Event,
        progress: Callable[[Counts], None] | None,
    ) -> None:
        self.done = _Progress()
        self._database = database
        self._settings = settings
        self._source = source
        self._repo = repo
        self._request = request
        self._claim = claim
        self._looks = looks
        self._cancel = cancel
        self._progress = progress
        self._job_type: JobType = request.job_type
        self._started = time.monotonic()
        self._heartbeat = Heartbeat(
            database,
            claim,
            claim_length=settings.claim_length,
            claim_renew=settings.claim_renew,
            lease_length=settings.lease_length,
            lease_renew=settings.lease_renew,
        )

    # -- the attempt as a whole --------------------------------------------------------------------------

    def run(self) -> JobReport:
        """Do the job, finish it in the ledger, report. See :meth:`Syncer.run`."""
        error: SyncError | None = None
        with self._heartbeat:
            try:
                self._work()
            except Cancelled as stopped:
                self._put_back(stopped)
                raise
            except SyncError as failure:
                error = failure
            except psycopg.Error as failure:
                error = database_error(failure)
            except Exception as failure:
                # A defect of ours costs an attempt, so that it cannot repeat for ever.
                _log.exception("job %s failed in an unforeseen way", self._claim.job_id)
                error = SyncError(f"{type(failure).__name__}: {failure}", code="exception")
            except BaseException as interruption:
                self._put_back(interruption)
                raise
            if error is None and self.done.failures:
                error = self.done.failures[0]
            return self._finish(error)

    def _work(self) -> None:
        with self._database.connection() as conn:
            before = watermarks.get(conn, self._repo.repo_id, self._job_type)
        look = self._look(before)
        visit, looked_at = look.visit, look.looked_at
        self.done.head = visit.head
        target = self._target(before, visit)
        if target is not None:
            with self._database.connection() as conn:
                todo: tuple[Window, ...] = (target,)
                if not self._claim.reread and self._request.mode is not Mode.REPAIR:
                    todo = watermarks.missing(conn, self._repo.repo_id, self._job_type, target)
            for window in todo:
                assert isinstance(window, RevisionWindow)
                self._read_window(window)
        if self._request.mode is Mode.INCREMENTAL and not self.done.failures:
            self._settle_obligations()
            self._sweep(before, visit)
        self._record_visit(visit, looked_at)

    def _look(self, before: watermarks.WatermarkRow) -> Look:
        """Pin HEAD and make sure that this is still the repository that we know. Raises SourceReplaced.

        The block jobs of one backfill share a look for half a minute; live syncing always looks itself.
        """
        known = self._looks.get(self._repo.repo_id)
        if (
            known is not None
            and self._request.mode is not Mode.INCREMENTAL
            and time.monotonic() - known.monotonic < _LOOK_SECONDS
        ):
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
        look = Look(visit, looked_at, time.monotonic())
        self._looks[self._repo.repo_id] = look
        return look

    def _target(self, before: watermarks.WatermarkRow, visit: Visit) -> RevisionWindow | None:
        """The window of this job, cut at the pinned HEAD; None where there is nothing to read."""
        end = visit.head + 1
        wanted = self._claim.window
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
        with self._database.connection() as conn:
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

    def _read_window(self, window: RevisionWindow) -> None:
        """Chunk by chunk. A chunk that fails is a gap; the others go on, unless the source is down."""
        base = size = self._settings.chunk_revisions
        first = window.first
        failed_in_a_row = leases_lost = 0
        while first < window.end:
            chunk = RevisionWindow(first, min(first + size, window.end))
            rows_before = self.done.counts.read
            try:
                self._read_chunk(chunk)
                failed_in_a_row = 0
            except (ClaimLost, LeaseHeld, Cancelled, Permanent):
                raise
            except LeaseLost as lost:
                # The job is still ours: the chunk is read again under a new fence.
                _log.warning("%s %s: %s", self._repo.slug, chunk, lost)
                leases_lost += 1
                if leases_lost >= _STOP_AFTER_FAILED_CHUNKS:
                    raise
                continue
            except SyncError as failure:
                self.done.failures.append(failure)
                failed_in_a_row += 1
                if failed_in_a_row >= _STOP_AFTER_FAILED_CHUNKS or failure.code in _SOURCE_IS_DOWN:
                    return
            size = next_size(len(chunk), self.done.counts.read - rows_before, base)
            first = chunk.end

    def _read_chunk(self, chunk: RevisionWindow) -> None:
        with self._lease() as lease:
            todo = [chunk]
            timeouts = 0
            while todo:
                window = todo.pop()
                self._stop_if_asked()
                try:
                    for batch in self._source.read(window):
                        self._write(lease, batch)
                    timeouts = 0
                except WindowTooHard as hard:
                    timeouts = timeouts + 1 if hard.code == "timeout" else 0
                    if timeouts >= _STOP_AFTER_TIMEOUTS:
                        # Not this window is slow but the server; the ledger's longer wait helps more.
                        raise Transient(f"{timeouts} times in a row: {hard}", code="timeout") from None
                    if len(window) == 1:
                        _log.info("%s %s: %s; reading it another way", self._repo.slug, window, hard)
                        self._write(lease, self._source.read_single(window.first))
                        continue
                    todo += _halves(window)
                except psycopg.Error as refused:
                    if not _is_about_a_row(refused):
                        raise
                    if len(window) == 1:
                        self._write(lease, self._set_aside(window, refused))
                        continue
                    todo += _halves(window)

    def _set_aside(self, window: RevisionWindow, refused: psycopg.Error) -> Batch:
        """The quarantine entry of a single revision that the database refuses."""
        payload = b""
        for batch in self._source.read(window):
            for row in batch.rows:
                fields = asdict(replace(row, paths=tuple(islice(row.paths, _PATHS_SET_ASIDE))))
                payload = json.dumps(fields, default=str, ensure_ascii=False).encode("utf-8", "replace")
        detail = str(database_error(refused))
        entry = QuarantinedRow(str(window.first), "unstorable", detail, payload[:_PAYLOAD_BYTES])
        return Batch(window, (), window, (entry,))

    def _write(self, lease: leases.Lease, batch: Batch) -> None:
        """One batch, one transaction: guards, facts, quarantine, obligations, ledger, coverage."""
        self._stop_if_asked()
        repo_id, job_type, claim = self._repo.repo_id, self._job_type, self._claim
        with self._database.connection() as conn, conn.transaction():
            leases.guard(conn, lease)
            jobs.guard(conn, claim)
            watermarks.lock_generation(conn, repo_id, job_type, claim.generation)
            batch_id = jobs.next_batch(conn)
            assert isinstance(batch.window, RevisionWindow)
            counts = facts.store_revisions(
                conn, repo_id=repo_id, batch_id=batch_id, rows=_marked(batch), window=batch.window
            )
            set_aside = aside.quarantine(
                conn, repo_id=repo_id, job_type=job_type, batch_id=batch_id, rows=batch.quarantined
            )
            aside.owe(conn, repo_id=repo_id, job_type=job_type, obligations=batch.obligations)
            counts = replace(counts, read=counts.read + set_aside, quarantined=set_aside)
            news = batch.covered is not None and watermarks.extend(
                conn,
                repo_id=repo_id,
                job_type=job_type,
                window=batch.covered,
                actor=claim.actor,
                reason=claim.reason,
                run_id=claim.run_id,
                batch_id=batch_id,
            )
            jobs.add_batch(
                conn,
                claim,
                batch_id=batch_id,
                fence=lease.fence,
                window=batch.window,
                covers=batch.covered is not None,
                counts=counts,
            )
        self.done.counts += counts
        self.done.batches += 1
        if news and batch.covered is not None:
            self.done.covered.append(batch.covered)
        if self._progress is not None:
            self._progress(self.done.counts)

    @contextmanager
    def _lease(self) -> Iterator[leases.Lease]:
        """The lease for one chunk. Waits for it, politely, up to the limit; then says who has it."""
        settings = self._settings
        started = time.monotonic()
        who = f"{worker_name()} ({self._request.mode} job {self._claim.job_id})"
        try:
            while True:
                self._stop_if_asked()
                with self._database.connection() as conn:
                    lease = leases.acquire(
                        conn,
                        repo_id=self._repo.repo_id,
                        job_type=self._job_type,
                        waiter=self._claim.token,
                        who=who,
                        priority=_LEASE_PRIORITY[self._request.mode],
                        length=settings.lease_length,
                    )
                    if lease is not None:
                        break
                    holder = leases.holder(conn, self._repo.repo_id, self._job_type)
                if time.monotonic() - started > settings.wait_limit:
                    raise LeaseHeld(
                        f"{holder.who if holder else 'somebody'} writes for {self._repo.spec}; "
                        f"waited {settings.wait_limit:.0f} s, try again later"
                    )
                self._cancel.wait(random.uniform(0.1, 0.5))
        except BaseException:
            with self._database.connection() as conn:
                leases.stop_waiting(conn, self._claim.token)
            raise
        self.done.waited += time.monotonic() - started
        self._heartbeat.hold(lease)
        try:
            yield lease
        finally:
            self._heartbeat.hold(None)
            with self._database.connection() as conn:
                leases.release(conn, lease)

    def _stop_if_asked(self) -> None:
        if self._cancel.is_set():
            raise Cancelled("stopped between two batches; what was committed stays")
        if self._heartbeat.lost.is_set():
            raise ClaimLost(
                f"attempt {self._claim.attempt} lost its claim on job {self._claim.job_id}: its heartbeat "
                "came too late (was the process stopped, or the database away?)"
            )

    # -- what does not show in new revisions -------------------------------------------------------------

    def _check_fingerprints(self, visit: Visit) -> None:
        with self._database.connection() as conn:
            rows = facts.fingerprints(
                conn, self._repo.repo_id, visit.head, self._settings.fingerprint_revisions
            )
        if not rows:
            return
        stored = [identity.Fingerprint(**row) for row in rows]
        seen: dict[int, identity.Fingerprint] = {}
        window = RevisionWindow(stored[-1].rev_num, stored[0].rev_num + 1)
        if len(window) > self._settings.fingerprint_revisions * 4:
            # A subfolder's revisions may lie far apart; the newest one alone is proof enough.
            window = RevisionWindow(stored[0].rev_num, stored[0].rev_num + 1)
        try:
            for batch in self._source.read(window):
                for row in batch.rows:
                    seen[row.rev_num] = identity.Fingerprint(
                        row.rev_num, row.ts, facts.paths_hash(row.paths), row.visibility
                    )
        except WindowTooHard as hard:
            # Unreadable revisions are no proof of another repository; they are handled where they are read.
            _log.info("%s: fingerprints of %s cannot be read: %s", self._repo.slug, window, hard)
            return
        why = identity.rewritten(stored, seen, self._repo.url)
        if why is not None:
            raise SourceReplaced(why)

    def _settle_obligations(self) -> None:
        with self._database.connection() as conn:
            due = aside.due(conn, self._repo.repo_id, self._job_type, _OBLIGATIONS_PER_RUN)
        for item in due:
            with self._lease() as lease:
                self._write(lease, self._source.settle(item.natural_key, item.detail))

    def _sweep(self, before: watermarks.WatermarkRow, visit: Visit) -> None:
        """Re-read the newest revisions and one older block: properties can be edited at any time."""
        if before.watermark is None or (
            before.swept_at is not None
            and self._seconds_since(before.swept_at) < self._settings.sweep_interval
        ):
            return
        end = visit.head + 1
        recent = RevisionWindow(max(1, end - self._settings.sweep_recent_revisions), end)
        first = before.sweep_rev if before.sweep_rev < recent.first else 1
        older = RevisionWindow(first, max(first, min(first + SWEEP_BLOCK, recent.first)))
        for window in (older, recent):
            if len(window):
                with self._database.connection() as conn:
                    gaps = watermarks.missing(conn, self._repo.repo_id, self._job_type, window)
                # What was never read is not swept but backfilled.
                if not gaps:
                    self._read_window(window)
        if not self.done.failures:
            with self._database.connection() as conn:
                watermarks.record_sweep(
                    conn,
                    repo_id=self._repo.repo_id,
                    job_type=self._job_type,
                    sweep_rev=older.end if older.end < recent.first else 1,
                )

    def _seconds_since(self, moment: datetime) -> float:
        with self._database.connection() as conn:
            return (database_time(conn) - moment).total_seconds()

    # -- the end -----------------------------------------------------------------------------------------

    def _finish(self, error: SyncError | None) -> JobReport:
        """Write how the attempt ended and report it."""
        if isinstance(error, LeaseHeld):
            # Nobody's fault: the job waits for the next starter and keeps its attempts.
            self._put_back(error)
            return self._report(error, JobStatus.PENDING, RunStatus.INTERRUPTED)
        job_status, run_status, backoff = JobStatus.COMPLETED, RunStatus.COMPLETED, 0.0
        if error is not None:
            run_status = RunStatus.FAILED
            gone_for_good = isinstance(error, Permanent) and not isinstance(error, SourceGone)
            exhausted = self._claim.attempt >= self._claim.max_attempts
            job_status = JobStatus.DEAD if gone_for_good or exhausted else JobStatus.FAILED
            retry_after = error.retry_after if isinstance(error, Transient) else None
            backoff = seconds_until_retry(error.code, self._claim.attempt, retry_after)
        elif self.done.counts.read == 0:
            run_status = RunStatus.NO_DATA
        try:
            with self._database.connection() as conn:
                self._record_access(conn, error, job_status)
                jobs.finish(
                    conn,
                    self._claim,
                    job_status=job_status,
                    run_status=run_status,
                    calls=self._source.calls,
                    head_rev=self.done.head,
                    error_code=error.code if error else None,
                    error=str(error) if error else None,
                    backoff=backoff,
                )
        except (psycopg.Error, ConfigurationError) as failure:
            # The row stays claimed until the claim runs out; then the next starter takes the job over.
            error = error or database_error(failure)
            _log.warning("job %s could not be finished: %s", self._claim.job_id, failure)
            return self._report(error, JobStatus.FAILED, RunStatus.FAILED)
        return self._report(error, job_status, run_status)

    def _record_access(self, conn: Connection, error: SyncError | None, job_status: JobStatus) -> None:
        access: Access | None = None
        if isinstance(error, SourceReplaced):
            access = Access.REPLACED
        elif isinstance(error, AccessDenied):
            access = Access.DENIED
        elif isinstance(error, SourceGone) and job_status is JobStatus.DEAD:
            # One look is no proof; the attempts of a job are spread over minutes.
            access = Access.GONE
        if access is not None:
            watermarks.record_visit(
                conn,
                repo_id=self._repo.repo_id,
                job_type=self._job_type,
                access=access,
                detail=str(error)[:2000],
            )

    def _put_back(self, cause: BaseException) -> None:
        """Leave the job as if this attempt had not been. A job that a person started stays stopped."""
        by_a_person = self._claim.trigger in (Trigger.UI, Trigger.CI, Trigger.RUNNER)
        stopped = by_a_person and not isinstance(cause, LeaseHeld)
        try:
            with self._database.connection() as conn:
                jobs.finish(
                    conn,
                    self._claim,
                    job_status=JobStatus.DEAD if stopped else JobStatus.PENDING,
                    run_status=RunStatus.INTERRUPTED,
                    calls=self._source.calls,
                    head_rev=self.done.head,
                    error_code=cause.code if isinstance(cause, SyncError) else Cancelled.code,
                    error=str(cause) or type(cause).__name__,
                )
        except (psycopg.Error, ConfigurationError) as failure:
            _log.warning("job %s could not be put back: %s", self._claim.job_id, failure)

    def _report(self, error: SyncError | None, job_status: JobStatus, run_status: RunStatus) -> JobReport:
        before: int | datetime | None = None
        after: int | datetime | None = None
        if self._database_answers():
            with self._database.connection() as conn:
                stored = jobs.report(conn, self._claim.job_id)
                before, after = stored.watermark_before, stored.watermark_after
        return JobReport(
            job_id=self._claim.job_id,
            run_id=self._claim.run_id,
            repo_id=self._repo.repo_id,
            job_type=self._job_type,
            mode=self._request.mode,
            window=self._claim.window,
            job_status=job_status,
            run_status=run_status,
            counts=self.done.counts,
            calls=self._source.calls,
            batches=self.done.batches,
            seconds=time.monotonic() - self._started,
            waited_seconds=self.done.waited,
            watermark_before=before,
            watermark_after=after,
            head=self.done.head,
            covered=tuple(self.done.covered),
            beyond_head=self.done.beyond_head,
            error_code=error.code if error else None,
            error=str(error) if error else None,
        )

    def _database_answers(self) -> bool:
        try:
            with self._database.connection():
                return True
        except (psycopg.Error, ConfigurationError):
            return False


def _halves(window: RevisionWindow) -> list[RevisionWindow]:
    """Both halves, the first one last: the list is worked off from its end."""
    middle = window.first + len(window) // 2
    return [RevisionWindow(middle, window.end), RevisionWindow(window.first, middle)]


def _is_about_a_row(refused: psycopg.Error) -> bool:
    """True if the database refused what was written, not to work: data, constraint, size, trigger."""
    return (refused.sqlstate or "")[:2] in ("22", "23", "54", "P0")


def _marked(batch: Batch) -> Iterator[RevisionRow]:
    """The rows, each flagged with the details that are owed for it, so that they never count as complete."""
    owed: dict[str, list[str]] = {}
    for item in batch.obligations:
        owed.setdefault(item.natural_key, []).append(f"{item.detail}_unread")
    for row in batch.rows:
        missing = owed.get(str(row.rev_num)) if owed else None
        yield replace(row, flags=(*row.flags, *missing)) if missing else row


def database_error(failure: Exception) -> SyncError:
    """What a failure of the database means for the job: retried later, under a code that says why."""
    if isinstance(failure, SyncError):
        return failure
    line = str(failure).strip().splitlines()[0] if str(failure).strip() else type(failure).__name__
    state = getattr(failure, "sqlstate", None) or "08"
    if state.startswith("53"):
        code = "database_full"
    else:
        code = "database_down" if state.startswith(("08", "57")) else "database_refused"
    return Transient(f"the database refused: {line}", code=code)
