"""Protocols of the readers that the engine uses.

Belongs here: protocols that readers of :mod:`sync_pipeline.sources` satisfy without importing them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from sync_pipeline.core.model import Repository, RevisionPage, RevisionWindow, Traffic, Visit
from sync_pipeline.sources.gitlab.transport import Client


class RevisionSource(Protocol):
    """A reader of revisions. One instance serves one job in one thread."""

    @property
    def traffic(self) -> Traffic:
        """The traffic so far."""
        ...

    def visit(self) -> Visit:
        """The identity of the repository and its youngest revision."""
        ...

    def read(self, window: RevisionWindow) -> Iterator[RevisionPage]:
        """The rows of a window. Raises WindowTooHard before the first row if a smaller window may work."""
        ...

    def read_single(self, rev_num: int) -> RevisionPage:
        """Read one revision that the ordinary way cannot read. A revision that cannot be read at all is
        quarantined."""
        ...

    def settle(self, natural_key: str, detail: str) -> RevisionPage:
        """Try a deferred fetch again."""
        ...

    def is_outside(self, rev_num: int) -> bool:
        """True if the whole revision can be seen and changed nothing below the registered folder."""
        ...


class Sources(Protocol):
    """Makes readers and clients for the engine; see :class:`sync_pipeline.sync.readers.Readers`."""

    def svn(self, repo: Repository, cancelled: Callable[[], bool]) -> RevisionSource:
        """The reader of an SVN repository; ``cancelled`` returns whether to stop."""
        ...

    def gitlab(self, instance: str, cancelled: Callable[[], bool], *, tenant: str) -> Client:
        """A client of a GitLab server for one job, of a repository of ``tenant``."""
        ...

    def fingerprint(self, instance: str) -> str:
        """A digest that differs for each token."""
        ...
