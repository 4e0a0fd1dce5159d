"""A page that the server cannot return, read in smaller pages down to the row that causes it.

Belongs here: which failures may be those of a row, the order of the smaller pages, and when the server itself
fails. Does not belong here: the consequence for an unreadable row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sync_pipeline.core.errors import AnswerStalled, Permanent, SyncError, Transient
from sync_pipeline.sources.gitlab.transport import Response

PER_PAGE = 100
"""Rows of a page: GitLab's maximum."""

UNLISTED = "unlisted"
"""Reason in quarantine of a row that fails on every page of a list."""

_TEN = 10
_TOO_HARD = frozenset({"server_error", "timeout", "incomplete", "content_too_large"})
# With this many failing pieces in a row, or rows of a page, single rows are not the cause.
_SERVER_IS_DOWN = 2
_MAX_UNREADABLE = 20

Ask = Callable[[int, int], Response]
"""Requests a page by its number, from 1, and its number of rows; raises if the response is no list."""


@dataclass(frozen=True, slots=True)
class UnreadableRow:
    """A row that the server cannot return: its position in the list, from 0, and why."""

    index: int
    error: str


@dataclass(frozen=True, slots=True)
class BisectedPage:
    """The rows of a page in their order, with an :class:`UnreadableRow` for each that cannot be read.
    ``more``: rows may follow. ``date`` is the server's clock at the first response.
    """

    rows: list[Any]
    more: bool
    date: datetime | None

    @property
    def unreadable(self) -> list[UnreadableRow]:
        """The unreadable rows."""
        return [row for row in self.rows if isinstance(row, UnreadableRow)]


def is_splittable(error: SyncError) -> bool:
    """Whether a smaller page may work after ``error``. A server that says when to come back is overloaded;
    the rows are not the cause.
    """
    is_asked_later = isinstance(error, Transient) and error.retry_after is not None
    return isinstance(error, Transient | Permanent) and error.code in _TOO_HARD and not is_asked_later


def bisect_page(ask: Ask, page: int, error: SyncError, size: int = PER_PAGE) -> BisectedPage:
    """Page ``page`` of ``size`` rows, for which the server answered ``error``: pages of ten, each failing one
    as ten of one.

    ``size`` is that of earlier pages, which matters only after the first one. Raises ``error`` if the server
    itself fails, and every error that does not belong to single rows. On a link that stalls even ten rows may
    not arrive together, so single rows are requested before it is raised.
    """
    if size < _TEN or size % _TEN:
        raise error
    count = size // _TEN
    numbers = range((page - 1) * count + 1, page * count + 1)
    tens: list[Response | None] = []
    for number in numbers:
        tens.append(_answer(ask, number, _TEN))
        if len(tens) >= _SERVER_IS_DOWN and not any(tens) and not isinstance(error, AnswerStalled):
            raise error
        if _is_last(tens[-1]):
            break
    date = next((ten.date for ten in tens if ten is not None and ten.date is not None), None)
    rows: list[Any] = []
    unreadable = 0
    last: Response | None = None
    for number, ten in zip(numbers, tens, strict=False):
        # Positions of rows count from 0, numbers of pages from 1.
        indexes = range((number - 1) * _TEN, number * _TEN)
        for index, last in [(0, ten)] if ten else ((n, _answer(ask, n + 1, 1)) for n in indexes):
            if last is None:
                rows.append(UnreadableRow(index, str(error)))
                unreadable += 1
                if unreadable > _MAX_UNREADABLE or (
                    unreadable >= _SERVER_IS_DOWN and unreadable == len(rows) and not any(tens)
                ):
                    raise error
            else:
                rows += last.data
            if _is_last(last):
                return BisectedPage(rows, False, date)
    return BisectedPage(rows, True, date)


def _answer(ask: Ask, page: int, per_page: int) -> Response | None:
    try:
        return ask(page, per_page)
    except (Transient, Permanent) as error:
        if not is_splittable(error):
            raise
        return None


def _is_last(answer: Response | None) -> bool:
    return answer is not None and answer.next_query is None
