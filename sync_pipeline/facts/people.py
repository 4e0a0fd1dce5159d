"""People and their accounts: ``identity.users`` and ``identity.accounts``.

Belongs here: linking the names by which sources know a person. No job writes these tables, and nothing in the
product guesses who is who.
"""

from __future__ import annotations

from collections.abc import Sequence

from sync_pipeline.database.pool import Connection
from sync_pipeline.database.queries import queries

_SQL = queries("people")


def link(conn: Connection, name: str, accounts: Sequence[tuple[str, str]]) -> None:
    """Make a person with these accounts, in the caller's transaction. Each account is a type (``svn``,
    ``gitlab``, ``git`` or ``email``) and a name as the source writes it. If one of the accounts is known,
    nothing changes.
    """
    conn.execute(_SQL["lock"])
    types, names = [kind for kind, _ in accounts], [account for _, account in accounts]
    params = {"name": name, "types": types, "names": names}
    if conn.execute(_SQL["is_known"], params).fetchone() is None:
        conn.execute(_SQL["put"], params)
