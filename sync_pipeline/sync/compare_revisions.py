"""Revisions of Subversion compared with their source.

Belongs here: reading a window down to the single revision, and what each difference is. Revision properties
can be edited at any time, and what is hidden can become visible and the other way round; numbers are never
given anew, so a stored revision of which the source has nothing is one outside the registered path.
"""

from __future__ import annotations

from collections.abc import Iterator

from sync_pipeline.errors import WindowTooHard
from sync_pipeline.model import (
    Depth,
    Difference,
    DifferenceKind,
    RevisionPage,
    RevisionWindow,
    Traffic,
    Window,
)
from sync_pipeline.store import comparison, watermarks
from sync_pipeline.sync.attempt import Attempt
from sync_pipeline.sync.reconcile import Compared
from sync_pipeline.sync.revisions import RevisionWork, halves, marked
from sync_pipeline.sync.source import RevisionSource


class RevisionComparison:
    """Compares revisions for one attempt; ``work`` looks at the front door."""

    def __init__(self, attempt: Attempt, source: RevisionSource, work: RevisionWork) -> None:
        self._attempt = attempt
        self._source = source
        self._work = work
        self._repo_id = attempt.repo.repo_id

    # See sync_pipeline.sync.reconcile.Comparison.
    lists_are_whole = True

    @property
    def traffic(self) -> Traffic:
        """What was sent so far."""
        return self._source.traffic

    def begin(self) -> None:
        """Make sure that this is still the repository that we know. Raises SourceReplaced."""
        with self._attempt.database.connection() as conn:
            before = watermarks.get(conn, self._repo_id, self._attempt.job_type)
        self._work.look(before)

    def read(self, window: Window, depth: Depth) -> Iterator[Compared]:
        """See :class:`sync_pipeline.sync.reconcile.Comparison`; a log is whole, so ``depth`` changes
        nothing."""
        assert isinstance(window, RevisionWindow)
        for piece in window.pieces(self._attempt.settings.chunks.revisions):
            for batch in self._batches(piece):
                yield self._compare(batch)

    def _batches(self, window: RevisionWindow) -> Iterator[RevisionPage]:
        todo = [window]
        while todo:
            part = todo.pop()
            self._attempt.stop_if_asked()
            try:
                yield from self._source.read(part)
            except WindowTooHard as hard:
                self._work.end_if_silent(hard)
                if len(part) == 1:
                    yield self._source.read_single(part.first)
                else:
                    todo += halves(part)

    def _compare(self, batch: RevisionPage) -> Compared:
        assert isinstance(batch.window, RevisionWindow)
        with self._attempt.database.connection() as conn:
            found = comparison.compare_revisions(conn, self._repo_id, batch.window, marked(batch))
        unread = {int(row.natural_key) for row in batch.quarantined}
        outside = [n for n in found.extra if n not in unread and self._source.is_outside(n)]
        differences = [
            *(_difference(n, DifferenceKind.MISSING) for n in found.missing),
            *(_difference(n, DifferenceKind.EXTRA) for n in outside),
            *(_difference(n, DifferenceKind.CHANGED, fields) for n, fields in found.changed.items()),
        ]
        unread |= {*found.poorer, *found.extra} - set(outside)
        keys = tuple(map(str, sorted(unread)))
        return Compared(batch.window, found.expected, found.stored, tuple(differences), unread=keys)


def _difference(rev_num: int, kind: DifferenceKind, fields: tuple[str, ...] = ()) -> Difference:
    return Difference(str(rev_num), kind, RevisionWindow(rev_num, rev_num + 1), fields)
