"""The frame of every tick of a sensor or schedule: a heartbeat, and a skip with a reason while a database is
unavailable. Dagster does not report failed ticks itself.

Belongs here: this frame, and which runs ticks count as unfinished. Does not belong here: the work of a tick.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

import dagster as dg
import psycopg

from sync_pipeline.core.errors import ConfigurationError
from sync_pipeline.database.pool import Database
from sync_pipeline.ledger import heartbeats
from sync_pipeline.orchestration.storage import first_line, is_outage, storage_problem
from sync_pipeline.settings import Settings

WAITING = [dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.NOT_STARTED]
"""Runs that have not started."""

UNFINISHED = [
    *WAITING,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]
"""Runs that wait or work."""

_P = ParamSpec("_P")
_T = TypeVar("_T")


def skips_outages(body: Callable[_P, _T]) -> Callable[_P, _T | dg.SkipReason]:
    """The body of a tick that skips, with the reason in one line, while our database or Dagster's is
    unavailable or in a wrong state. The next tick tries again. A defect of ours still fails the tick.
    """

    @functools.wraps(body)
    def tick(*args: _P.args, **kwargs: _P.kwargs) -> _T | dg.SkipReason:
        try:
            return body(*args, **kwargs)
        except ConfigurationError as error:
            return dg.SkipReason("; ".join(error.problems))
        except (psycopg.OperationalError, psycopg.InterfaceError) as error:
            return dg.SkipReason(f"the database went away: {first_line(error)}")
        except Exception as error:
            if not is_outage(error):
                raise
            return dg.SkipReason(storage_problem(error))

    return tick


@contextmanager
def heartbeat(
    database: Database, settings: Settings, name: str, *, every: float
) -> Iterator[Callable[[str], None]]:
    """Write the heartbeat of one tick, also of a failed one; the block gives one line about its work. The
    next tick is expected ``every`` seconds."""
    started = time.monotonic()
    lines = ["nothing"]
    try:
        yield lines.append
    except Exception as error:
        lines.append(f"failed: {type(error).__name__}")
        raise
    finally:
        with database.connection() as conn:
            heartbeats.beat(
                conn,
                heartbeats.named(name, settings.worker.pool),
                seconds=time.monotonic() - started,
                outcome=lines[-1],
                every=every,
            )
