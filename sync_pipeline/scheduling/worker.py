"""A worker without Dagster: claims the jobs that a plan dispatched in the ledger, and does them.

Belongs here: the rounds of ``scm-sync worker``. It touches only jobs that the pool of the settings
accepts. Does not belong here: the work of a job (:mod:`sync_pipeline.sync.engine`), and the plan
(:mod:`sync_pipeline.scheduling.dispatch`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

import psycopg

from sync_pipeline.core.catalog import instance_of
from sync_pipeline.core.errors import Cancelled, ConfigurationError, SyncError
from sync_pipeline.core.job_types import FAMILY_OF
from sync_pipeline.core.model import JobReport, JobRequest, JobStatus, JobType, Mode, Window
from sync_pipeline.database import migrations
from sync_pipeline.database.pool import Database
from sync_pipeline.ledger import heartbeats, planning
from sync_pipeline.scheduling import pools
from sync_pipeline.scheduling.dispatch import WORKER
from sync_pipeline.settings import Settings
from sync_pipeline.sync.attempt import database_error
from sync_pipeline.sync.engine import Syncer
from sync_pipeline.sync.readers import Readers

_log = logging.getLogger(__name__)

_Activity = tuple[int, str, Mode, Window | None]
# Another worker may be about to take the first ones.
_MAX_JOBS_READ = 100


class Worker:
    """Does the dispatched jobs, those of ``parallel_repositories`` repositories at a time."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        *,
        print_report: Callable[[JobReport], None] = lambda _: None,
    ) -> None:
        self._database = database
        self._settings = settings
        self._print_report = print_report
        self._syncer = Syncer(database, settings, Readers(settings, database))
        self._busy: dict[Future[Sequence[JobReport]], _Activity] = {}
        self._asked: dict[Future[Sequence[JobReport]], Sequence[JobRequest]] = {}

    @property
    def name(self) -> str:
        """Name of its heartbeat."""
        return heartbeats.named(WORKER, self._settings.worker.pool)

    def run(self, stop: threading.Event, *, once: bool = False) -> tuple[int, int]:
        """Take and do jobs until ``stop`` is set, or, with ``once``, until no dispatched job is left.
        Returns how many there were and how many of them failed.

        After ``stop`` nothing new is taken; what is under way ends with its batch and is given back. A
        database that is away for a while is waited for; with ``once`` it is raised.
        """
        done = failed = 0
        with ThreadPoolExecutor(self._settings.jobs.parallel_repositories, "worker") as threads:
            try:
                while not stop.is_set():
                    started = time.monotonic()
                    try:
                        taken = self._take(threads, stop)
                        self._beat(started, f"{len(self._busy)} at work", once)
                    except (psycopg.Error, SyncError) as error:
                        failure = database_error(error)
                        if once or (
                            isinstance(failure, ConfigurationError)
                            and failure.code not in ("database_busy", "database_down")
                        ):
                            raise failure from None
                        _log.warning("%s; asking again in %g s", failure, self._settings.worker.poll_interval)
                        taken = 0
                    if once and not taken and not self._busy:
                        break
                    self._pause(stop, once)
                    for future in [f for f in self._busy if f.done()]:
                        more, bad = self._collect(future)
                        done, failed = done + more, failed + bad
            finally:
                stop.set()
                wait(self._busy)
                if not once:
                    self._unregister()
        for future in list(self._busy):
            more, bad = self._collect(future)
            done, failed = done + more, failed + bad
        return done, failed

    def _unregister(self) -> None:
        """Give unclaimed jobs back to the scheduler; its next plan may dispatch them to other workers."""
        try:
            with self._database.connection() as conn:
                planning.unregister_pool(conn, self._settings.worker.pool)
        except (psycopg.Error, ConfigurationError) as error:
            _log.warning("%s", database_error(error))

    def _take(self, threads: ThreadPoolExecutor, stop: threading.Event) -> int:
        """Start what there is room for; returns how much that was."""
        settings = self._settings
        room = settings.jobs.parallel_repositories - len(self._busy)
        with self._database.connection() as conn:
            migrations.require_current(conn)
            pools.heartbeat(conn, settings)
            if room <= 0:
                return 0
            waiting = planning.dispatched_requests(
                conn,
                instances=settings.worker.instance_allowlist,
                tenants=settings.worker.tenant_allowlist,
                job_types=settings.worker.job_type_allowlist,
                gitlabs=[instance_of(server.url) for server in settings.gitlab_servers()],
                limit=_MAX_JOBS_READ,
            )
        together: dict[_Activity, list[JobRequest]] = {}
        for request in waiting:
            key = request.repo_id, str(FAMILY_OF[request.job_type]), request.mode, request.window
            together.setdefault(key, []).append(request)
        busy = set(self._busy.values())
        chosen = [(key, requests) for key, requests in together.items() if key not in busy][:room]
        for key, requests in chosen:
            ordered = sorted(requests, key=lambda r: list(JobType).index(r.job_type))
            future = threads.submit(self._do, ordered, stop)
            self._busy[future] = key
            self._asked[future] = ordered
        return len(chosen)

    def _do(self, requests: Sequence[JobRequest], stop: threading.Event) -> Sequence[JobReport]:
        return self._syncer.run_together(requests, cancel=stop)

    def _collect(self, future: Future[Sequence[JobReport]]) -> tuple[int, int]:
        repo_id, family, *_ = self._busy.pop(future)
        requests = self._asked.pop(future)
        try:
            reports = future.result()
        except Cancelled:
            return 0, 0
        except SyncError as error:
            _log.warning("repository %s (%s): %s", repo_id, family, error)
            self._leave(requests)
            return 1, 1
        for report in reports:
            self._print_report(report)
        if any(report.job_status in (JobStatus.PENDING, JobStatus.FAILED) for report in reports):
            self._leave(requests)
        return len(reports), sum(report.error_code is not None for report in reports)

    def _leave(self, requests: Sequence[JobRequest]) -> None:
        """Give jobs back to the scheduler that could not be done now, such as paused ones. Otherwise they
        would be taken again and again before everything behind them."""
        try:
            with self._database.connection() as conn:
                planning.undispatch(conn, [one.job_id for one in requests if one.job_id is not None])
        except (psycopg.Error, ConfigurationError) as error:
            _log.warning("%s", database_error(error))

    def _pause(self, stop: threading.Event, once: bool) -> None:
        """Until something is done, or it is time to ask again."""
        if self._busy:
            wait(self._busy, timeout=1.0, return_when=FIRST_COMPLETED)
        elif not once:
            stop.wait(self._settings.worker.poll_interval)

    def _beat(self, started: float, outcome: str, once: bool) -> None:
        with self._database.connection() as conn:
            heartbeats.beat(
                conn,
                self.name,
                seconds=time.monotonic() - started,
                outcome=outcome,
                every=None if once else self._settings.worker.poll_interval,
            )
