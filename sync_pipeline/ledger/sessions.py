"""Writing transactions, and the end of those whose process no longer answers.

Belongs here: the mark by which the database knows whose transaction it is, and ending it. Whether somebody
lost the right to write is decided by :mod:`sync_pipeline.ledger.leases` and :mod:`sync_pipeline.ledger.jobs`.

A process that is stopped in the middle of a batch keeps its row locks. The server's time limits end an idle
transaction, but not one that waits for the rest of a COPY. Without this module, its work could never be taken
over.
"""

from __future__ import annotations

from uuid import UUID

from sync_pipeline.database.pool import Connection
from sync_pipeline.database.queries import queries

_SQL = queries("sessions")


def name(token: UUID) -> str:
    """The name that a writing transaction of the attempt with this claim token shows in pg_stat_activity."""
    # 63 bytes are the most that PostgreSQL keeps.
    return f"sync_pipeline writes {token}"


def end(conn: Connection, token: UUID) -> bool:
    """End the transaction of an attempt that lost its right to write; nothing of it stays. True if there was
    one."""
    return bool(conn.execute(_SQL["end"], {"writer": name(token)}).fetchall())
