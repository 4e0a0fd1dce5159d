"""Commits: walks from a fixed commit to the root, or to what is covered already.

Belongs here: pages of a walk, whether its answers can be believed, statistics. Does not belong here: which
tips are walked and what is covered (that needs the stored refs).

A walk names a commit, never a branch: it is immutable, so its pages are stable, and it goes on at any page.
Dates limit nothing, because git stops a date-limited walk at the first old-dated commit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from sync_pipeline.errors import Permanent, RowUnreadable, SourceGone, Transient
from sync_pipeline.gitlab_rows import CommitBatch, CommitRow
from sync_pipeline.model import Obligation, QuarantinedRow, TimeWindow
from sync_pipeline.sources.gitlab.fields import commit, quarantined
from sync_pipeline.sources.gitlab.paging import PER_PAGE, rows, stamp
from sync_pipeline.sources.gitlab.transport import Answer, Client, project_path

# What a page without statistics may get round: counting the lines of huge commits takes the server too long.
_TOO_HARD = frozenset({"server_error", "timeout", "content_too_large", "incomplete"})
_GIVE_UP_AFTER = 2
# After so many pages without them statistics are tried again, then after twice as many, and so on: a server
# that was restarted is no server that cannot count.
_SPARED = 5


class CommitReader:
    """Reads the commits of one project. One instance serves one job in one thread."""

    def __init__(self, client: Client, project_id: int, *, stats: bool = True) -> None:
        self._client = client
        self._project_id = project_id
        self._path = project_path(project_id, "repository", "commits")
        self._stats = stats
        self._failed_stats = 0
        self._spared = 0

    def read_tip(
        self,
        tip: str,
        covered: str | None = None,
        first_page: int = 1,
        tip_read: bool = False,
        whole: Callable[[], tuple[int, bool]] = lambda: (1, False),
    ) -> Iterator[CommitBatch]:
        """Everything reachable from ``tip`` but not from ``covered``; from ``first_page`` on, where an
        interrupted walk goes on (``tip_read`` as its last batch said).

        Where the answer about the range cannot be believed, because the server no longer has ``covered`` (or
        ``tip`` is reachable from it), the whole of ``tip`` is read; ``whole`` then tells where that goes on.
        The last batch is ``complete``. Raises SourceGone with code ``no_commit`` where the server does not
        have ``tip``.
        """
        if covered is not None:
            try:
                for batch in self._walk(tip, covered, first_page, tip_read):
                    yield batch
                    if batch.complete:
                        return
            except (SourceGone, Permanent) as error:
                if error.code not in ("no_object", "bad_request"):
                    raise
            first_page, tip_read = whole()
        complete = False
        try:
            for batch in self._walk(tip, None, first_page, tip_read):
                yield batch
                complete = batch.complete
        except (SourceGone, Permanent) as error:
            if error.code not in ("no_object", "bad_request"):
                raise
        if not complete:
            raise SourceGone(f"the server does not have commit {tip}", code="no_commit")

    def read_days(self, window: TimeWindow) -> Iterator[CommitBatch]:
        """The commits of all refs committed in ``window``, as far as git finds them: this refreshes rows and
        proves nothing, so no batch is ``complete``."""
        query = {"all": "true", "since": stamp(window.since), "until": stamp(window.until)}
        for page, answer, aside in self._pages(query, 1):
            yield self._batch(None, None, page, answer, aside, tip_read=False)

    def settle(self, sha: str) -> CommitRow:
        """One commit with its statistics. Raises as the transport does, RowUnreadable where it is none."""
        return commit(self._client.get(f"{self._path}/{sha}", {"stats": "true"}).data)

    def _walk(self, tip: str, covered: str | None, first_page: int, tip_read: bool) -> Iterator[CommitBatch]:
        query = {"ref_name": tip if covered is None else f"{covered}..{tip}"}
        for page, answer, owing in self._pages(query, first_page):
            batch = self._batch(tip, covered, page, answer, owing, tip_read=tip_read)
            # Behind a full last page comes an empty one. A range whose ends were cleaned away since the page
            # before is empty as well.
            if page > 1 and batch.complete and not answer.data and not self._begins_with(tip, query):
                batch = replace(batch, complete=False)
            tip_read = batch.tip_read
            yield batch

    def _begins_with(self, tip: str, query: dict[str, Any]) -> bool:
        """Whether the server still has both ends of a walk."""
        answer = self._client.get(self._path, {**query, "per_page": 1, "page": 1})
        return any(isinstance(row, dict) and row.get("id") == tip for row in rows(answer, self._path))

    def _pages(self, query: dict[str, Any], page: int) -> Iterator[tuple[int, Answer, bool]]:
        """Number, answer, and whether statistics were left out, of each page."""
        while True:
            answer, without = self._page({**query, "per_page": PER_PAGE, "page": page})
            yield page, answer, without
            if answer.next_query is None or not answer.data:
                return
            page += 1

    def _page(self, query: dict[str, Any]) -> tuple[Answer, bool]:
        if not self._stats:
            return self._client.get(self._path, query), False
        if self._spared > 0:
            self._spared -= 1
        else:
            try:
                answer = self._client.get(self._path, {**query, "with_stats": "true"})
                self._failed_stats = 0
                return answer, False
            except (Transient, Permanent) as error:
                if error.code not in _TOO_HARD:
                    raise
                self._failed_stats += 1
                if self._failed_stats >= _GIVE_UP_AFTER:
                    self._spared = _SPARED * 2 ** (self._failed_stats - _GIVE_UP_AFTER)
        return self._client.get(self._path, query), True

    def _batch(
        self,
        tip: str | None,
        covered: str | None,
        page: int,
        answer: Answer,
        without: bool,
        *,
        tip_read: bool,
    ) -> CommitBatch:
        found: list[CommitRow] = []
        aside: list[QuarantinedRow] = []
        for index, data in enumerate(rows(answer, self._path)):
            try:
                found.append(commit(data))
            except RowUnreadable as error:
                aside.append(quarantined(f"{tip}:{page}:{index}", error))
        tip_read = tip_read or any(row.sha == tip for row in found)
        last = answer.next_query is None or not answer.data
        return CommitBatch(
            tip=tip,
            covered=covered,
            page=page,
            next_page=None if last else page + 1,
            rows=tuple(found),
            tip_read=tip_read,
            complete=last and tip_read,
            date=answer.date,
            quarantined=tuple(aside),
            obligations=tuple(_owed(row) for row in found) if without else (),
        )


def _owed(row: CommitRow) -> Obligation:
    return Obligation(row.sha, "stats", "the server could not count the lines of a page of commits")
