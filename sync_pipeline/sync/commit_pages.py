"""Pages of commits on their way into the tables.

Belongs here: how a page of any reading is stored, and a commit that is requested by its name. Does not belong
here: which pages are read (:mod:`sync_pipeline.sync.commits`, :mod:`sync_pipeline.sync.commit_history`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

from sync_pipeline.core.errors import RowUnreadable, SyncError
from sync_pipeline.core.gitlab_rows import CommitPage, CommitRow
from sync_pipeline.core.model import Counts, DeferredFetch, Evidence, QuarantinedRow, TimeWindow
from sync_pipeline.core.windows import span
from sync_pipeline.facts import commits, refs
from sync_pipeline.sources.gitlab.children import OWN_ERRORS
from sync_pipeline.sources.gitlab.commits import CommitReader
from sync_pipeline.sources.gitlab.fields import quarantined
from sync_pipeline.sources.gitlab.page_bisect import UNLISTED
from sync_pipeline.sync.attempt import Attempt
from sync_pipeline.sync.chunks import store_in_chunks
from sync_pipeline.sync.pages import Batch, FactStore, write_page

# Errors of one commit, whose details stay deferred. Every other error is one of the job.
_STAYS_DEFERRED = OWN_ERRORS | {"no_object"}


@dataclass
class CommitFacts(FactStore[CommitPage]):
    """Writes pages of commits. ``walk`` is the one that reads them, None where they are read by date or by
    name. Commits in ``overriding`` replace what is stored. ``reached_again``: a walk came through a commit
    that no ref reached until now, or led there."""

    repo_id: int
    walk: commits.Walk | None = None
    overriding: set[str] = field(default_factory=set)
    reached_again: bool = False

    def store(self, batch: Batch, page: CommitPage) -> Counts:
        """See :class:`sync_pipeline.sync.pages.FactStore`."""
        if again := [row.sha for row in page.rows if row.sha in self.overriding]:
            commits.invalidate(batch.conn, self.repo_id, again)
        if self.walk is not None and not self.reached_again:
            met = {sha for row in page.rows for sha in (row.sha, *(row.parents or ()))}
            self.reached_again = refs.any_unreachable(batch.conn, self.repo_id, met)
        return commits.store_commits(
            batch.conn,
            repo_id=self.repo_id,
            batch_id=batch.batch_id,
            rows=page.rows,
            walk_id=None if self.walk is None else self.walk.walk_id,
            deferred={one.natural_key for one in page.deferred},
        )

    def finish(self, batch: Batch, page: CommitPage) -> None:
        """See :class:`sync_pipeline.sync.pages.FactStore`."""
        if page.absent:
            commits.note_parents_asked(batch.conn, self.repo_id, page.absent)
        if self.walk is None or not page.number:
            return
        if page.complete:
            commits.end_walk(batch.conn, self.walk.walk_id)
        else:
            # An answer without its tip cannot be relied on: the next visit begins it again.
            commits.record_page(
                batch.conn,
                self.walk.walk_id,
                next_page=page.next_number or 1,
                tip_read=page.tip_read and page.next_number is not None,
            )

    def key(self, row: CommitRow) -> str:
        """See :class:`sync_pipeline.sync.pages.FactStore`."""
        return row.sha


class CommitPages:
    """Stores what ``reader`` reads for one attempt."""

    def __init__(self, attempt: Attempt, reader: CommitReader) -> None:
        self._attempt = attempt
        self.reader = reader
        self.facts = CommitFacts(attempt.repo.repo_id)

    def store(self, window: TimeWindow, page: CommitPage, walk: commits.Walk | None = None) -> int:
        """Store ``page`` of ``walk`` under the lease that the attempt holds; returns its number of rows."""
        self.facts.walk = walk
        write_page(self._attempt, replace(page, window=window, evidence=_evidence(page, walk)), self.facts)
        return len(page.rows)

    def store_one(self, window: TimeWindow, page: CommitPage, walk: commits.Walk | None = None) -> None:
        """Store a page that was read by itself, under a lease of its own."""
        with self._attempt.lease():
            self.store(window, page, walk)

    def store_all(self, window: TimeWindow, pages: Iterator[CommitPage]) -> None:
        """Store pages of commits that no walk reads."""
        rows = self._attempt.settings.chunks.rows
        store_in_chunks([self._attempt], pages, partial(self.store, window), rows=rows)

    def read_unlisted(
        self, window: TimeWindow, shas: Iterable[str], walk: commits.Walk | None = None
    ) -> None:
        """Request commits that no page of ``walk`` returned. A commit that does not come is deferred and
        quarantined under its name."""
        for sha in sorted(shas):
            page = self.read_by_name(sha, "stats")
            if not page.rows and not page.quarantined:
                unlisted = QuarantinedRow(sha, UNLISTED, page.deferred[0].error, b"")
                page = replace(page, quarantined=(unlisted,))
            self.store_one(window, page, walk)

    def read_by_name(self, sha: str, detail: str) -> CommitPage:
        """A commit by its name, for its ``detail``, which stays deferred where it does not come."""
        page = CommitPage(None, (), number=0)
        try:
            row = self.reader.settle(sha)
        except RowUnreadable as error:
            late = DeferredFetch(sha, detail, str(error))
            return replace(page, quarantined=(quarantined(sha, error),), deferred=(late,))
        except SyncError as error:
            if error.code not in _STAYS_DEFERRED:
                raise
            if error.code == "no_object" and detail == "parents":
                # A commit that merge requests list stays a fact; no more of it can be read.
                return replace(page, absent=(sha,))
            return replace(page, deferred=(DeferredFetch(sha, detail, str(error)),))
        lacking = {
            "stats": "the server sent no numbers of lines" if row.additions is None else None,
            "parents": "the server sent no parents" if row.parents is None else None,
        }
        deferred = tuple(DeferredFetch(sha, name, error) for name, error in lacking.items() if error)
        return replace(page, rows=(row,), deferred=deferred)


def _evidence(page: CommitPage, walk: commits.Walk | None) -> Evidence:
    """Where a page was read. A replay reads the time in which its commits were committed."""
    if page.tip is not None:
        without = f" without {page.base[:12]}" if page.base else ""
        position = f"page {page.number} of the commits of {page.tip[:12]}{without}"
    elif walk is not None and page.number:
        first = page.first_number or page.number
        numbers = f"page {page.number}" if first == page.number else f"pages {first} to {page.number}"
        position = f"{numbers} of the commits of all refs"
    elif page.date is not None:
        position = f"page {page.number} of the commits by date"
    else:
        position = "commits by name"
    times = [row.committed_at for row in page.rows if row.committed_at is not None]
    return Evidence(position, span(times))
