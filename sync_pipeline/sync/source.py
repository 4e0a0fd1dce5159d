"""The readers that the engine needs.

Belongs here: the protocols that readers of :mod:`sync_pipeline.sources` satisfy without knowing them.
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
        """The rows of a window. Raises WindowTooHard before it yields if a smaller one may work."""
        ...

    def read_single(self, rev_num: int) -> RevisionPage:
        """One revision that the ordinary way cannot read; quarantines it rather than give up."""
        ...

    def settle(self, natural_key: str, detail: str) -> RevisionPage:
        """Try a deferred fetch again."""
        ...

    def is_outside(self, rev_num: int) -> bool:
        """True if the revision, all of which may be seen, changed nothing of what is registered."""
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
        """A mark that tells the token in force from another one."""
        ...
