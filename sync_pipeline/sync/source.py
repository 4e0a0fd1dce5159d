"""What the engine needs of a reader.

Belongs here: the protocol that readers of :mod:`sync_pipeline.sources` satisfy without knowing it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from sync_pipeline.model import Batch, Repository, RevisionWindow, Visit


class RevisionSource(Protocol):
    """What the engine needs of a reader. One instance serves one job in one thread."""

    @property
    def calls(self) -> int:
        """Commands or requests sent so far."""
        ...

    def visit(self) -> Visit:
        """Look at the front door."""
        ...

    def read(self, window: RevisionWindow) -> Iterator[Batch]:
        """The rows of a window. Raises WindowTooHard before it yields if a smaller one may work."""
        ...

    def read_single(self, rev_num: int) -> Batch:
        """One revision that the ordinary way cannot read; quarantines it rather than give up."""
        ...

    def settle(self, natural_key: str, detail: str) -> Batch:
        """Another try at a detail that is owed."""
        ...


SourceFactory = Callable[[Repository, Callable[[], bool]], RevisionSource]
"""Makes the reader of a repository; the second argument tells, when called, whether to stop."""
