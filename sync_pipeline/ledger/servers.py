"""Servers that gave no usable answer to the latest look: ``scm.server_failures``.

Belongs here: its rows. Does not belong here: which failures mean that a server is away, and what follows for
the health of its repositories (:mod:`sync_pipeline.reports.health`).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sync_pipeline.core.model import Kind
from sync_pipeline.database.pool import Connection
from sync_pipeline.database.queries import queries
from sync_pipeline.database.rows import read_row

_SQL = queries("servers")


@dataclass(frozen=True, slots=True)
class ServerFailure:
    """A server whose last ``failures`` looks failed, the first at ``failed_at``, the latest at
    ``observed_at`` (UTC, by the database's clock). ``error`` is one redacted line; ``repositories`` are the
    active ones on it. ``is_confirmed`` is False for time-outs that neither a patient look nor live syncing
    shares."""

    instance: str
    kind: Kind
    error_code: str
    error: str
    failures: int
    failed_at: datetime
    observed_at: datetime
    repositories: int
    is_confirmed: bool


def record_failure(
    conn: Connection, instance: str, kind: Kind, error_code: str, error: str, *, was_patient: bool = False
) -> None:
    """Write down that a look at a server got no usable answer. ``was_patient``: it waited several times as
    long as usual."""
    params = {"instance": instance, "kind": str(kind), "error_code": error_code, "error": error}
    conn.execute(_SQL["failed"], params | {"was_patient": was_patient})


def is_doubted(conn: Connection, instance: str, kind: Kind) -> bool:
    """True if short looks at the server timed out, and no patient one has said yet whether it answers."""
    row = conn.execute(_SQL["is_doubted"], {"instance": instance, "kind": str(kind)}).fetchone()
    return row is not None and bool(row["is_doubted"])


def record_answer(conn: Connection, instance: str, kind: Kind) -> None:
    """Write down that a server answers."""
    conn.execute(_SQL["answered"], {"instance": instance, "kind": str(kind)})


def failing(conn: Connection) -> list[ServerFailure]:
    """The servers that do not answer, by name."""
    return [read_row(ServerFailure, row) for row in conn.execute(_SQL["failing"]).fetchall()]
