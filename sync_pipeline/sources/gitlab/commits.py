"""Commits: walks from a fixed commit to the root or to what is covered already, and the list of all refs.

Belongs here: pages of both, whether the answers of a walk can be relied on, statistics. Does not belong here:
which tips are walked and what is covered (that needs the stored refs).

A walk names a commit, never a branch: it is immutable, so its pages are stable, and it goes on at any page.
Dates limit nothing, because git stops a date-limited walk at the first old-dated commit. The list of all refs
moves with each push, and also has commits of hidden refs. So its rows are candidates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from sync_pipeline.core.errors import Permanent, RowUnreadable, SourceGone, SyncError, Transient
from sync_pipeline.core.gitlab_rows import CommitPage, CommitRow
from sync_pipeline.core.model import DeferredFetch, QuarantinedRow, TimeWindow
from sync_pipeline.sources.gitlab.fields import commit, is_sha, payload, quarantined
from sync_pipeline.sources.gitlab.page_bisect import (
    PER_PAGE,
    UNLISTED,
    UnreadableRow,
    bisect_page,
    is_splittable,
)
from sync_pipeline.sources.gitlab.paging import Progress, rows, stamp
from sync_pipeline.sources.gitlab.transport import Client, Response, project_path

_GIVE_UP_AFTER = 2
# Statistics are tried again after this many pages without them, then after twice as many, and so on. A
# restarted server may count again.
_SPARED = 5
_NO_STATS = "the server could not count the lines of a page of commits"
# Each so many pages of a list one more is requested at once. So a short list causes no request in vain.
_PAGES_PER_REQUEST = 3
# Pages that wait in memory for the ones before them. Of a short list fewer do, because nothing tells where it
# ends: those behind the end are requested in vain.
_MAX_AHEAD = 16
_MIN_AHEAD = 2
_PAGES_PER_AHEAD = 16


class CommitReader:
    """Reads the commits of one project. One instance serves one job. A single walk, and the list of all refs,
    have as many requests in flight as the client allows."""

    def __init__(self, client: Client, project_id: int, *, stats: bool = True) -> None:
        self._client = client
        self._project_id = project_id
        self._path = project_path(project_id, "repository", "commits")
        self._stats = stats
        self.parallel = client.parallel
        self._failed_stats = 0
        self._spared = 0

    def read_tip(
        self,
        tip: str,
        base: str | None = None,
        first_page: int = 1,
        tip_read: bool = False,
        whole: Callable[[], tuple[int, bool]] = lambda: (1, False),
        names: Sequence[str] = (),
        *,
        ahead: bool = False,
    ) -> Iterator[CommitPage]:
        """Everything reachable from ``tip`` but not from ``base``. An interrupted walk is continued at
        ``first_page``, with ``tip_read`` of its last page. ``ahead``: several pages are requested at once.

        The answer about the range cannot be relied on if the server does not have ``base``, or if ``tip`` is
        reachable from it. Then the whole of ``tip`` is read, from where ``whole`` says. Where a branch or tag
        is named like the id ``tip``, the server may take the id for the name. ``names`` are then the full
        names of refs that lead to ``tip``, and are requested after the id. The last page is ``complete``.
        Raises SourceGone with code ``no_commit`` where the server does not give the history of ``tip``.
        """
        for start in dict.fromkeys((base, None)):
            if start != base:
                first_page, tip_read = whole()
            for revision in (tip, *names):
                if names and first_page > 1 and not self._begins_with(tip, _query(start, revision)):
                    continue
                try:
                    for page in self._walk(tip, start, first_page, tip_read, revision, ahead):
                        yield page
                        if page.complete:
                            return
                except (SourceGone, Permanent) as error:
                    if error.code not in ("no_object", "bad_request"):
                        raise
                # A name may lead elsewhere by now, so its pages are not continued.
                first_page, tip_read = 1, False
        raise SourceGone(f"the server does not give the history of commit {tip}", code="no_commit")

    def read_days(self, window: TimeWindow) -> Iterator[CommitPage]:
        """The commits of all refs committed in ``window``, as far as git finds them: this refreshes rows and
        proves nothing, so no page is ``complete``."""
        query = {"all": "true", "since": stamp(window.since), "until": stamp(window.until)}
        for number, answer, without in self._pages(query, 1):
            yield self._commit_page(None, None, number, answer, without, tip_read=False)

    def read_all(self, first_page: int = 1, following: Callable[[], int] = lambda: 0) -> Iterator[CommitPage]:
        """The commits of all refs from ``first_page`` on, newest first. A page that a push or a deletion has
        shifted lacks commits or repeats some, so no page is ``complete``. Rows that cannot be read are left
        out: they may be of hidden refs. ``following`` tells how many rows the next pages have at least."""
        query = {"all": "true"}
        for number, answer, without in self._pages(query, first_page, ahead=True, following=following):
            page = self._commit_page(None, None, number, answer, without, tip_read=False)
            yield replace(page, quarantined=())

    def settle(self, sha: str) -> CommitRow:
        """One commit with its statistics. Raises as the transport does, and RowUnreadable if it is no commit
        or another one.
        """
        row = commit(self._client.get(f"{self._path}/{sha}", {"stats": "true"}).data)
        if row.sha != sha:
            raise RowUnreadable(
                f"asked for commit {sha}, the server gives {row.sha}", payload=payload(row.raw)
            )
        return row

    def _walk(
        self, tip: str, base: str | None, first_page: int, tip_read: bool, revision: str, ahead: bool
    ) -> Iterator[CommitPage]:
        """The pages of ``revision``, which leads to ``tip``. Ends at once if it does not begin with it."""
        query = _query(base, revision)
        for number, answer, without in self._pages(query, first_page, ahead=ahead):
            if number == 1 and _begins_elsewhere(tip, answer):
                return
            page = self._commit_page(tip, base, number, answer, without, tip_read=tip_read)
            # Behind a full last page comes an empty one. A range whose ends were cleaned away since the page
            # before is empty as well. A name may lead elsewhere by now.
            is_doubtful = revision != tip or not answer.data
            if number > 1 and page.complete and is_doubtful and not self._begins_with(tip, query):
                page = replace(page, complete=False)
            tip_read = page.tip_read
            yield page

    def _begins_with(self, tip: str, query: dict[str, Any]) -> bool:
        """Whether the server still has both ends of a walk."""
        try:
            answer = self._client.get(self._path, {**query, "per_page": 1, "page": 1})
        except (Transient, Permanent) as error:
            # The page has a row that the server cannot return.
            if is_splittable(error):
                return True
            raise
        return any(isinstance(row, dict) and row.get("id") == tip for row in rows(answer, self._path))

    def _pages(
        self,
        query: dict[str, Any],
        page: int,
        *,
        ahead: bool = False,
        following: Callable[[], int] = lambda: 0,
    ) -> Iterator[tuple[int, Response, bool]]:
        """Number, response, and whether statistics were left out, of each page. An :class:`UnreadableRow` is
        a row that the server cannot return. ``ahead``: the further the list goes, the more pages are
        requested at once. ``following`` is as for :meth:`read_all`.
        """
        size = PER_PAGE if page == 1 else 0
        progress = Progress(self._path)
        first = page
        coming: dict[int, Future[Response]] = {}
        pool = ThreadPoolExecutor(_MAX_AHEAD, thread_name_prefix="pages")
        try:
            while True:
                asked = {**query, "per_page": PER_PAGE, "page": page}
                more = self._pages_ahead(page - first, following()) if ahead else 0
                for number in range(page + 1, page + 1 + more):
                    if _is_last(coming.get(number - 1)):
                        break
                    if number not in coming and not self._failed_stats:
                        coming[number] = pool.submit(self._plain_page, {**asked, "page": number})
                try:
                    answer, without = self._page(asked, coming.pop(page, None))
                    size = size or len(rows(answer, self._path))
                except (Transient, Permanent) as error:
                    if not is_splittable(error):
                        raise
                    # Some servers return fewer rows than requested; then a page begins elsewhere.
                    size = size or len(self._listed({**asked, "page": page - 1}).data)
                    answer, without = self._in_pieces(asked, page, error, size), False
                yield page, answer, without
                if answer.next_query is None or not answer.data:
                    return
                progress.check(answer, page)
                page += 1
        finally:
            pool.shutdown(cancel_futures=True)

    def _pages_ahead(self, read: int, following: int) -> int:
        """How many pages are requested beside the next one. ``read`` pages came, and the next ones have at
        least ``following`` rows."""
        guessed = min(read // _PAGES_PER_REQUEST, _MIN_AHEAD + read // _PAGES_PER_AHEAD)
        certain = (following - 1) // PER_PAGE
        return min(self.parallel() - 1, _MAX_AHEAD, max(guessed, certain))

    def _plain_page(self, query: dict[str, Any]) -> Response:
        return self._client.get(self._path, {**query, "with_stats": "true"} if self._stats else query)

    def _page(self, query: dict[str, Any], coming: Future[Response] | None = None) -> tuple[Response, bool]:
        """The page of ``query``, and whether statistics were left out. A page that was requested ahead and
        failed is requested again."""
        if coming is not None:
            try:
                return coming.result(), False
            except (SourceGone, Permanent, Transient):
                pass
        if not self._stats:
            return self._client.get(self._path, query), False
        if self._spared > 0:
            self._spared -= 1
        else:
            try:
                answer = self._plain_page(query)
                self._failed_stats = 0
                return answer, False
            except (Transient, Permanent) as error:
                # The server takes too long to count the lines of huge commits.
                if not is_splittable(error):
                    raise
                self._failed_stats += 1
                if self._failed_stats >= _GIVE_UP_AFTER:
                    self._spared = _SPARED * 2 ** (self._failed_stats - _GIVE_UP_AFTER)
        return self._client.get(self._path, query), True

    def _listed(self, query: dict[str, Any]) -> Response:
        answer = self._client.get(self._path, query)
        rows(answer, self._path)
        return answer

    def _in_pieces(self, query: dict[str, Any], page: int, error: SyncError, size: int) -> Response:
        counted = {**query, "with_stats": "true"} if self._stats else query

        def ask(number: int, count: int) -> Response:
            return self._listed({**counted, "page": number, "per_page": count})

        found = bisect_page(ask, page, error, size)
        return Response(found.rows, {"page": [str(page + 1)]} if found.more else None, found.date)

    def _commit_page(
        self,
        tip: str | None,
        base: str | None,
        number: int,
        answer: Response,
        without: bool,
        *,
        tip_read: bool,
    ) -> CommitPage:
        found: list[CommitRow] = []
        quarantined_rows: list[QuarantinedRow] = []
        for index, data in enumerate(rows(answer, self._path)):
            if isinstance(data, UnreadableRow):
                quarantined_rows.append(QuarantinedRow(f"{tip}:{number}:{index}", UNLISTED, data.error, b""))
                # A walk begins with its tip, and one that cannot be relied on is empty.
                tip_read = tip_read or (data.index == 0 and len(answer.data) > 1)
                continue
            try:
                found.append(commit(data))
            except RowUnreadable as error:
                quarantined_rows.append(quarantined(f"{tip}:{number}:{index}", error))
        tip_read = tip_read or any(row.sha == tip for row in found)
        last = answer.next_query is None or not answer.data
        return CommitPage(
            window=None,
            rows=tuple(found),
            quarantined=tuple(quarantined_rows),
            deferred=tuple(DeferredFetch(row.sha, "stats", _NO_STATS) for row in found) if without else (),
            date=answer.date,
            tip=tip,
            base=base,
            number=number,
            next_number=None if last else number + 1,
            tip_read=tip_read,
            complete=last and tip_read,
        )


def _is_last(coming: Future[Response] | None) -> bool:
    """Whether a page that was requested ahead has come and is the last one."""
    return (
        coming is not None
        and coming.done()
        and coming.exception() is None
        and coming.result().next_query is None
    )


def _query(base: str | None, revision: str) -> dict[str, Any]:
    return {"ref_name": revision if base is None else f"{base}..{revision}"}


def _begins_elsewhere(tip: str, answer: Response) -> bool:
    """Whether the first row of a walk is another commit than its tip. A row without a name may be any."""
    first = answer.data[0] if isinstance(answer.data, list) and answer.data else None
    name = first.get("id") if isinstance(first, dict) else None
    return is_sha(name) and name != tip
