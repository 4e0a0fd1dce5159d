"""When each sensor, schedule and loop last finished a tick, and which of them have fallen silent.

Belongs here: ``scm.heartbeats``. Dagster does not report a failing sensor, so a silent one shows here.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sync_pipeline.database.pool import Connection
from sync_pipeline.database.queries import queries
from sync_pipeline.ledger.pools import DEFAULT_POOL

SHORTEST_SILENCE = 120.0
"""Seconds that nothing is called silent for."""

_MISSED = 3


_SQL = queries("heartbeats")


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The latest tick of one sensor, schedule or loop: it took ``seconds`` and ended ``age`` seconds ago.
    ``every`` is how many seconds apart ticks are at most, None where that is unknown, as for a single
    round."""

    name: str
    beat_at: datetime
    seconds: float
    outcome: str
    age: float
    every: float | None = None

    @property
    def allowed(self) -> float | None:
        """The age in seconds from which on it is silent: three ticks that did not come, and at least two
        minutes."""
        return None if self.every is None else max(_MISSED * self.every, SHORTEST_SILENCE)

    @property
    def silent(self) -> bool:
        """True if ticks are missing."""
        return self.allowed is not None and self.age > self.allowed


def named(name: str, pool: str) -> str:
    """The name of a heartbeat: that of the sensor or loop, with the pool unless it is the default one."""
    return name if pool == DEFAULT_POOL else f"{name}@{pool}"


def beat(conn: Connection, name: str, *, seconds: float, outcome: str, every: float | None = None) -> None:
    """Write that ``name`` finished a tick; ``outcome`` is one line. ``every``: the next one is expected so
    many seconds later, None where none is."""
    conn.execute(_SQL["beat"], {"name": name, "seconds": seconds, "outcome": outcome, "every": every})


def read(conn: Connection) -> list[Heartbeat]:
    """The latest tick of everything that ticks."""
    return [Heartbeat(**row) for row in conn.execute(_SQL["all"]).fetchall()]


def silent(conn: Connection) -> list[Heartbeat]:
    """The silent sensors, schedules and loops."""
    return [one for one in read(conn) if one.silent]


def delete(conn: Connection, name: str) -> bool:
    """Expect no tick of ``name`` any more; False if there was none."""
    return conn.execute(_SQL["delete"], {"name": name}).rowcount == 1
