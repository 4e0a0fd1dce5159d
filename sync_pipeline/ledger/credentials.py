"""Tokens that a server refused: ``scm.revoked_credentials``.

Belongs here: stopping a token, clearing it once it is accepted again, and which are stopped. A token is known
by its fingerprint only. Does not belong here: what follows for the plan (:mod:`sync_pipeline.policy`).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sync_pipeline.database.pool import Connection
from sync_pipeline.database.queries import queries

_SQL = queries("credentials")


@dataclass(frozen=True, slots=True)
class Stop:
    """A token that ``instance`` refused, first at ``stopped_at`` and last at ``last_seen_at`` (UTC, by the
    database's clock). ``reason`` is one redacted line."""

    instance: str
    fingerprint: str
    reason: str
    stopped_at: datetime
    last_seen_at: datetime


def stop(conn: Connection, instance: str, fingerprint: str, reason: str) -> None:
    """Remember that ``instance`` refused the token with this fingerprint just now."""
    conn.execute(_SQL["stop"], {"instance": instance, "fingerprint": fingerprint, "reason": reason})


def clear(conn: Connection, instance: str, fingerprint: str) -> bool:
    """The token was accepted; True if it was stopped before."""
    params = {"instance": instance, "fingerprint": fingerprint}
    return conn.execute(_SQL["clear"], params).rowcount > 0


def stops(conn: Connection) -> list[Stop]:
    """Every token that is stopped, by instance."""
    return [Stop(**row) for row in conn.execute(_SQL["stops"]).fetchall()]


def unanswered(conn: Connection) -> list[Stop]:
    """The latest refusal of each server where no complete look came after it, by instance."""
    return [Stop(**row) for row in conn.execute(_SQL["unresolved_stops"]).fetchall()]
