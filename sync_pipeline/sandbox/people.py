"""The people of the demo: one team that works in GitLab and in Subversion.

Belongs here: their names at each source, and the rows of ``identity`` that link these names to one person.
A company fills these tables from its directory; nothing in the product guesses who is who.
"""

from __future__ import annotations

from dataclasses import dataclass

from sync_pipeline.store.database import Connection


@dataclass(frozen=True, slots=True)
class Person:
    """A person. ``username`` is the account in GitLab, ``svn`` the one in Subversion, which need not be
    equal; ``email`` is in the person's commits."""

    name: str
    username: str
    svn: str

    @property
    def email(self) -> str:
        """Address in the commits."""
        return f"{self.username}@example.com"

    @property
    def git(self) -> str:
        """The author of a commit as git writes it."""
        return f"{self.name} <{self.email}>"

    @property
    def accounts(self) -> tuple[tuple[str, str], ...]:
        """Type and name of each account, as in ``identity.accounts``."""
        return ("gitlab", self.username), ("email", self.email), ("git", self.git), ("svn", self.svn)


TEAM = (
    Person("Ada Lindqvist", "ada", "ada"),
    # A user name of GitLab has no letters but those of English.
    Person("Björn Haugen", "bjorn", "björn"),
    Person("Chen Wei", "chen", "chen"),
    Person("Dmitri Sokolov", "dmitri", "dmitri"),
    Person("Esi Mensah", "esi", "esi"),
    Person("Grace Okafor", "grace", "gokafor"),
)

_KNOWN = "SELECT 1 FROM identity.accounts WHERE account_type = 'gitlab' AND account_name = %(name)s"

_PUT = """
WITH person AS (INSERT INTO identity.users (display_name) VALUES (%(name)s) RETURNING user_id)
INSERT INTO identity.accounts (user_id, account_type, account_name, verified)
SELECT person.user_id, a.type, a.name, TRUE
  FROM person, unnest(%(types)s::text[], %(names)s::text[]) AS a (type, name)
    ON CONFLICT (account_type, account_name) DO NOTHING
"""


def record(conn: Connection) -> None:
    """Link the accounts of each person, in a transaction of its own. People that are known are kept."""
    with conn.transaction():
        # Two demos of one database at once would each add everybody.
        conn.execute("LOCK TABLE identity.accounts IN SHARE ROW EXCLUSIVE MODE")
        for person in TEAM:
            if conn.execute(_KNOWN, {"name": person.username}).fetchone() is None:
                types, names = zip(*person.accounts, strict=True)
                conn.execute(_PUT, {"name": person.name, "types": list(types), "names": list(names)})
