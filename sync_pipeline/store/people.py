"""People and their accounts: ``identity.users`` and ``identity.accounts``.

Belongs here: linking the names by which sources know a person. No job writes these tables, and nothing in the
product guesses who is who.
"""

from __future__ import annotations

from collections.abc import Sequence

from sync_pipeline.store.database import Connection

# Two programs that link the same person at once would each make one.
_LOCK = "LOCK TABLE identity.accounts IN SHARE ROW EXCLUSIVE MODE"

_IS_KNOWN = """
SELECT FROM identity.accounts AS a
  JOIN unnest(%(types)s::text[], %(names)s::text[]) AS s (type, name)
    ON (a.account_type, a.account_name) = (s.type, s.name)
"""

_PUT = """
WITH person AS (INSERT INTO identity.users (display_name) VALUES (%(name)s) RETURNING user_id)
INSERT INTO identity.accounts (user_id, account_type, account_name, verified)
SELECT person.user_id, s.type, s.name, TRUE
  FROM person, unnest(%(types)s::text[], %(names)s::text[]) AS s (type, name)
"""


def link(conn: Connection, name: str, accounts: Sequence[tuple[str, str]]) -> None:
    """Make a person with these accounts, each a type (``svn``, ``gitlab``, ``git`` or ``email``) and a name
    as the source writes it; in the caller's transaction. Where one of the accounts is known, nothing
    changes."""
    conn.execute(_LOCK)
    types, names = [kind for kind, _ in accounts], [account for _, account in accounts]
    params = {"name": name, "types": types, "names": names}
    if conn.execute(_IS_KNOWN, params).fetchone() is None:
        conn.execute(_PUT, params)
