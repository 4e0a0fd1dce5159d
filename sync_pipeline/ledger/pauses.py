"""Pauses by people.

Belongs here: ``scm.pauses``: making, ending and reading them. Both the plan and the claim of a job honour
them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import psycopg

from sync_pipeline.database.pool import Connection
from sync_pipeline.database.queries import queries

_SQL = queries("pauses")


@dataclass(frozen=True, slots=True)
class PauseRow:
    """A pause that holds now. ``repo_id``, ``instance`` and ``tenant`` are set by ``scope``."""

    pause_id: int
    scope: str
    instance: str | None
    tenant: str | None
    repo_id: int | None
    job_type: str | None
    reason: str
    actor: str
    created_at: datetime
    until: datetime | None


def active(conn: Connection) -> list[PauseRow]:
    """The pauses that hold now, oldest first."""
    return [PauseRow(**row) for row in conn.execute(_SQL["active"]).fetchall()]


def of_job(conn: Connection, job_id: UUID) -> PauseRow | None:
    """The pause that keeps a job from being claimed now, the one that ends last; None if there is none."""
    row = conn.execute(_SQL["of_job"], {"job_id": job_id}).fetchone()
    return None if row is None else PauseRow(**row)


def add(
    conn: Connection,
    *,
    scope: str,
    instance: str | None = None,
    tenant: str | None = None,
    repo_id: int | None = None,
    job_type: str | None = None,
    seconds: float | None = None,
    actor: str,
    reason: str,
) -> int | None:
    """Pause a place for so many seconds, or until somebody ends it; returns the number of the pause, None
    where it is paused already."""
    params: dict[str, Any] = {
        "scope": scope,
        "instance": instance,
        "tenant": tenant,
        "repo_id": repo_id,
        "job_type": job_type,
        "seconds": seconds,
        "actor": actor,
        "reason": reason,
    }
    try:
        with conn.transaction():
            conn.execute(_SQL["close_over"])
            row = conn.execute(_SQL["add"], params).fetchone()
    except psycopg.errors.UniqueViolation:
        return None
    assert row is not None
    return int(row["pause_id"])


def end(conn: Connection, pause_id: int, *, actor: str) -> bool:
    """End a pause; False if there is none of this number that holds."""
    return conn.execute(_SQL["end"], {"pause_id": pause_id, "actor": actor}).fetchone() is not None
