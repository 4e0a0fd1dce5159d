"""The circuit breakers as they were last stored.

Belongs here: ``scm.breakers`` and ``scm.breaker_events``. When one opens and closes is decided in
:mod:`sync_pipeline.policy.breaker`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sync_pipeline.database.pool import Connection
from sync_pipeline.database.queries import queries

_SQL = queries("breakers")


@dataclass(frozen=True, slots=True)
class BreakerRow:
    """A breaker as stored; the fields are those of :class:`~sync_pipeline.policy.breaker.Breaker`, rates
    apart."""

    scope: str
    key: str
    state: str
    since: datetime
    opened_at: datetime | None
    failure_rate: float
    rate_limit_rate: float
    timeout_rate: float
    samples: int
    judged_upto: datetime | None
    half_open_successes: int
    reason: str | None
    updated_at: datetime | None = None


def read(conn: Connection) -> list[BreakerRow]:
    """Every breaker that was ever judged; a scope without one is closed."""
    return [BreakerRow(**row) for row in conn.execute(_SQL["all"]).fetchall()]


def save(conn: Connection, row: BreakerRow, *, actor: str) -> None:
    """Store a breaker; a change of state becomes an event."""
    params: dict[str, Any] = {name: getattr(row, name) for name in BreakerRow.__slots__}
    conn.execute(_SQL["save"], params | {"actor": actor})


def reset(conn: Connection, scope: str, key: str, *, actor: str, reason: str) -> str | None:
    """Close a breaker that is not and forget its evidence; returns the state it was in, None if there is no
    such one."""
    row = conn.execute(
        _SQL["reset"], {"scope": scope, "key": key, "actor": actor, "reason": reason}
    ).fetchone()
    return None if row is None else str(row["old_state"])


def errors(
    conn: Connection, row: BreakerRow, codes: Collection[str], seconds: float
) -> Sequence[dict[str, Any]]:
    """The three most frequent errors of the runs that ended in the ``seconds`` before a breaker last opened.
    ``code`` is one of ``codes``, with the number of ``runs``. Empty if it never opened.
    """
    if row.opened_at is None:
        return ()
    params = {
        "scope": row.scope,
        "key": row.key,
        "opened_at": row.opened_at,
        "codes": sorted(codes),
        "seconds": seconds,
    }
    return conn.execute(_SQL["errors"], params).fetchall()


def events(conn: Connection, limit: int = 20) -> Sequence[dict[str, Any]]:
    """The newest changes of state."""
    return conn.execute(_SQL["events"], {"limit": limit}).fetchall()
