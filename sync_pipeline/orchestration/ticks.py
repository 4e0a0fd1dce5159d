"""What every tick of a sensor or schedule leaves behind: a heartbeat, because Dagster tells nobody that one
fails.

Belongs here: the heartbeat of one tick, and which runs ticks count as unfinished. Does not belong here: what
a tick does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import dagster as dg

from sync_pipeline.store import heartbeats
from sync_pipeline.store.database import Database

WAITING = [dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.NOT_STARTED]
"""Runs that nobody works on yet."""

UNFINISHED = [
    *WAITING,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]
"""Runs that wait or work."""


@contextmanager
def heartbeat(database: Database, name: str) -> Iterator[Callable[[str], None]]:
    """Write the heartbeat of one tick, whatever becomes of it; the block says in one line what it did."""
    started = time.monotonic()
    said = ["nothing"]
    try:
        yield said.append
    except Exception as error:
        said.append(f"failed: {type(error).__name__}")
        raise
    finally:
        with database.connection() as conn:
            heartbeats.beat(conn, name, seconds=time.monotonic() - started, outcome=said[-1])
