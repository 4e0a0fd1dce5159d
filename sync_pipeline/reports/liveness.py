"""Whether this installation is ready, and whether a loop or code location of a pool lives: for the probes of
containers and supervisors.

Belongs here: the two answers. It asks the database and nothing else, starts nothing, and loads neither
Dagster nor a reader, so that it may be asked every few seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import psycopg

from sync_pipeline.core.errors import ConfigurationError
from sync_pipeline.core.formatting import age
from sync_pipeline.database import diagnosis, migrations
from sync_pipeline.ledger import heartbeats
from sync_pipeline.runtime.environment import embedded_url
from sync_pipeline.settings import Settings

_SECONDS = 3
# Seconds: a smaller step back is what clocks do that are set by others.
_AHEAD = 2


class Part(StrEnum):
    """The subject of a probe: one of the loops, or the code location, whose sensor ``scheduler`` ticks."""

    SCHEDULER = "scheduler"
    WORKER = "worker"
    REAPER = "reaper"
    LOCATION = "location"


HEARTBEATS: Mapping[Part, str] = {
    Part.SCHEDULER: "scheduler_loop",
    Part.WORKER: "worker",
    Part.REAPER: "reaper_loop",
    Part.LOCATION: "scheduler",
}
"""The heartbeat of each part in the default pool."""


@dataclass(frozen=True, slots=True)
class Liveness:
    """``ready``: the database answers and is migrated. ``alive``: the heartbeat is fresh; None where it was
    not asked for or cannot be read. ``age`` is in seconds, None where there is no heartbeat and 0 for one in
    the future. ``summary`` is one line."""

    ready: bool
    alive: bool | None
    age: float | None
    summary: str


def probe(settings: Settings, part: Part | None, max_age: float | None = None) -> Liveness:
    """Whether everything is ready, and whether ``part`` of the pool of these settings is alive. Its latest
    tick must be at most ``max_age`` seconds old, by default as old as a tick may be without being silent.
    """
    url = settings.database_url or embedded_url(settings.state_dir)
    if url is None:
        return Liveness(False, None, None, "SCM_DATABASE_URL is not set and there is no embedded server yet")
    try:
        with diagnosis.connection(url, _SECONDS) as conn:
            migrations.require_current(conn)
            beats = {one.name: one for one in heartbeats.read(conn)} if part is not None else {}
    except ConfigurationError as error:
        return Liveness(False, None, None, "; ".join(error.problems))
    except psycopg.Error as error:
        return Liveness(False, None, None, f"the database does not answer: {type(error).__name__}")
    if part is None:
        return Liveness(True, None, None, "the database answers and is migrated")
    name = heartbeats.named(HEARTBEATS[part], settings.worker.pool)
    beat = beats.get(name)
    if beat is None:
        return Liveness(True, False, None, f"{name} has not ticked yet")
    allowed = max_age if max_age is not None else beat.allowed
    seconds = max(0.0, beat.age)
    alive = allowed is not None and seconds <= allowed
    if allowed is None:
        summary = f"{name} went round once, {age(seconds)} ago, and is no loop; give --max-age to judge it"
    else:
        summary = f"{name} ticked {age(seconds)} ago" + ("" if alive else f"; {age(allowed)} are allowed")
    if beat.age <= -_AHEAD:
        summary += f"; the clock of that row is ahead of the database's by {age(-beat.age)}"
    return Liveness(True, alive, seconds, summary)
