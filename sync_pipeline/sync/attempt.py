"""One attempt at one job: the claim kept alive, batches written, the end recorded.

Belongs here: what every attempt has in common, whatever it reads: the lease of a chunk, the one transaction
of a batch, what follows from each kind of error. Does not belong here: what is read and in which order
(:mod:`sync_pipeline.sync.revisions`, :mod:`~sync_pipeline.sync.commits`,
:mod:`~sync_pipeline.sync.merge_requests`), how rows are written (:mod:`sync_pipeline.store`), when something
is due or how long to wait (:mod:`sync_pipeline.policy`), who gets the job (:mod:`sync_pipeline.sync.engine`).
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Protocol, TypeVar

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
    WatermarkSet,
)
from sync_pipeline.model import (
    Access,
    Counts,
    DeferredFetch,
    Evidence,
    JobReport,
    JobRequest,
    JobStatus,
    JobType,
    Mode,
    QuarantinedRow,
    Repository,
    RunStatus,
    Traffic,
    Trigger,
    Window,
)
from sync_pipeline.policy.backoff import ends_the_job, seconds_until_retry
from sync_pipeline.policy.chunking import share_of
from sync_pipeline.settings import Settings
from sync_pipeline.store import jobs, leases, quarantine, watermarks
from sync_pipeline.store.database import Connection, Database
from sync_pipeline.sync.heartbeat import Heartbeat
from sync_pipeline.sync.worker import worker_name

_log = logging.getLogger(__name__)

OBLIGATIONS_PER_RUN = 20
"""Owed details that one visit tries again."""

_PAYLOAD_BYTES = 1 << 20
"""What quarantine keeps of a row that the database refuses."""

Row = TypeVar("Row")

# Smaller goes first at the lease: live syncing passes a backfill between two of its chunks.
_LEASE_PRIORITY = {Mode.INCREMENTAL: 0, Mode.REPAIR: 1, Mode.BACKFILL: 2, Mode.PROBE: 2}
# Not the job's fault and not to be tried again before something else changed: it waits without losing an
# attempt. The credential stops as a whole, a switched-off feature is asked about by live syncing.
_WAITS = frozenset({"credential", "scope", "disabled"})
# The server, or the next owner of the job, ended our session; or nobody knows what did.
_ENDED = frozenset({"57P01", "25P03", None})
# A statement ran into its time limit, or somebody cancelled it.
_TOO_SLOW = "57014"
# Our own database gave no connection: the job waits a moment and keeps its attempts, however often.
_NO_DATABASE = frozenset({"database_busy", "database_down"})
# Says nothing about the job.
_FREE = frozenset({"rate_limit", "throttled"}) | _NO_DATABASE
_GONE = frozenset({"not_found", "no_repository"})
# The server names another address for good, which gets no credential of ours.
_MOVED = frozenset({"moved", "redirect"})


class Work(Protocol):
    """What one attempt, or a few of the same repository together, read and store."""

    def run(self) -> None:
        """Do it. Raises SyncError where nothing more can be done."""
        ...


@dataclass
class Progress:
    """What one attempt has done so far. ``failures`` are of parts that others do not depend on."""

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
        progress: Callable[[Counts], None] | None,
    ) -> None:
        self.done = Progress()
        self.database = database
        self.settings = settings if claim.share >= 1.0 else _smaller(settings, claim.share)
        self.repo = repo
        self.request = request
        self.claim = claim
        self.job_type: JobType = request.job_type
        self.error: SyncError | None = None
        self._cancel = cancel
        self._progress = progress
        self._started = time.monotonic()
        # What was sent to the source so far.
        self.meter: Callable[[], Traffic] = lambda: self.done.traffic
        # Requests of the page that is written next, where pages are read ahead; None: since the last batch.
        self.page_calls: int | None = None
        self._calls_counted = 0
        self._last_batch = self._started
        self.heartbeat = Heartbeat(
            database,
            claim,
            claim_length=settings.jobs.claim_seconds,
            claim_renew=settings.jobs.claim_renew_seconds,
            lease_length=settings.jobs.lease_seconds,
            lease_renew=settings.jobs.lease_renew_seconds,
            max_failures=settings.worker.max_renew_failures,
        )

    @property
    def is_incremental(self) -> bool:
        """True for live syncing, which has no window of its own."""
        return self.request.mode is Mode.INCREMENTAL

    @property
    def rereads(self) -> bool:
        """True if what is covered is read as well."""
        return self.claim.reread or self.request.mode is Mode.REPAIR

    # -- writing -----------------------------------------------------------------------------------------

    def write(
        self,
        lease: leases.Lease,
        store: Callable[[Connection, int], Counts],
        *,
        window: Window,
        covered: Sequence[Window] = (),
        quarantined: Sequence[QuarantinedRow] = (),
        obligations: Sequence[DeferredFetch] = (),
        evidence: Evidence | None = None,
    ) -> Counts:
        """One batch, one transaction: guards, facts, quarantine, obligations, ledger, coverage.

        ``store`` writes the facts, given the connection and the number of the batch. ``window`` is what was
        asked for, ``covered`` what is complete with this batch, ``evidence`` where it was read.
        """
        self.stop_if_asked()
        repo_id, job_type, claim = self.repo.repo_id, self.job_type, self.claim
        news: list[Window] = []
        calls = self.page_calls
        if calls is None:
            calls = max(0, self.meter().calls - self._calls_counted)
        with self.fenced(lease) as conn:
            batch_id = jobs.next_batch(conn)
            counts = store(conn, batch_id)
            set_aside = quarantine.quarantine(
                conn, repo_id=repo_id, job_type=job_type, batch_id=batch_id, rows=quarantined
            )
            quarantine.owe(conn, repo_id=repo_id, job_type=job_type, obligations=obligations)
            counts = replace(counts, read=counts.read + set_aside, quarantined=set_aside)
            for piece in covered:
                if watermarks.extend(
                    conn,
                    repo_id=repo_id,
                    job_type=job_type,
                    window=piece,
                    actor=claim.actor,
                    reason=claim.reason,
                    run_id=claim.run_id,
                    batch_id=batch_id,
                ):
                    news.append(piece)
            jobs.add_batch(
                conn,
                claim,
                batch_id=batch_id,
                fence=lease.fence,
                window=window,
                covers=bool(covered),
                counts=counts,
                owed=len(obligations),
                evidence=evidence,
                calls=calls,
                seconds=time.monotonic() - self._last_batch,
            )
        self._calls_counted += calls
        self._last_batch = time.monotonic()
        if self.page_calls is not None:
            self.page_calls = 0
        self.done.counts += counts
        self.done.batches += 1
        self.done.covered += news
        if self._progress is not None:
            self._progress(self.done.counts)
        return counts

    @contextmanager
    def fenced(self, lease: leases.Lease | None = None) -> Iterator[Connection]:
        """A transaction in which only the owner of the job can write. All work writes through it.

        Facts need the ``lease`` too; the result of a visit does not. Raises LeaseLost after the lease was
        lost, ClaimLost after a take-over of the job, WatermarkSet after a person set the watermark. The same
        holds where the new owner ended the transaction.
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

    def write_rows(
        self,
        lease: leases.Lease,
        rows: Sequence[Row],
        store: Callable[[Connection, int, Sequence[Row]], Counts],
        *,
        key: Callable[[Row], str],
        payload: Callable[[Row], bytes],
        window: Window,
        evidence: Evidence,
        covered: Sequence[Window] = (),
        quarantined: Sequence[QuarantinedRow] = (),
        obligations: Sequence[DeferredFetch] = (),
        also: Callable[[Connection, int], None] = lambda conn, batch_id: None,
    ) -> None:
        """A page of rows, in one transaction; in smaller ones where the database refuses a row, which goes to
        quarantine under its ``key`` and with its ``payload``.

        ``store`` writes some of the rows. ``also`` is done in the last transaction, with everything that says
        that the page is complete.
        """
        todo: list[tuple[Row, ...]] = [tuple(rows)]
        refused_rows: list[QuarantinedRow] = []
        while todo:
            part = todo.pop()
            last = not todo

            def write(
                conn: Connection, batch_id: int, part: tuple[Row, ...] = part, last: bool = last
            ) -> Counts:
                counts = store(conn, batch_id, part) if part else Counts()
                if last:
                    also(conn, batch_id)
                return counts

            try:
                self.write(
                    lease,
                    write,
                    window=window,
                    covered=covered if last else (),
                    quarantined=[*quarantined, *refused_rows] if last else (),
                    obligations=obligations if last else (),
                    evidence=noted(evidence, part, key),
                )
            except psycopg.Error as refused:
                if not part or not is_about_a_row(refused):
                    raise
                if len(part) > 1:
                    middle = len(part) // 2
                    todo += [part[middle:], part[:middle]]
                    continue
                detail = str(database_error(refused))
                kept = payload(part[0])[:_PAYLOAD_BYTES]
                refused_rows.append(QuarantinedRow(key(part[0]), "unstorable", detail, kept))
                if last:
                    todo.append(())

    @contextmanager
    def lease(self) -> Iterator[leases.Lease]:
        """The lease for one chunk. Waits for it, politely, up to the limit; then says who has it."""
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
                        priority=_LEASE_PRIORITY[self.request.mode],
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
        self.heartbeat.hold(lease)
        try:
            yield lease
        finally:
            self.heartbeat.hold(None)
            self._tidy_up(lambda conn: leases.release(conn, lease))

    def _tidy_up(self, what: Callable[[Connection], None]) -> None:
        """Do what ends by itself anyway, unless the database is away: that must hide no other error."""
        with suppress(psycopg.Error, ConfigurationError), self.database.connection() as conn:
            what(conn)

    def stop_if_asked(self) -> None:
        """Raises Cancelled after somebody asked to stop, ClaimLost once the heartbeat lost the claim."""
        if self._cancel.is_set():
            raise Cancelled("stopped between two batches; what was committed stays")
        if self.heartbeat.lost.is_set():
            with self.database.connection() as conn:
                raise jobs.lost(conn, self.claim)

    # -- the end -----------------------------------------------------------------------------------------

    def finish(self, error: SyncError | None) -> JobReport:
        """Write how the attempt ended and report it. Its own error comes before ``error``, which ended all of
        the work, and before the first failure of a part."""
        error = self.error or error or next(iter(self.done.failures), None)
        if error is not None and _waits(error):
            # The job waits for the next starter and keeps its attempts.
            run_status = RunStatus.INTERRUPTED if isinstance(error, LeaseHeld) else RunStatus.FAILED
            return self._report(error, self.release_job(error, run_status), run_status)
        job_status, run_status, backoff, free = JobStatus.COMPLETED, RunStatus.COMPLETED, 0.0, False
        if error is not None:
            run_status = RunStatus.FAILED
            # Long work that is interrupted again and again ends by itself, as long as it gets on.
            gets_on = bool(self.done.covered) or self.done.counts.inserted > 0
            free = error.code in _FREE or (isinstance(error, Transient) and gets_on)
            # Nobody takes up a probe but whoever asks for it again.
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
                    traffic=self.done.traffic,
                    head_rev=self.done.head,
                    error_code=error.code if error else None,
                    error=str(error) if error else None,
                    backoff=backoff,
                    refund=free,
                )
                if owned:
                    watermarks.lock_generation(conn, self.repo.repo_id, self.job_type, self.claim.generation)
                    self._record_access(conn, error, job_status)
                elif not isinstance(error, LeaseLost):
                    error = jobs.lost(conn, self.claim)
        except WatermarkSet as reset:
            # Rolled back with it: the job is still ours, and what it found is of a state that was forgotten.
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
            # One look is no proof; the attempts of a job are spread over minutes.
            access = Access.GONE
        if access not in (None, Access.REPLACED):
            known = watermarks.get(conn, self.repo.repo_id, self.job_type).access
            # Only the proof of its whole history lifts that, and another trouble is none.
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
        """Leave the job as if this attempt had not been. What a person started and somebody stopped stays
        stopped. Returns what the job is now."""
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
                    traffic=self.done.traffic,
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
        if self._database_answers():
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
            traffic=self.done.traffic,
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
            with self.database.connection():
                return True
        except (psycopg.Error, ConfigurationError):
            return False


def _waits(cause: BaseException) -> bool:
    """True if the job waits and keeps its attempts, because ``cause`` says nothing about it."""
    if isinstance(cause, LeaseHeld | WatermarkSet):
        return True
    return isinstance(cause, SyncError) and cause.code in _WAITS


def _smaller(settings: Settings, share: float) -> Settings:
    """The settings with chunks of a share of the usual size: what a source in trouble is asked for. The same
    is read in the end."""
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
            # A defect of ours costs an attempt, so that it cannot repeat for ever.
            _log.exception("job %s failed in an unforeseen way", attempts[0].claim.job_id)
            error = SyncError(f"{type(failure).__name__}: {failure}", code="exception")
        except BaseException as interruption:
            for attempt in attempts:
                attempt.release_job(interruption)
            raise
        return [attempt.finish(error) for attempt in attempts]


def noted(evidence: Evidence, rows: Sequence[Row], key: Callable[[Row], str]) -> Evidence:
    """``evidence`` of a batch that holds ``rows``, by their keys."""
    found = replace(evidence)
    if rows:
        found.note(key(rows[0]), key(rows[-1]))
    return found


def is_about_a_row(refused: psycopg.Error) -> bool:
    """True if the database refused what was written, not to work: data, constraint, size, trigger."""
    return (refused.sqlstate or "")[:2] in ("22", "23", "54", "P0")


def database_error(failure: Exception) -> SyncError:
    """What a failure of the database means for the job: retried later, under a code that says why."""
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
