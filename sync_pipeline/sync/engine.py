"""From requests to reports: make or find the jobs, claim them or wait for their owner, run an attempt.

Belongs here: the owner of a job. :mod:`sync_pipeline.sync.attempt` and the work of each job type have the
attempt. :mod:`sync_pipeline.policy` decides when something is due.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

import psycopg

from sync_pipeline.core import catalog
from sync_pipeline.core.errors import Cancelled, ConfigurationError, LeaseHeld
from sync_pipeline.core.model import (
    Counts,
    JobReport,
    JobRequest,
    JobStatus,
    JobType,
    Mode,
    Repository,
    Trigger,
)
from sync_pipeline.core.windows import without
from sync_pipeline.database import migrations
from sync_pipeline.database.pool import Connection, Database
from sync_pipeline.ledger import jobs, leases, pauses, repos
from sync_pipeline.settings import Settings
from sync_pipeline.sync import configuration, lost
from sync_pipeline.sync.attempt import Attempt, Work, database_error, execute
from sync_pipeline.sync.job_types import comparison, reading
from sync_pipeline.sync.readers import Readers
from sync_pipeline.sync.reconcile import ProbeWork, RepairWork
from sync_pipeline.sync.remap import RemapWork
from sync_pipeline.sync.retry import RetryWork
from sync_pipeline.sync.revisions import SourceState
from sync_pipeline.sync.source import Sources
from sync_pipeline.sync.worker import is_gone, process_identity, worker_name

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Claimed:
    """A request whose job is ours now, after ``waited`` seconds."""

    request: JobRequest
    claim: jobs.Claim
    waited: float


class Syncer:
    """Runs jobs. Safe to share between threads; each run uses connections of its own.

    ``sources`` make the readers; by default those of the settings.
    """

    def __init__(self, database: Database, settings: Settings, sources: Sources | None = None) -> None:
        self._database = database
        self._settings = settings
        self._sources: Sources = sources or Readers(settings, database)
        self._states: dict[int, SourceState] = {}

    def run(
        self,
        request: JobRequest,
        *,
        cancel: threading.Event | None = None,
        progress: Callable[[Counts], None] | None = None,
    ) -> JobReport:
        """Make or find the job for ``request``, do it, and say how it ended.

        A failed sync is a report, not an exception. If somebody else works on the job, waits up to the
        setting ``max_wait_seconds`` and then reports that job's result, or who holds it.

        Raises Cancelled after ``cancel`` was set and the job was returned. Raises ConfigurationError for an
        unknown or retired repository, and for a database that is unavailable or was migrated since this
        process began.
        """
        by_type = None if progress is None else lambda job_type, counts: progress(counts)
        return self.run_together([request], cancel=cancel, progress=by_type)[0]

    def run_together(
        self,
        requests: Sequence[JobRequest],
        *,
        cancel: threading.Event | None = None,
        progress: Callable[[JobType, Counts], None] | None = None,
    ) -> list[JobReport]:
        """As :meth:`run`, for requests of one repository in one mode and window whose job types share a
        reader (merge requests and reviews). The claimed ones are read once. One report per request, in order.

        A job of another process does not delay the others: it is waited for afterwards.
        """
        cancel = cancel or threading.Event()
        try:
            return self._run(requests, cancel, progress)
        except psycopg.Error as failure:
            raise database_error(failure) from None

    def _run(
        self,
        requests: Sequence[JobRequest],
        cancel: threading.Event,
        progress: Callable[[JobType, Counts], None] | None,
    ) -> list[JobReport]:
        with self._database.connection() as conn:
            migrations.require_current(conn)
            repo = repos.get(conn, requests[0].repo_id)
            if not requests[0].from_raw:
                catalog.require_active(repo)
            jobs_of = [(request, self._enqueue(conn, repo, request)) for request in requests]
        reports: dict[UUID, JobReport] = {}
        ready: list[_Claimed] = []
        held: list[tuple[JobRequest, UUID]] = []
        for request, job_id in jobs_of:
            got = self._claim(job_id, request, cancel, wait=len(requests) == 1)
            if isinstance(got, JobReport):
                reports[job_id] = got
            elif got is None:
                held.append((request, job_id))
            else:
                ready.append(got)
        if ready:
            reports |= {r.job_id: r for r in self._attempt(repo, ready, cancel, progress)}
        for request, job_id in held:
            got = self._claim(job_id, request, cancel, wait=True)
            assert got is not None
            if isinstance(got, _Claimed):
                (got,) = self._attempt(repo, [got], cancel, progress)
            reports[job_id] = got
        return [self._with_rest(one, reports[job_id], cancel, progress) for one, job_id in jobs_of]

    def _with_rest(
        self,
        request: JobRequest,
        report: JobReport,
        cancel: threading.Event,
        progress: Callable[[JobType, Counts], None] | None,
    ) -> JobReport:
        """``report``, with the rest of a person's request. The scheduler may have cut the found job before it
        was claimed; the rest of the window is then another job.
        """
        if _is_by_itself(request) or not (request.window and report.window and report.succeeded):
            return report
        for left in without(request.window, [report.window]):
            (rest,) = self._run([replace(request, window=left, job_id=None)], cancel, progress)
            report = replace(
                rest,
                window=request.window,
                counts=report.counts + rest.counts,
                traffic=report.traffic + rest.traffic,
                batches=report.batches + rest.batches,
                seconds=report.seconds + rest.seconds,
                waited_seconds=report.waited_seconds + rest.waited_seconds,
                watermark_before=report.watermark_before,
                covered=(*report.covered, *rest.covered),
            )
            if not report.succeeded:
                break
        return report

    def _enqueue(self, conn: Connection, repo: Repository, request: JobRequest) -> UUID:
        leases.ensure(conn, request.repo_id, request.job_type)
        lost.expire_abandoned_jobs(conn, request.repo_id, request.job_type)
        if request.job_id is not None:
            return request.job_id
        try:
            return jobs.enqueue(
                conn,
                request,
                max_attempts=1 if request.is_one_off else self._settings.jobs.max_attempts,
                config_hash=configuration.keep(conn, self._settings),
            )
        except LookupError:
            raise ConfigurationError(
                f"{repo.spec} has no {request.job_type}; see `scm-sync repo show {repo.spec}`"
            ) from None

    def _attempt(
        self,
        repo: Repository,
        claimed: Sequence[_Claimed],
        cancel: threading.Event,
        progress: Callable[[JobType, Counts], None] | None,
    ) -> list[JobReport]:
        attempts = [
            Attempt(
                self._database,
                self._settings,
                repo,
                one.request,
                one.claim,
                cancel=cancel,
                progress=progress,
            )
            for one in claimed
        ]
        for attempt, one in zip(attempts, claimed, strict=True):
            attempt.done.waited = one.waited
        return execute(attempts, lambda: self._work(attempts, cancel))

    def _work(self, attempts: Sequence[Attempt], cancel: threading.Event) -> Work:
        if attempts[0].request.from_raw:
            return RemapWork(attempts[0])
        if attempts[0].request.mode is Mode.PROBE:
            return ProbeWork(attempts[0], comparison(attempts[0], self._sources, cancel.is_set))
        work = reading(attempts, self._sources, cancel.is_set, self._states)
        if attempts[0].request.only_differences:
            return RepairWork(attempts[0], work)
        return RetryWork(attempts[0], work) if attempts[0].request.quarantine else work

    def _max_running(self, request: JobRequest) -> int | None:
        """How many others may be at work; what a person asked for finds room."""
        if not _is_by_itself(request) or request.mode is Mode.PROBE:
            return None
        return self._settings.scheduler.max_running

    def _claim(
        self, job_id: UUID, request: JobRequest, cancel: threading.Event, *, wait: bool
    ) -> _Claimed | JobReport | None:
        """Claim the job; or wait for the one who has it, and take its result; or, without ``wait``, None."""
        settings = self._settings
        started = time.monotonic()
        deadline = started + settings.jobs.max_wait_seconds
        gone: UUID | None = None
        waiting = False
        while True:
            with self._database.connection() as conn:
                # The job may have waited for hours.
                migrations.require_current(conn)
                if waiting and jobs.state(conn, job_id).status is JobStatus.FAILED:
                    # The attempt that was waited for is the result; the next one has its time.
                    return replace(jobs.report(conn, job_id), waited_seconds=time.monotonic() - started)
                claim = jobs.claim(
                    conn,
                    job_id,
                    worker=worker_name(),
                    process=process_identity(),
                    length=settings.jobs.claim_seconds,
                    dagster_run_id=request.dagster_run_id,
                    gone=gone,
                    max_running=self._max_running(request),
                    # Kept when the job was made or found, which may be made with other settings.
                    config_hash=configuration.hash_of(self._settings),
                )
                if claim is not None:
                    return _Claimed(request, claim, time.monotonic() - started)
                state = jobs.state(conn, job_id)
                pause = pauses.of_job(conn, job_id)
                if pause is not None and state.status in (JobStatus.PENDING, JobStatus.FAILED):
                    end = f"until {pause.until:%Y-%m-%d %H:%M} UTC" if pause.until else "until it is resumed"
                    return replace(
                        jobs.report(conn, job_id),
                        error_code="paused",
                        error=f"{pause.actor} paused this ({pause.scope}) {end}: {pause.reason}; "
                        "see `scm-sync admin pauses`",
                    )
                done = state.status in (JobStatus.COMPLETED, JobStatus.DEAD)
                if done or (waiting and state.status is JobStatus.FAILED):
                    return replace(jobs.report(conn, job_id), waited_seconds=time.monotonic() - started)
                until = f"{state.claim_expires_at:%H:%M:%S} UTC" if state.claim_expires_at else "soon"
                most = self._max_running(request)
                why = (
                    f"{state.claimed_by} works on this job until {until} at least"
                    if state.status is JobStatus.RUNNING or most is None
                    else f"{most} others are at work (scheduler_max_running)"
                )
                if time.monotonic() >= deadline:
                    return replace(
                        jobs.report(conn, job_id),
                        waited_seconds=time.monotonic() - started,
                        error_code=LeaseHeld.code,
                        error=f"{why}; waited {settings.jobs.max_wait_seconds:.0f} s, try again later",
                    )
            if is_gone(state.claimed_process) and gone != state.claim_token:
                _log.warning("%s, who worked on this job, is gone; taking it over", state.claimed_by)
                gone = state.claim_token
                continue
            if not wait:
                return None
            if not waiting:
                what = f"{request.job_type} of repository {request.repo_id}"
                _log.warning("%s: %s; waiting, %.0f s at most", what, why, settings.jobs.max_wait_seconds)
                waiting = True
            if cancel.wait(random.uniform(0.2, 1.0)):
                raise Cancelled("stopped while waiting for a job that somebody else works on")


def _is_by_itself(request: JobRequest) -> bool:
    """Whether a schedule or a registration requested it, and no person."""
    return request.trigger in (Trigger.SENSOR, Trigger.WORKER, Trigger.REGISTRATION)
