"""A worker without Dagster: takes from the ledger what a plan handed out, and does it.

Belongs here: the rounds of ``scm-sync worker``. What a job does is the engine's
(:mod:`sync_pipeline.sync.engine`), what is handed out is planned in
:mod:`sync_pipeline.operations.scheduling`. Only what the pool of the settings takes is touched.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

import psycopg

from sync_pipeline.errors import Cancelled, ConfigurationError, SyncError
from sync_pipeline.model import JobReport, JobRequest, JobType, Mode, Window
from sync_pipeline.operations import pools
from sync_pipeline.policy.families import FAMILY_OF
from sync_pipeline.settings import Settings
from sync_pipeline.store import heartbeats, migrations, planning
from sync_pipeline.store.database import Database
from sync_pipeline.sync.engine import Syncer
from sync_pipeline.sync.readers import Readers

_log = logging.getLogger(__name__)

WORKER = "worker"
"""Name of the heartbeat of a worker of the default pool."""

_Activity = tuple[int, str, Mode, Window | None]
# Somebody else may be about to take the first ones.
_LOOKED_AT = 100


class Worker:
    """Does what the ledger hands out, ``parallel_repositories`` side by side."""

    def __init__(
        self, database: Database, settings: Settings, *, said: Callable[[JobReport], None] = lambda _: None
    ) -> None:
        self._database = database
        self._settings = settings
        self._said = said
        self._syncer = Syncer(database, settings, Readers(settings, database))
        self._busy: dict[Future[Sequence[JobReport]], _Activity] = {}

    @property
    def name(self) -> str:
        """Name of its heartbeat."""
        return heartbeats.named(WORKER, self._settings.worker_pool)

    def run(self, stop: threading.Event, *, once: bool = False) -> tuple[int, int]:
        """Take and do jobs until ``stop`` is set, or, with ``once``, until nothing is handed out any more.
        Returns how many there were and how many of them failed.

        After ``stop`` nothing new is taken; what is under way ends with its batch and is given back. A
        database that is away for a while is waited for; with ``once`` it is raised.
        """
        done = failed = 0
        with ThreadPoolExecutor(self._settings.parallel_repositories, "worker") as threads:
            try:
                while not stop.is_set():
                    started = time.monotonic()
                    try:
                        taken = self._take(threads, stop)
                        self._beat(started, f"{len(self._busy)} at work", once)
                    except (psycopg.Error, SyncError) as error:
                        if once or isinstance(error, ConfigurationError):
                            raise
                        _log.warning("the ledger does not answer: %s", error)
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
        for future in list(self._busy):
            more, bad = self._collect(future)
            done, failed = done + more, failed + bad
        return done, failed

    def _take(self, threads: ThreadPoolExecutor, stop: threading.Event) -> int:
        """Start what there is room for; returns how much that was."""
        settings = self._settings
        room = settings.parallel_repositories - len(self._busy)
        with self._database.connection() as conn:
            migrations.require_current(conn)
            pools.say_alive(conn, settings)
            if room <= 0:
                return 0
            waiting = planning.handed_out(
                conn,
                instances=settings.worker_instance_allowlist,
                tenants=settings.worker_tenant_allowlist,
                job_types=settings.worker_job_type_allowlist,
                limit=_LOOKED_AT,
            )
        together: dict[_Activity, list[JobRequest]] = {}
        for request in waiting:
            key = request.repo_id, str(FAMILY_OF[request.job_type]), request.mode, request.window
            together.setdefault(key, []).append(request)
        busy = set(self._busy.values())
        chosen = [(key, requests) for key, requests in together.items() if key not in busy][:room]
        for key, requests in chosen:
            ordered = sorted(requests, key=lambda r: list(JobType).index(r.job_type))
            self._busy[threads.submit(self._do, ordered, stop)] = key
        return len(chosen)

    def _do(self, requests: Sequence[JobRequest], stop: threading.Event) -> Sequence[JobReport]:
        return self._syncer.run_together(requests, cancel=stop)

    def _collect(self, future: Future[Sequence[JobReport]]) -> tuple[int, int]:
        repo_id, family, *_ = self._busy.pop(future)
        try:
            reports = future.result()
        except Cancelled:
            return 0, 0
        except SyncError as error:
            _log.warning("repository %s (%s): %s", repo_id, family, error)
            return 1, 1
        for report in reports:
            self._said(report)
        return len(reports), sum(report.error_code is not None for report in reports)

    def _pause(self, stop: threading.Event, once: bool) -> None:
        """Until something is done, or it is time to ask again."""
        if self._busy:
            wait(self._busy, timeout=1.0, return_when=FIRST_COMPLETED)
        elif not once:
            stop.wait(self._settings.worker_poll_interval)

    def _beat(self, started: float, outcome: str, once: bool) -> None:
        with self._database.connection() as conn:
            heartbeats.beat(
                conn,
                self.name,
                seconds=time.monotonic() - started,
                outcome=outcome,
                every=None if once else self._settings.worker_poll_interval,
            )
