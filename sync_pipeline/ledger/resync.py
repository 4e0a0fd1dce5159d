"""What is known about each (repository, job type) when it is decided whether it is read again.

Belongs here: one query, and the lock that makes two who decide harmless. Does not belong here: the decision
(:mod:`sync_pipeline.policy.resync`); the jobs are made by :mod:`sync_pipeline.ledger.jobs`.
"""

from __future__ import annotations

from typing import Any

from sync_pipeline.database.pool import Connection
from sync_pipeline.database.queries import queries

_LOCK = 0x5C3_0007


_SQL = queries("resync")


def assets(conn: Connection, reason: str, lookback: float) -> list[dict[str, Any]]:
    """The rows of every asset that may be read, with ``watermark`` instead of the two columns. It covers the
    runs of the last ``lookback`` seconds, and a day more.
    """
    rows = conn.execute(_SQL["units"], {"reason": reason, "look_back": lookback}).fetchall()
    for row in rows:
        revision, moment = row.pop("watermark_rev"), row.pop("watermark_time")
        row["watermark"] = moment if revision is None else revision
    return rows


def lock(conn: Connection) -> None:
    """Be the only one who decides until the caller's transaction ends."""
    conn.execute(_SQL["take_lock"], {"lock": _LOCK})
