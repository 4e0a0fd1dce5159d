"""The thread that keeps the claim and the lease of a running job alive.

Belongs here: renewing both on a connection of its own, and reporting the loss of either. The heartbeat is
only an early warning, because every writing transaction checks both itself.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from types import TracebackType

import psycopg

from sync_pipeline.core.errors import SyncError
from sync_pipeline.database.pool import Database
from sync_pipeline.ledger import jobs, leases
from sync_pipeline.settings import Settings

_log = logging.getLogger(__name__)


class Heartbeat:
    """Renews ``claim`` and, while one is set, the lease. ``lost`` is set once the claim cannot be kept, or
    could not be renewed ``worker_max_renew_failures`` times in a row: then its state is unknown. A lost lease
    is taken again for the next chunk."""

    def __init__(self, database: Database, claim: jobs.Claim, settings: Settings) -> None:
        self.lost = threading.Event()
        self._database = database
        self._claim = claim
        self._settings = settings
        self._lease: leases.Lease | None = None
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._threads = (
            threading.Thread(
                target=self._beat, args=(settings.jobs.claim_renew_seconds, self._renew_claim), daemon=True
            ),
            threading.Thread(
                target=self._beat, args=(settings.jobs.lease_renew_seconds, self._renew_lease), daemon=True
            ),
        )

    def __enter__(self) -> Heartbeat:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def hold(self, lease: leases.Lease | None) -> None:
        """Keep this lease alive from now on; None once it was given back."""
        with self._lock:
            self._lease = lease

    def _beat(self, every: float, renew: Callable[[], None]) -> None:
        failures = 0
        while not self._stop.wait(every):
            try:
                renew()
                failures = 0
            except (psycopg.Error, SyncError) as error:
                failures += 1
                if renew == self._renew_claim and failures >= self._settings.worker.max_renew_failures:
                    self.lost.set()
                # The database may be back before the claim ends; the guard of each transaction decides.
                _log.warning("heartbeat of job %s failed: %s", self._claim.job_id, error)

    def _renew_claim(self) -> None:
        with self._database.connection() as conn:
            if not jobs.renew(conn, self._claim, self._settings.jobs.claim_seconds):
                self.lost.set()

    def _renew_lease(self) -> None:
        # The lock keeps a lease that was just released from counting as lost.
        with self._lock:
            if self._lease is None:
                return
            with self._database.connection() as conn:
                if not leases.renew(conn, self._lease, self._settings.jobs.lease_seconds):
                    self._lease = None
