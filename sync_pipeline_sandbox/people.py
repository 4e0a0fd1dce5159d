"""The people of the demo: one team that works in GitLab and in Subversion.

Belongs here: their names at each source.
"""

from __future__ import annotations

from dataclasses import dataclass


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
