"""Reading lists to their end: by links, and by time if the list moves while it is read.

Belongs here: which page is requested next and when a list ends. Does not belong here: the rows, and how a
request is sent (:mod:`sync_pipeline.sources.gitlab.transport`).

A list ordered by ``updated_at`` moves. An edited row goes to the end, and every row behind it moves one
position forward, into a page that was already read. So only the first page of each request counts, and the
next request begins at the last time seen. If more than a page of rows share one time, they are read by page
number, pass after pass. That ends when the rows of all passes equal the server's count, or when two passes
agree. Both detect a row that leaves meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from typing import Any

from sync_pipeline.core.errors import AnswerStalled, Permanent, SyncError, Transient
from sync_pipeline.core.model import TimeWindow
from sync_pipeline.sources.gitlab.page_bisect import (
    PER_PAGE,
    BisectedPage,
    UnreadableRow,
    bisect_page,
    is_splittable,
)
from sync_pipeline.sources.gitlab.transport import Client, Params, Response

# The API shows milliseconds of what the database keeps in microseconds.
_STEP = timedelta(milliseconds=1)
# Some servers show whole seconds of it.
_SECOND = timedelta(seconds=1)
_MAX_PASSES = 10
# After this many passes without an end, rows of one time are requested in the order of their creation.
_PASSES_BY_UPDATE = 3
_MAX_EMPTY = 100
# Pages of one list. Cursors are for lists of refs and projects, which have fewer than a million rows. Page
# numbers are also for histories, of which the longest that are known have two million commits.
_MAX_PAGES_BY_CURSOR = 10_000
_MAX_PAGES_BY_NUMBER = 100_000
_MAX_READINGS = 4

Key = tuple[int, datetime]
"""A version of a row: its id and its time of update."""


def pages(
    client: Client,
    path: str,
    params: Params | None = None,
    *,
    empty_ends: bool = False,
    unreadable: list[UnreadableRow] | None = None,
) -> Iterator[Response]:
    """All pages of a list. A short page is not the last one, an empty one only with ``empty_ends``: branches,
    tags and commits announce a page behind the last.

    With ``unreadable`` a failing page is read in smaller pages, and the unreadable rows are added there. That
    is for lists with page numbers. Without it only a page that is too large, or whose answer stalls, is read
    in smaller pages. Raises as :meth:`Client.get`, and Transient where the links of the pages form a loop.
    """
    query: dict[str, Any] = {"per_page": PER_PAGE, **(params or {})}
    asked: set[str] = set()
    size = PER_PAGE
    progress = Progress(path)
    while True:
        if (page := repr(sorted(query.items()))) in asked:
            raise Transient(f"GET {path}: the server links from a page back to it", code="paging_loop")
        asked.add(page)
        number = _number(query)
        try:
            answer = client.get(path, query)
        except (Transient, Permanent) as error:
            if number is None or not is_splittable(error):
                raise
            is_too_long = error.code == "content_too_large" or isinstance(error, AnswerStalled)
            if unreadable is None and not is_too_long:
                raise
            ask = partial(_ask, client, path, query)
            found = bisect_page(ask, number, error, size)
            if unreadable is not None:
                unreadable += found.unreadable
            elif found.unreadable:
                raise
            following = {"page": [str(number + 1)]} if found.more else None
            answer = Response(
                [row for row in found.rows if not isinstance(row, UnreadableRow)], following, found.date
            )
        else:
            size = max(len(rows(answer, path)), 1)
        yield answer
        if answer.next_query is None or (empty_ends and not answer.data):
            return
        progress.check(answer, number)
        query = {**query, **answer.next_query}


def _number(query: Mapping[str, Any], default: int | None = 1) -> int | None:
    """The page number of ``query``; None if the list has no page numbers."""
    page = query.get("page", default)
    text = str(page[0] if isinstance(page, list) and page else page)
    return int(text) if text.isdecimal() and "pagination" not in query else None


def _ask(client: Client, path: str, query: Mapping[str, Any], page: int, per_page: int) -> Response:
    answer = client.get(path, {**query, "page": page, "per_page": per_page})
    rows(answer, path)
    return answer


class Progress:
    """Detects a list that would never end, with any kind of paging. One instance sees the pages of a pass."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._pages: set[int] = set()
        self._links: set[str] = set()
        self._empty = 0
        self._count = 0

    def check(self, answer: Response, page: int | None) -> None:
        """Check ``answer``, which announces another page. It is the response for page ``page`` (None: pages
        have no numbers).

        Raises Transient if its link leads back to that page or an earlier one, or if the same page or link
        came before. Raises Transient too after too many empty pages in a row, and after more pages than any
        list has.
        """
        self._count += 1
        if self._count > (_MAX_PAGES_BY_CURSOR if page is None else _MAX_PAGES_BY_NUMBER):
            raise self._loop(f"the server announces more than {self._count} pages")
        following = _number(answer.next_query or {}, None)
        if page is not None and following is not None and following <= page:
            raise self._loop(f"the server links from page {page} to page {following}")
        # The page count alone would not detect a link without a number that leads to the same page.
        link = repr(sorted((answer.next_query or {}).items()))
        if link in self._links:
            raise self._loop("the server links from several pages to the same one")
        self._links.add(link)
        self._empty = 0 if answer.data else self._empty + 1
        if self._empty > _MAX_EMPTY:
            # No list has that many empty pages.
            raise self._loop("the server announces one empty page after the other")
        if isinstance(answer.data, list) and answer.data:
            # The rows of a list differ, so they identify a page. A proxy may ignore its number.
            content = hash((len(answer.data), repr(answer.data[0]), repr(answer.data[-1])))
            if content in self._pages:
                raise self._loop("the server sends the same page under several numbers")
            self._pages.add(content)

    def _loop(self, what: str) -> Transient:
        return Transient(f"GET {self._path}: {what}; the list would have no end", code="paging_loop")


def rows(answer: Response, path: str) -> list[Any]:
    """The rows of a page. Raises Transient if the response is no list."""
    if not isinstance(answer.data, list):
        raise Transient(f"GET {path}: the server sent no list", code="not_json")
    return answer.data


@dataclass(frozen=True, slots=True)
class Position:
    """The state of reading a list by time. The next request is for rows updated from ``after`` to ``before``,
    both inclusive, page ``page``.

    ``seen`` are the versions that the next responses may repeat. ``tie`` is set while more rows than a page
    share one time. Then ``read`` are the versions of this pass, repeated ones too, and ``last_pass`` those of
    the pass before. ``found`` are the numbers of the rows that came since the server's ``total`` last
    changed. ``begun`` are both at the start of the pass.
    """

    after: datetime
    before: datetime
    page: int = 1
    seen: frozenset[Key] = frozenset()
    tie: bool = False
    read: tuple[Key, ...] = ()
    last_pass: tuple[Key, ...] | None = None
    passes: int = 0
    until: datetime | None = None
    found: frozenset[int] = frozenset()
    total: int | None = None
    begun: tuple[int | None, int] = (None, 0)


def start(window: TimeWindow) -> Position:
    """The position before the first request for ``window``, whose edges are widened to milliseconds."""
    after = window.since - timedelta(microseconds=window.since.microsecond % 1000)
    before = window.until + timedelta(microseconds=-window.until.microsecond % 1000)
    return Position(after, before)


def step(position: Position, keys: Sequence[Key], more: bool, total: int | None = None) -> Position | None:
    """The position after a response with the versions ``keys``; None at the end of the list. ``more``: the
    server announced another page. ``total`` is its count of rows (None: not given). Raises Transient if the
    response is not reliable.
    """
    if not position.tie and any(one[1] > other[1] for one, other in pairwise(keys)):
        raise Transient("the server does not sort by updated_at; the list cannot be read", code="unordered")
    times = [time for _, time in keys]
    if times and (min(times) < position.after - _SECOND or max(times) > position.before + _STEP):
        raise Transient("the server does not filter by updated_at; the list cannot be read", code="unordered")
    seen = position.seen | frozenset(keys)
    if position.tie:
        found = frozenset(number for number, _ in keys)
        if total is not None and total == position.total:
            found |= position.found
        read = (*position.read, *keys)
        return _tied(replace(position, seen=seen, read=read, found=found, total=total), more)
    if not more:
        return None
    if not keys:
        return replace(position, page=position.page + 1)
    last = keys[-1][1]
    after = last - _STEP
    if after > position.after:
        return Position(after, position.before, seen=_from(seen, after))
    # A whole second may stand for all times within it.
    end = last + (_STEP if last.microsecond else _SECOND)
    if end <= position.after:
        end = position.after + _STEP
    return Position(position.after, end, seen=seen, tie=True, until=position.before)


def _tied(position: Position, more: bool) -> Position | None:
    """As :func:`step`, inside one time.

    The server may return rows of one time in another order with each response, so that a pass has one row
    twice and lacks another. While its count is the same, no row came or left.
    """
    assert position.until is not None
    if more:
        return replace(position, page=position.page + 1)
    if _is_stable(position.read, position.last_pass) or len(position.found) == position.total:
        if position.before > position.until:
            return None
        return Position(position.before, position.until, seen=_from(position.seen, position.before))
    total, found = position.begun
    gets_on = total is not None and total == position.total and len(position.found) > found
    passes = position.passes if gets_on else position.passes + 1
    if passes > _MAX_PASSES:
        raise Transient("rows of one time keep changing while they are read", code="unstable")
    return replace(
        position,
        page=1,
        read=(),
        last_pass=position.read,
        passes=passes,
        begun=(position.total, len(position.found)),
    )


def _is_stable(read: tuple[Key, ...], last_pass: tuple[Key, ...] | None) -> bool:
    """Whether two passes agree. A pass in which a row came twice lacks another one."""
    once = set(read)
    return last_pass is not None and len(once) == len(read) and once == set(last_pass)


def _from(seen: frozenset[Key], after: datetime) -> frozenset[Key]:
    return frozenset(key for key in seen if key[1] >= after)


@dataclass(frozen=True, slots=True)
class UnreadableRange:
    """Adjacent rows that the server cannot return, updated from ``since`` to ``until``, both inclusive."""

    since: datetime
    until: datetime
    error: str


@dataclass(frozen=True, slots=True)
class PartialRow:
    """The few fields of a row that the server cannot return in full, and why."""

    data: Any
    error: str


@dataclass(frozen=True, slots=True)
class TimedPage:
    """Rows that were not handed out before, oldest first. Once they and all earlier ones are stored,
    everything updated before ``covered_until`` is, but for ``partial_rows`` and what is ``unlisted``.
    ``date`` is the server's clock at the answer."""

    rows: list[Any]
    covered_until: datetime
    date: datetime | None
    partial_rows: tuple[PartialRow, ...] = ()
    unlisted: tuple[UnreadableRange, ...] = ()


def by_time(
    client: Client,
    path: str,
    params: Params,
    window: TimeWindow,
    key: Callable[[Any], Key | None],
    partial_query: Params | None = None,
    ends: Callable[[datetime | None], datetime] | None = None,
) -> Iterator[TimedPage]:
    """The rows of ``path`` updated in ``window``, each version once; ``params`` must order by ``updated_at``,
    ascending. ``key`` gives the version of a row, None where it has none: such rows are handed out whenever
    they are seen.

    A page that the server cannot give is read in smaller pages. A row that it cannot give is requested again
    with ``partial_query``, parameters that make the server show less of it. ``ends`` gives the end of the
    window instead, from the server's clock at the first response."""
    position: Position | None = start(window)
    progress = Progress(path)
    while position is not None:
        if position.page == 1:
            progress = Progress(path)
        query: dict[str, Any] = {
            "per_page": client.per_page,
            **params,
            "updated_after": stamp(position.after),
            "updated_before": stamp(position.before),
            "page": position.page,
        }
        if position.tie and position.passes >= _PASSES_BY_UPDATE:
            query["order_by"] = "created_at"
        unlisted: tuple[UnreadableRange, ...] = ()
        try:
            answer = client.get(path, query)
        except (Transient, Permanent) as error:
            if not is_splittable(error):
                raise
            found = _read_until_stable(partial(_pieces, client, path, query, error, partial_query), key)
            listed, unlisted = _without_unreadable(found, position, key)
            more, date, total = found.more, found.date, None
        else:
            listed, more, date = rows(answer, path), answer.next_query is not None, answer.date
            total = answer.total
            if more:
                progress.check(answer, position.page)
        keyed = [(row, _version(row, key)) for row in listed]
        if ends is not None:
            window = TimeWindow(window.since, max(window.since, ends(date)))
            ends = None
            position = start(window)
            count = len(keyed)
            keyed = [(row, version) for row, version in keyed if not version or version[1] <= position.before]
            if len(keyed) < count:
                more, total = False, None
        fresh = {version: row for row, version in keyed if version and version not in position.seen}
        new = [*fresh.values(), *(row for row, version in keyed if version is None)]
        position = step(position, [version for _, version in keyed if version], more, total)
        covered = window.until if position is None else min(max(position.after, window.since), window.until)
        yield TimedPage(
            [row for row in new if not isinstance(row, PartialRow)],
            covered,
            date,
            tuple(row for row in new if isinstance(row, PartialRow)),
            unlisted,
        )


def _version(row: Any, key: Callable[[Any], Key | None]) -> Key | None:
    if isinstance(row, UnreadableRow):
        return None
    return key(row.data if isinstance(row, PartialRow) else row)


def _pieces(
    client: Client, path: str, query: Mapping[str, Any], error: SyncError, partial_query: Params | None
) -> BisectedPage:
    """The page of ``query`` in smaller pages, with partial rows in the place of unreadable ones if
    possible."""
    found = bisect_page(partial(_ask, client, path, query), query["page"], error, query["per_page"])
    if partial_query is None:
        return found
    listed: list[Any] = []
    for row in found.rows:
        if isinstance(row, UnreadableRow):
            try:
                answer = _ask(client, path, {**query, **partial_query}, row.index + 1, 1)
            except (Transient, Permanent) as again:
                if not is_splittable(again):
                    raise
            else:
                listed += [PartialRow(data, row.error) for data in answer.data]
                continue
        listed.append(row)
    return replace(found, rows=listed)


def _read_until_stable(read: Callable[[], BisectedPage], key: Callable[[Any], Key | None]) -> BisectedPage:
    """The page on which two passes in a row agree. While it is read by number, a row that leaves moves
    another one between two smaller pages.
    """
    before: list[Key | None] | None = None
    for _ in range(_MAX_READINGS):
        found = read()
        now = [_version(row, key) for row in found.rows]
        if now == before:
            return found
        before = now
    raise Transient("rows keep changing while a page is read in smaller pages", code="unstable")


def _without_unreadable(
    found: BisectedPage, position: Position, key: Callable[[Any], Key | None]
) -> tuple[list[Any], tuple[UnreadableRange, ...]]:
    """The rows of ``found``, and the times between which it has unreadable ones."""
    listed = list(found.rows)
    if found.more and not position.tie and any(_version(row, key) for row in listed):
        # Rows after the last time seen are requested again; then their followers are known.
        while isinstance(listed[-1], UnreadableRow):
            listed.pop()
    unlisted: list[UnreadableRange] = []
    since = position.after
    first: UnreadableRow | None = None
    for row in listed:
        if isinstance(row, UnreadableRow):
            first = first or row
        elif version := _version(row, key):
            if first is not None:
                unlisted.append(UnreadableRange(since, version[1], first.error))
                first = None
            since = version[1]
    if first is not None:
        unlisted.append(UnreadableRange(since, position.before, first.error))
    return [row for row in listed if not isinstance(row, UnreadableRow)], tuple(unlisted)


def stamp(moment: datetime) -> str:
    """``moment`` as a query parameter: UTC with milliseconds."""
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


def named(data: Any, path: str) -> Mapping[str, Any]:
    """``data`` as a JSON object. Raises Transient if it is none."""
    if not isinstance(data, dict):
        raise Transient(f"GET {path}: the server sent no object", code="not_json")
    return data
