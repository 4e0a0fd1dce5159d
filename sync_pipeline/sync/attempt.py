"""One attempt at one job: its claim, its batches and its end.

Belongs here: what all attempts share. These are the lease of a chunk, the one transaction of a batch, and the
consequence of each kind of error. Does not belong here: reading (:mod:`sync_pipeline.sync.revisions`,
:mod:`~sync_pipeline.sync.commits`, :mod:`~sync_pipeline.sync.merge_requests`), writing rows
(:mod:`sync_pipeline.store`), due times and waits (:mod:`sync_pipeline.policy`), and the choice of the owner
(:mod:`sync_pipeline.sync.engine`).
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

import psycopg

from sync_pipeline.core.errors import (
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
    WatermarkSet,
)
from sync_pipeline.core.model import (
    Access,
    Counts,
    JobReport,
    JobRequest,
    JobStatus,
    JobType,
    Mode,
    Repository,
    RunStatus,
    Traffic,
    Trigger,
    Window,
)
from sync_pipeline.database.pool import Connection, Database
from sync_pipeline.ledger import jobs, leases, watermarks
from sync_pipeline.policy.backoff import ends_the_job, seconds_until_retry
from sync_pipeline.policy.chunking import share_of
from sync_pipeline.settings import Settings
from sync_pipeline.sync.heartbeat import Heartbeat
from sync_pipeline.sync.worker import worker_name

_log = logging.getLogger(__name__)

DEFERRED_PER_VISIT = 20
"""Deferred fetches that one visit tries again."""

# The lease goes to the smallest number first: live syncing overtakes a backfill between two chunks.
_LEASE_PRIORITY = {Mode.INCREMENTAL: 0, Mode.REPAIR: 1, Mode.BACKFILL: 2, Mode.PROBE: 2}
# A completion job lets everything else write first.
_LEASE_PRIORITY_OF_COMPLETION = 3
# The job waits and keeps its attempts, because a retry cannot help yet. A rejected credential is stopped as a
# whole, and live syncing notices when a disabled feature is enabled.
_WAITS = frozenset({"credential", "scope", "disabled"})
# The server or the next owner of the job ended our session, or the reason is unknown.
_ENDED = frozenset({"57P01", "25P03", None})
# A statement ran into its time limit or was cancelled.
_TOO_SLOW = "57014"
# Our own database gave no connection: the job is retried soon and keeps its attempts.
_NO_DATABASE = frozenset({"database_busy", "database_down"})
# Errors that cost no attempt.
_FREE = frozenset({"rate_limit", "throttled"}) | _NO_DATABASE
_GONE = frozenset({"not_found", "no_repository"})
# The server permanently redirects to another address. We send it no credential.
_MOVED = frozenset({"moved", "redirect"})


class Work(Protocol):
    """The reading and storing of one attempt, or of several attempts of one repository together."""

    def run(self) -> None:
        """Read and store everything that the job asks for. Raises SyncError if that is not possible."""
        ...


@dataclass
class Progress:
    """The progress of one attempt. ``failures`` are errors of parts; the other parts went on."""

    counts: Counts = field(default_factory=Counts)
    batches: int = 0
    traffic: Traffic = field(default_factory=Traffic)
    covered: list[Window] = field(default_factory=list)
    failures: list[SyncError] = field(default_factory=list)
    head: int | None = None
    beyond_head: bool = False
    waited: float = 0.0


class Attempt:
    """One attempt at one job: from the claim to the finished ledger rows."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        repo: Repository,
        request: JobRequest,
        claim: jobs.Claim,
        *,
        cancel: threading.Event,
        progress: Callable[[JobType, Counts], None] | None,
    ) -> None:
        self.done = Progress()
        self.database = database
        self.settings = settings if claim.share >= 1.0 else _smaller(settings, claim.share)
        self.repo = repo
        self.request = request
        self.claim = claim
        self.job_type: JobType = request.job_type
        self.error: SyncError | None = None
        # Why it read in another way than usual, in one line.
        self.notice: str | None = None
        self._cancel = cancel
        self._progress = progress
        self._started = time.monotonic()
        # The traffic so far.
        self.meter: Callable[[], Traffic] = lambda: self.done.traffic
        # The lease of the chunk that is written now.
        self.held: leases.Lease | None = None
        # Requests of the next page to write, if pages are prefetched; None: count since the last batch.
        self.page_calls: int | None = None
        self._calls_counted = 0
        self._last_batch = self._started
        self.heartbeat = Heartbeat(database, claim, settings)

    @property
    def is_incremental(self) -> bool:
        """True for live syncing, which has no window of its own."""
        return self.request.mode is Mode.INCREMENTAL

    @property
    def rereads(self) -> bool:
        """True if the attempt also reads windows that are already covered."""
        return self.claim.reread or (self.request.mode is Mode.REPAIR and not self.request.only_deferred)

    # -- writing -----------------------------------------------------------------------------------------

    def since_last_batch(self) -> tuple[int, float]:
        """Requests and seconds of the batch that is written now."""
        calls = self.page_calls
        if calls is None:
            calls = max(0, self.meter().calls - self._calls_counted)
        return calls, time.monotonic() - self._last_batch

    def note_batch(self, counts: Counts, covered: Window | None, calls: int) -> None:
        """Count a batch that was committed; ``covered`` is new coverage."""
        self._calls_counted += calls
        self._last_batch = time.monotonic()
        if self.page_calls is not None:
            self.page_calls = 0
        self.done.counts += counts
        self.done.batches += 1
        if covered is not None:
            self.done.covered.append(covered)
        if self._progress is not None:
            self._progress(self.job_type, self.done.counts)

    @contextmanager
    def fenced(self, lease: leases.Lease | None = None) -> Iterator[Connection]:
        """A transaction in which only the owner of the job can write. All work writes through it.

        To write facts, hold ``lease`` too; the result of a visit needs none. Raises LeaseLost after the lease
        was lost, ClaimLost after a take-over of the job, WatermarkSet after a person set the watermark. They
        are also raised if the new owner ended the transaction.
        """
        try:
            with self._transaction() as conn:
                self._guard(conn, lease)
                yield conn
        except psycopg.OperationalError as broken:
            if broken.sqlstate in _ENDED:
                with suppress(psycopg.Error, ConfigurationError), self._transaction() as conn:
                    self._guard(conn, lease)
            raise

    def _guard(self, conn: Connection, lease: leases.Lease | None) -> None:
        # In the order in which a new owner takes them over.
        jobs.guard(conn, self.claim)
        if lease is not None:
            leases.guard(conn, lease)
        watermarks.lock_generation(conn, self.repo.repo_id, self.job_type, self.claim.generation)

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        with self.database.connection() as conn, conn.transaction():
            yield conn

    @contextmanager
    def lease(self) -> Iterator[leases.Lease]:
        """Hold the lease for one chunk. Waits for it up to the setting ``max_wait_seconds``, then raises
        LeaseHeld, which names the holder."""
        settings = self.settings
        started = time.monotonic()
        who = f"{worker_name()} ({self.request.mode} job {self.claim.job_id})"
        try:
            while True:
                self.stop_if_asked()
                with self._transaction() as conn:
                    # Without its job an attempt must not raise the fence of the next owner.
                    jobs.guard(conn, self.claim)
                    lease = leases.acquire(
                        conn,
                        repo_id=self.repo.repo_id,
                        job_type=self.job_type,
                        waiter=self.claim.token,
                        who=who,
                        priority=_LEASE_PRIORITY_OF_COMPLETION
                        if self.request.only_deferred
                        else _LEASE_PRIORITY[self.request.mode],
                        length=settings.jobs.lease_seconds,
                    )
                    holder = leases.holder(conn, self.repo.repo_id, self.job_type) if lease is None else None
                if lease is not None:
                    break
                if time.monotonic() - started > settings.jobs.max_wait_seconds:
                    raise LeaseHeld(
                        f"{holder.who if holder else 'somebody'} writes for {self.repo.spec}; "
                        f"waited {settings.jobs.max_wait_seconds:.0f} s, try again later"
                    )
                self._cancel.wait(random.uniform(0.1, 0.5))
        except BaseException:
            self._tidy_up(lambda conn: leases.stop_waiting(conn, self.claim.token))
            raise
        self.done.waited += time.monotonic() - started
        self.held = lease
        self.heartbeat.hold(lease)
        try:
            yield lease
        finally:
            self.held = None
            self.heartbeat.hold(None)
            self._tidy_up(lambda conn: leases.release(conn, lease))

    def _tidy_up(self, what: Callable[[Connection], None]) -> None:
        """Run ``what``, an optional clean-up of something that would expire anyway. An error of the database
        is ignored, so that it hides no other error."""
        with suppress(psycopg.Error, ConfigurationError), self.database.connection() as conn:
            what(conn)

    def stop_if_asked(self) -> None:
        """Raises Cancelled after a request to stop, ClaimLost once the heartbeat lost the claim."""
        if self._cancel.is_set():
            raise Cancelled("stopped between two batches; what was committed stays")
        if self.heartbeat.lost.is_set():
            with self.database.connection() as conn:
                raise jobs.lost(conn, self.claim)

    # -- the end -----------------------------------------------------------------------------------------

    def finish(self, error: SyncError | None) -> JobReport:
        """Write how the attempt ended and report it. The error that counts is the attempt's own one, else
        ``error``, which ended all of the work, else that of the first failed part."""
        error = self.error or error or next(iter(self.done.failures), None)
        if error is not None and _waits(error):
            # The job waits for the next starter and keeps its attempts.
            run_status = RunStatus.INTERRUPTED if isinstance(error, LeaseHeld) else RunStatus.FAILED
            return self._report(error, self.release_job(error, run_status), run_status)
        job_status, run_status, backoff, free = JobStatus.COMPLETED, RunStatus.COMPLETED, 0.0, False
        if error is not None:
            run_status = RunStatus.FAILED
            # Long work that is interrupted often still ends, as long as each attempt makes progress.
            gets_on = bool(self.done.covered) or self.done.counts.inserted > 0
            free = error.code in _FREE or (isinstance(error, Transient) and gets_on)
            # A failed probe is not retried by the scheduler.
            free = free and self.request.mode is not Mode.PROBE
            exhausted = self.claim.attempt >= self.claim.max_attempts and not free
            job_status = (
                JobStatus.DEAD if ends_the_job(error, self.request.mode) or exhausted else JobStatus.FAILED
            )
            retry_after = error.retry_after if isinstance(error, Transient) else None
            first = gets_on or error.code in _NO_DATABASE
            backoff = seconds_until_retry(error.code, 1 if first else self.claim.failures + 1, retry_after)
        elif self.done.counts.read == 0:
            run_status = RunStatus.NO_DATA
        try:
            with self._transaction() as conn:
                owned = jobs.finish(
                    conn,
                    self.claim,
                    job_status=job_status,
                    run_status=run_status,
                    traffic=self.meter(),
                    head_rev=self.done.head,
                    error_code=error.code if error else None,
                    error=str(error) if error else None,
                    backoff=backoff,
                    refund=free,
                    notice=self.notice,
                )
                if owned:
                    watermarks.lock_generation(conn, self.repo.repo_id, self.job_type, self.claim.generation)
                    self._record_access(conn, error, job_status)
                elif not isinstance(error, LeaseLost):
                    error = jobs.lost(conn, self.claim)
        except WatermarkSet as reset:
            # Rolled back: the job is still ours, and what it read belongs to a watermark that was reset.
            return self._report(reset, self.release_job(reset, RunStatus.FAILED), RunStatus.FAILED)
        except (psycopg.Error, ConfigurationError) as failure:
            # The row stays claimed until the claim runs out; then the next starter takes the job over.
            error = error or database_error(failure)
            _log.warning("job %s could not be finished: %s", self.claim.job_id, failure)
            return self._report(error, JobStatus.FAILED, RunStatus.FAILED)
        if not owned:
            # The job belongs to another attempt, which also ends it.
            return self._report(error, JobStatus.FAILED, RunStatus.FAILED)
        return self._report(error, job_status, run_status)

    def _record_access(self, conn: Connection, error: SyncError | None, job_status: JobStatus) -> None:
        access: Access | None = None
        if isinstance(error, SourceReplaced):
            access = Access.REPLACED
        elif error is not None and error.code == "moved":
            access = Access.MOVED
        elif isinstance(error, AccessDenied):
            access = Access.DENIED
        elif isinstance(error, Permanent) and error.code in _MOVED:
            access = Access.MOVED
        elif (
            isinstance(error, SourceGone)
            and error.code in _GONE
            and job_status is JobStatus.DEAD
            and not self.request.is_one_off
        ):
            # One 404 is no proof; the attempts of a job are spread over minutes.
            access = Access.GONE
        if access not in (None, Access.REPLACED):
            known = watermarks.get(conn, self.repo.repo_id, self.job_type).access
            # Only a reading of its whole history ends the state REPLACED.
            access = None if known is Access.REPLACED else access
        if access is not None:
            watermarks.record_visit(
                conn,
                repo_id=self.repo.repo_id,
                job_type=self.job_type,
                access=access,
                detail=str(error)[:2000],
            )

    def release_job(self, cause: BaseException, run_status: RunStatus = RunStatus.INTERRUPTED) -> JobStatus:
        """Undo the claim as if this attempt had not been made. A job that a person started and stopped stays
        stopped. Returns the new status of the job."""
        by_a_person = self.claim.trigger in (Trigger.UI, Trigger.CI, Trigger.RUNNER)
        stopped = self.request.is_one_off or (by_a_person and not _waits(cause))
        status = JobStatus.DEAD if stopped else JobStatus.PENDING
        try:
            with self.database.connection() as conn:
                jobs.finish(
                    conn,
                    self.claim,
                    job_status=status,
                    run_status=run_status,
                    traffic=self.meter(),
                    head_rev=self.done.head,
                    error_code=cause.code if isinstance(cause, SyncError) else Cancelled.code,
                    error=str(cause) or type(cause).__name__,
                )
        except (psycopg.Error, ConfigurationError) as failure:
            _log.warning("job %s could not be put back: %s", self.claim.job_id, failure)
        return status

    def _report(self, error: SyncError | None, job_status: JobStatus, run_status: RunStatus) -> JobReport:
        before: int | datetime | None = None
        after: int | datetime | None = None
        if self._is_database_up():
            # The job may be gone with a database that was restored.
            with suppress(ClaimLost), self.database.connection() as conn:
                stored = jobs.report(conn, self.claim.job_id)
                before, after = stored.watermark_before, stored.watermark_after
        return JobReport(
            job_id=self.claim.job_id,
            run_id=self.claim.run_id,
            repo_id=self.repo.repo_id,
            job_type=self.job_type,
            mode=self.request.mode,
            window=self.claim.window,
            job_status=job_status,
            run_status=run_status,
            counts=self.done.counts,
            traffic=self.meter(),
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

    def _is_database_up(self) -> bool:
        try:
            with self.database.connection():
                return True
        except (psycopg.Error, ConfigurationError):
            return False


def _waits(cause: BaseException) -> bool:
    """True if the job waits and keeps its attempts, because the job itself did not cause ``cause``."""
    if isinstance(cause, LeaseHeld | WatermarkSet):
        return True
    return isinstance(cause, SyncError) and cause.code in _WAITS


def _smaller(settings: Settings, share: float) -> Settings:
    """The settings with chunks of a share of the usual size, for a source in trouble."""
    rows, revisions = share_of(settings.chunks.rows, share), share_of(settings.chunks.revisions, share)
    return settings.model_copy(update={"chunk_rows": rows, "chunk_revisions": revisions})


def execute(attempts: Sequence[Attempt], work: Callable[[], Work]) -> list[JobReport]:
    """Do the work that ``work`` makes, for all of ``attempts``; finish each in the ledger, and report. See
    :meth:`Syncer.run`."""
    error: SyncError | None = None
    with ExitStack() as stack:
        for attempt in attempts:
            stack.enter_context(attempt.heartbeat)
        try:
            work().run()
        except Cancelled as stopped:
            for attempt in attempts:
                attempt.release_job(stopped)
            raise
        except SyncError as failure:
            error = failure
        except psycopg.Error as failure:
            error = database_error(failure)
        except Exception as failure:
            # A defect of ours costs an attempt, so that it is not repeated for ever.
            _log.exception("job %s failed in an unforeseen way", attempts[0].claim.job_id)
            error = SyncError(f"{type(failure).__name__}: {failure}", code="exception")
        except BaseException as interruption:
            for attempt in attempts:
                attempt.release_job(interruption)
            raise
        return [attempt.finish(error) for attempt in attempts]


def is_about_a_row(refused: psycopg.Error) -> bool:
    """True if the database rejected the row for its data, a constraint, its size or a trigger."""
    return (refused.sqlstate or "")[:2] in ("22", "23", "54", "P0")


def database_error(failure: Exception) -> SyncError:
    """The error of the job after a failure of the database: Transient, with a code for the reason."""
    if isinstance(failure, SyncError):
        return failure
    line = str(failure).strip().splitlines()[0] if str(failure).strip() else type(failure).__name__
    state = getattr(failure, "sqlstate", None) or "08"
    if state.startswith("53"):
        code = "database_full"
    elif state == _TOO_SLOW:
        # About this statement, which may never be fast enough: it costs an attempt.
        code = "database_refused"
    else:
        code = "database_down" if state.startswith(("08", "57")) else "database_refused"
    return Transient(f"the database refused: {line}", code=code)
