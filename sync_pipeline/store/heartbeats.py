"""When each sensor last finished a tick.

Belongs here: ``scm.heartbeats``. Dagster tells nobody that a sensor fails, so a silent one shows here.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sync_pipeline.store.database import Connection

# Written at the end of every tick of a sensor.
_BEAT = """
INSERT INTO scm.heartbeats (name, beat_at, seconds, outcome)
VALUES (%(name)s, clock_timestamp(), %(seconds)s, %(outcome)s)
ON CONFLICT (name) DO UPDATE
   SET beat_at = EXCLUDED.beat_at, seconds = EXCLUDED.seconds, outcome = EXCLUDED.outcome
"""

# Read by the status report.
_ALL = """
SELECT name, beat_at, seconds, outcome, extract(epoch FROM clock_timestamp() - beat_at)::float8 AS age
  FROM scm.heartbeats
 ORDER BY name
"""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The latest tick of one sensor: it took ``seconds`` and ended ``age`` seconds ago."""

    name: str
    beat_at: datetime
    seconds: float
    outcome: str
    age: float


def beat(conn: Connection, name: str, *, seconds: float, outcome: str) -> None:
    """Write that the sensor ``name`` finished a tick; ``outcome`` is one line."""
    conn.execute(_BEAT, {"name": name, "seconds": seconds, "outcome": outcome})


def read(conn: Connection) -> list[Heartbeat]:
    """The latest tick of every sensor."""
    return [Heartbeat(**row) for row in conn.execute(_ALL).fetchall()]
