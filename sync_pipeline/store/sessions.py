"""Writing transactions, and the end of those whose process no longer answers.

Belongs here: the mark by which the database knows whose transaction it is, and ending it. Whether somebody
lost the right to write is decided by :mod:`sync_pipeline.store.leases` and :mod:`sync_pipeline.store.jobs`.

A process that is stopped in the middle of a batch keeps its row locks. The server's time limits end an idle
transaction, but not one that waits for the rest of a COPY: without this, nobody could ever take over.
"""

from __future__ import annotations

from uuid import UUID

from sync_pipeline.store.database import Connection

# Only sessions of our own role, which every role may end.
_END = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
 WHERE datname = current_database() AND usename = current_user AND application_name = %(writer)s
   AND pid <> pg_backend_pid()
"""


def name(token: UUID) -> str:
    """The name that a writing transaction of the attempt with this claim token shows in pg_stat_activity."""
    # 63 bytes are the most that PostgreSQL keeps.
    return f"sync_pipeline writes {token}"


def end(conn: Connection, token: UUID) -> bool:
    """End the transaction of an attempt that lost its right to write; nothing of it stays. True if there was
    one."""
    return bool(conn.execute(_END, {"writer": name(token)}).fetchall())
