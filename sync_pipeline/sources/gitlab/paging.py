"""Reading lists to their end: by links, and by time where the list moves while it is read.

Belongs here: which page is asked for next and when a list is over. Does not belong here: what the rows are,
and how a request is sent (:mod:`sync_pipeline.sources.gitlab.transport`).

A list ordered by ``updated_at`` moves: a row that is edited goes to the end, and every row behind it one
place forward, over the edge of a page that was already read. So only the first page of each question counts,
and the next question begins at the last time seen. Only rows that share one time, more than a page of them,
are read by page number; there a row that leaves shows itself, because the same question is asked until two
passes agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

from sync_pipeline.errors import Transient
from sync_pipeline.model import TimeWindow
from sync_pipeline.sources.gitlab.transport import Answer, Client, Params

PER_PAGE = 100
"""Rows of a page: the most that GitLab gives."""

# The API shows milliseconds of what the database keeps in microseconds.
_STEP = timedelta(milliseconds=1)
_MAX_PASSES = 10

Key = tuple[int, datetime]
"""A version of a row: its id and the time it was updated at."""


def pages(
    client: Client, path: str, params: Params | None = None, *, empty_ends: bool = False
) -> Iterator[Answer]:
    """All pages of a list. A short page is not the last one, an empty one only with ``empty_ends``: branches,
    tags and commits announce a page behind the last. Raises as :meth:`Client.get`, and Transient where the
    server sends us in circles."""
    query: dict[str, Any] = {"per_page": PER_PAGE, **(params or {})}
    asked: set[str] = set()
    while True:
        if (page := repr(sorted(query.items()))) in asked:
            raise Transient(f"GET {path}: the server links from a page back to it", code="paging_loop")
        asked.add(page)
        answer = client.get(path, query)
        rows(answer, path)
        yield answer
        if answer.next_query is None or (empty_ends and not answer.data):
            return
        query = {**query, **answer.next_query}


def rows(answer: Answer, path: str) -> list[Any]:
    """The rows of a page. Raises Transient where the answer is no list."""
    if not isinstance(answer.data, list):
        raise Transient(f"GET {path}: the server sent no list", code="not_json")
    return answer.data


@dataclass(frozen=True, slots=True)
class Position:
    """Where the reading of a list by time stands, and the question to ask next: rows updated from ``after``
    to ``before``, both inclusive, page ``page``.

    ``seen`` are the versions that the next answers may repeat. ``tie`` is set while more rows than a page
    share one time; then ``read`` are the versions of this pass and ``last_pass`` those of the one before.
    """

    after: datetime
    before: datetime
    page: int = 1
    seen: frozenset[Key] = frozenset()
    tie: bool = False
    read: frozenset[Key] = frozenset()
    last_pass: frozenset[Key] | None = None
    passes: int = 0
    until: datetime | None = None


def start(window: TimeWindow) -> Position:
    """The position before the first question for ``window``, whose edges go outward to milliseconds."""
    after = window.since - timedelta(microseconds=window.since.microsecond % 1000)
    before = window.until + timedelta(microseconds=-window.until.microsecond % 1000)
    return Position(after, before)


def step(position: Position, keys: Sequence[Key], more: bool) -> Position | None:
    """The position after an answer with the versions ``keys``; None at the end of the list. ``more`` tells
    whether the server announced another page. Raises Transient where the answer cannot be relied on."""
    if any(one[1] > other[1] for one, other in pairwise(keys)):
        raise Transient("the server does not sort by updated_at; the list cannot be read", code="unordered")
    if keys and (keys[0][1] < position.after - _STEP or keys[-1][1] > position.before + _STEP):
        raise Transient("the server does not filter by updated_at; the list cannot be read", code="unordered")
    seen = position.seen | frozenset(keys)
    if position.tie:
        return _tied(replace(position, seen=seen, read=position.read | frozenset(keys)), more)
    if not more:
        return None
    if not keys:
        return replace(position, page=position.page + 1)
    last = keys[-1][1]
    after = last - _STEP
    if after > position.after:
        return Position(after, position.before, seen=_from(seen, after))
    return Position(position.after, last + _STEP, seen=seen, tie=True, until=position.before)


def _tied(position: Position, more: bool) -> Position | None:
    """As :func:`step`, inside one time."""
    assert position.until is not None
    if more:
        return replace(position, page=position.page + 1)
    if position.read == position.last_pass:
        if position.before > position.until:
            return None
        return Position(position.before, position.until, seen=_from(position.seen, position.before))
    if position.passes >= _MAX_PASSES:
        raise Transient("rows of one time keep changing while they are read", code="unstable")
    passes = position.passes + 1
    return replace(position, page=1, read=frozenset(), last_pass=position.read, passes=passes)


def _from(seen: frozenset[Key], after: datetime) -> frozenset[Key]:
    return frozenset(key for key in seen if key[1] >= after)


@dataclass(frozen=True, slots=True)
class TimedPage:
    """Rows that were not handed out before, oldest first. Once they and all earlier ones are stored,
    everything updated before ``covered_until`` is. ``date`` is the server's clock at the answer."""

    rows: list[Any]
    covered_until: datetime
    date: datetime | None


def by_time(
    client: Client,
    path: str,
    params: Params,
    window: TimeWindow,
    key: Callable[[Any], Key | None],
) -> Iterator[TimedPage]:
    """The rows of ``path`` updated in ``window``, each version once; ``params`` must order by ``updated_at``,
    ascending. ``key`` gives the version of a row, None where it has none: such rows are handed out whenever
    they are seen."""
    position: Position | None = start(window)
    while position is not None:
        query: dict[str, Any] = {
            "per_page": PER_PAGE,
            **params,
            "updated_after": stamp(position.after),
            "updated_before": stamp(position.before),
            "page": position.page,
        }
        answer = client.get(path, query)
        found = [(row, key(row)) for row in rows(answer, path)]
        fresh = {version: row for row, version in found if version and version not in position.seen}
        unkeyed = [row for row, version in found if version is None]
        position = step(position, [version for _, version in found if version], answer.next_query is not None)
        covered = window.until if position is None else min(max(position.after, window.since), window.until)
        yield TimedPage([*fresh.values(), *unkeyed], covered, answer.date)


def stamp(moment: datetime) -> str:
    """``moment`` as a query parameter: UTC with milliseconds."""
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


def named(data: Any, path: str) -> Mapping[str, Any]:
    """``data`` as a JSON object. Raises Transient where it is none."""
    if not isinstance(data, dict):
        raise Transient(f"GET {path}: the server sent no object", code="not_json")
    return data
