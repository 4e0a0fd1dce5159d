"""From a request to a report: make or find the job, claim it or wait for its owner, run an attempt.

Belongs here: who works on a job. What one attempt does is in :mod:`sync_pipeline.sync.attempt`; when
something is due is decided in :mod:`sync_pipeline.policy`.
"""

from __future__ import annotations

import hashlib
import json
import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from uuid import UUID

import psycopg

from sync_pipeline.errors import (
    Cancelled,
    ConfigurationError,
    LeaseHeld,
)
from sync_pipeline.model import (
    Counts,
    JobReport,
    JobRequest,
    JobStatus,
    JobType,
    Lifecycle,
    Repository,
)
from sync_pipeline.settings import Settings
from sync_pipeline.store import jobs, leases, repos
from sync_pipeline.store.database import Connection, Database
from sync_pipeline.sync.attempt import Attempt, Look, database_error
from sync_pipeline.sync.readers import reader_factory
from sync_pipeline.sync.source import SourceFactory
from sync_pipeline.sync.worker import is_gone, process_identity, worker_name

_log = logging.getLogger(__name__)

# Settings that shape what a job does; their hash is kept with the job.
_SHAPING = ("chunk_revisions", "fingerprint_revisions", "sweep_recent_revisions", "svn_max_answer_bytes")


def settings_hash(settings: Settings) -> str:
    """Short hash of the settings that shape a job, to see later which configuration produced a row."""
    shaping = {name: getattr(settings, name) for name in _SHAPING}
    return hashlib.sha256(json.dumps(shaping, sort_keys=True).encode()).hexdigest()[:16]


class Syncer:
    """Runs jobs. Safe to share between threads; each :meth:`run` uses connections of its own."""

    def __init__(
        self, database: Database, settings: Settings, source_factory: SourceFactory | None = None
    ) -> None:
        self._database = database
        self._settings = settings
        self._source_factory = source_factory or reader_factory(settings)
        self._looks: dict[int, Look] = {}

    def run(
        self,
        request: JobRequest,
        *,
        cancel: threading.Event | None = None,
        progress: Callable[[Counts], None] | None = None,
    ) -> JobReport:
        """Make or find the job for ``request``, do it, and say how it ended.

        A failed sync is a report, not an exception. If somebody else works on the job, waits up to the
        setting ``wait_limit`` and then reports that job's result, or who holds it.

        Raises Cancelled after ``cancel`` was set and the job was put back; ConfigurationError if the
        request cannot be served at all (unknown or retired repository, no database).
        """
        cancel = cancel or threading.Event()
        try:
            return self._run(request, cancel, progress)
        except psycopg.Error as failure:
            raise database_error(failure) from None

    def _run(
        self, request: JobRequest, cancel: threading.Event, progress: Callable[[Counts], None] | None
    ) -> JobReport:
        with self._database.connection() as conn:
            repo = repos.get(conn, request.repo_id)
            if repo.lifecycle is not Lifecycle.ACTIVE:
                raise ConfigurationError(
                    f"{repo.spec} is retired; add it again with `scm-sync repo add {repo.spec}` to sync it"
                )
            leases.ensure(conn, request.repo_id, request.job_type)
            self._reap(conn, repo, request.job_type)
            try:
                job_id = jobs.enqueue(
                    conn,
                    request,
                    max_attempts=self._settings.job_max_attempts,
                    config_hash=settings_hash(self._settings),
                )
            except LookupError:
                raise ConfigurationError(
                    f"{repo.spec} has no {request.job_type}; see `scm-sync repo show {repo.spec}`"
                ) from None
        return self.run_job(job_id, request, repo, cancel=cancel, progress=progress)

    def run_job(
        self,
        job_id: UUID,
        request: JobRequest,
        repo: Repository,
        *,
        cancel: threading.Event,
        progress: Callable[[Counts], None] | None = None,
    ) -> JobReport:
        """As :meth:`run`, for a job that exists."""
        started = time.monotonic()
        claim = self._claim(job_id, request, cancel)
        waited = time.monotonic() - started
        if isinstance(claim, JobReport):
            return replace(claim, waited_seconds=waited)
        attempt = Attempt(
            self._database,
            self._settings,
            self._source_factory(repo, cancel.is_set),
            repo,
            request,
            claim,
            looks=self._looks,
            cancel=cancel,
            progress=progress,
        )
        attempt.done.waited = waited
        return attempt.run()

    def _reap(self, conn: Connection, repo: Repository, job_type: JobType) -> None:
        """Close what dead workers left running for this repository, whichever window it was."""
        for owner in jobs.owners(conn, repo.repo_id, job_type):
            if owner.expired or is_gone(owner.process):
                status = jobs.reap(conn, owner)
                if status is not None:
                    _log.warning(
                        "%s, who worked on a job of %s, is gone; the job is %s now",
                        owner.name,
                        repo.slug,
                        status,
                    )

    def _claim(self, job_id: UUID, request: JobRequest, cancel: threading.Event) -> jobs.Claim | JobReport:
        """Claim the job; or wait for the one who has it, and take its result."""
        settings = self._settings
        deadline = time.monotonic() + settings.wait_limit
        gone: UUID | None = None
        waiting = False
        while True:
            with self._database.connection() as conn:
                claim = jobs.claim(
                    conn,
                    job_id,
                    worker=worker_name(),
                    process=process_identity(),
                    length=settings.claim_length,
                    dagster_run_id=request.dagster_run_id,
                    gone=gone,
                )
                if claim is not None:
                    return claim
                state = jobs.state(conn, job_id)
                done = state.status in (JobStatus.COMPLETED, JobStatus.DEAD)
                if done or (waiting and state.status is JobStatus.FAILED):
                    return jobs.report(conn, job_id)
                until = f"{state.claim_expires_at:%H:%M:%S} UTC" if state.claim_expires_at else "soon"
                if state.status is JobStatus.RUNNING and time.monotonic() >= deadline:
                    return replace(
                        jobs.report(conn, job_id),
                        error_code=LeaseHeld.code,
                        error=f"{state.claimed_by} works on this job until {until} at least; waited "
                        f"{settings.wait_limit:.0f} s, try again later",
                    )
            if is_gone(state.claimed_process) and gone != state.claim_token:
                _log.warning("%s, who worked on this job, is gone; taking it over", state.claimed_by)
                gone = state.claim_token
                continue
            if not waiting:
                _log.warning(
                    "%s works on this job until %s at least; waiting for it, %.0f s at most",
                    state.claimed_by,
                    until,
                    settings.wait_limit,
                )
                waiting = True
            if cancel.wait(random.uniform(0.2, 1.0)):
                raise Cancelled("stopped while waiting for a job that somebody else works on")
