"""Measurements of how slow the machine of ``scm-sync up`` is, for status and doctor.

Belongs here: the measurement, its lines, and the heartbeat that stores them, so that every report shows the
same. No process is ended or started because of it, because that would add to the load.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence

import psycopg

from sync_pipeline.core.errors import SyncError
from sync_pipeline.database.pool import Database
from sync_pipeline.ledger import heartbeats
from sync_pipeline.ledger.heartbeats import Heartbeat
from sync_pipeline.settings import Settings

UP = "up"
"""The heartbeat of ``scm-sync up``: ``seconds`` is how long the code server took to answer."""

SLOW_SECONDS = 5.0
"""An answer of the code server that takes so long is slow; a few milliseconds are usual."""

ASK_SECONDS = 5.0
_BEAT_SECONDS = 15.0
# A well used machine usually has some processes that wait for a processor.
_LOAD_PER_CORE = 1.5
_MARK = "slow: "


def lines(waiting: float, load: float, cores: int) -> list[str]:
    """One line for each thing that is slow. ``waiting`` is how many seconds an answer of the code server
    takes, ``load`` how many processes run or wait for a processor."""
    found = []
    if waiting >= SLOW_SECONDS:
        found.append(f"the code server answers slowly: {waiting:.0f} s")
    if load > cores * _LOAD_PER_CORE:
        found.append(f"the load is {load:.1f} on {cores} {'core' if cores == 1 else 'cores'}")
    return found


def machine() -> tuple[float, int]:
    """The load of the last minute, and how many cores this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return os.getloadavg()[0], cores


class CodeServerWatch:
    """How long a server takes to answer, asked by one thread, one question at a time. ``ask`` returns False
    where there was no answer."""

    def __init__(self, ask: Callable[[], bool], clock: Callable[[], float] = time.monotonic) -> None:
        self._ask = ask
        self._clock = clock
        self._asked: float | None = None
        self._took = 0.0

    def ask(self) -> None:
        """Ask once and wait for the answer."""
        if self._asked is None:
            self._asked = self._clock()
        if self._ask():
            self._took, self._asked = self._clock() - self._asked, None

    @property
    def waiting(self) -> float:
        """Seconds that the last answer took, or since the first question without one, if that is more."""
        asked = self._asked
        return self._took if asked is None else max(self._took, self._clock() - asked)

    def keep_asking(self, stop: threading.Event) -> None:
        """Ask in a thread until ``stop``. It is not waited for: a question may stay open for minutes."""

        def loop() -> None:
            while not stop.wait(ASK_SECONDS):
                self.ask()

        threading.Thread(target=loop, name="ask", daemon=True).start()


def keep_writing(
    url: str, settings: Settings, watch: CodeServerWatch, stop: threading.Event
) -> threading.Thread:
    """Write the heartbeat of ``scm-sync up`` in a thread until ``stop``, then remove it, so that a stopped
    one is not reported as silent. While the database is away nothing is written."""
    name = heartbeats.named(UP, settings.worker.pool)

    def write(database: Database) -> None:
        waiting = watch.waiting
        slow = lines(waiting, *machine())
        outcome = _MARK + "; ".join(slow) if slow else "the code server answers"
        with database.connection() as conn:
            heartbeats.beat(conn, name, seconds=waiting, outcome=outcome, every=_BEAT_SECONDS)

    def loop() -> None:
        with Database(url, max_size=1) as database:
            over = False
            while not over:
                over = stop.wait(_BEAT_SECONDS)
                try:
                    if not over:
                        write(database)
                        continue
                    with database.connection() as conn:
                        heartbeats.delete(conn, name)
                except (SyncError, psycopg.Error):
                    continue

    thread = threading.Thread(target=loop, name="heartbeat of up", daemon=True)
    thread.start()
    return thread


def of_up(beats: Iterable[Heartbeat]) -> Sequence[Heartbeat]:
    """The heartbeats of every ``scm-sync up`` that was heard of lately."""
    return [beat for beat in beats if beat.name.partition("@")[0] == UP and not beat.silent]


def summary(beats: Iterable[Heartbeat]) -> list[str]:
    """One line for each thing that is slow now."""
    outcomes = [beat.outcome for beat in of_up(beats) if beat.outcome.startswith(_MARK)]
    return [line for outcome in outcomes for line in outcome.removeprefix(_MARK).split("; ")]
