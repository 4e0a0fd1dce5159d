"""Revisions of Subversion compared with their source.

Belongs here: reading a window down to the single revision, and the kind of each difference. Revision
properties can be edited at any time, and hidden revisions can become visible and the reverse. Numbers are
never reused, so a stored revision that the source does not list is outside the registered path.
"""

from __future__ import annotations

from collections.abc import Iterator

from sync_pipeline.core.errors import WindowTooHard
from sync_pipeline.core.model import Depth, RevisionPage, RevisionWindow, Traffic, Window
from sync_pipeline.facts import comparison
from sync_pipeline.ledger import watermarks
from sync_pipeline.sync.attempt import Attempt
from sync_pipeline.sync.reconcile import Compared
from sync_pipeline.sync.revisions import RevisionWork, halves, marked
from sync_pipeline.sync.source import RevisionSource


class RevisionComparison:
    """Compares revisions for one attempt; ``work`` checks the identity of the repository."""

    def __init__(self, attempt: Attempt, source: RevisionSource, work: RevisionWork) -> None:
        self._attempt = attempt
        self._source = source
        self._work = work
        self._repo_id = attempt.repo.repo_id

    # See sync_pipeline.sync.reconcile.Comparison.
    lists_are_whole = True

    @property
    def traffic(self) -> Traffic:
        """The requests so far."""
        return self._source.traffic

    def begin(self) -> None:
        """Make sure that this is still the repository that we know. Raises SourceReplaced."""
        with self._attempt.database.connection() as conn:
            before = watermarks.get(conn, self._repo_id, self._attempt.job_type)
        self._work.check_source(before)

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
            rows, regressed = comparison.compare_revisions(conn, self._repo_id, batch.window, marked(batch))
        unread = {int(row.natural_key) for row in batch.quarantined} | regressed
        for row in rows:
            (number,) = row.key
            if row.source is None and (number in unread or not self._source.is_outside(number)):
                unread.add(number)
        keys = [str(number) for number in sorted(unread)]
        return Compared.of(batch.window, rows, _position, excluded=keys, unread=keys)


def _position(row: comparison.ComparedRow) -> RevisionWindow:
    (number,) = row.key
    return RevisionWindow(number, number + 1)
