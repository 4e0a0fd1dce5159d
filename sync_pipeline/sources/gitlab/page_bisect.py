"""A page that the server cannot give, read in smaller pages down to the one row that is to blame.

Belongs here: which failures may be those of a row, in which order the pieces are asked for, and when it is
the server and no row that fails. Does not belong here: what becomes of a row that cannot be given.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sync_pipeline.core.errors import AnswerStalled, Permanent, SyncError, Transient
from sync_pipeline.sources.gitlab.transport import Response

PER_PAGE = 100
"""Rows of a page: the most that GitLab gives."""

UNLISTED = "unlisted"
"""Reason in quarantine of a row that no page of a list can be given with."""

_TEN = 10
_TOO_HARD = frozenset({"server_error", "timeout", "incomplete", "content_too_large"})
# So many pieces in a row without one answer are no accident of single rows, nor are so many rows of a page.
_SERVER_IS_DOWN = 2
_MAX_UNREADABLE = 20

Ask = Callable[[int, int], Response]
"""Asks for a page by its number, from 1, and its number of rows; raises where the answer is no list."""


@dataclass(frozen=True, slots=True)
class UnreadableRow:
    """A row that cannot be given: its place in the list, from 0, and why."""

    place: int
    error: str


@dataclass(frozen=True, slots=True)
class BisectedPage:
    """The rows of a page in their order, an :class:`UnreadableRow` where one cannot be given. ``more``: there
    may be rows behind them. ``date`` is the server's clock at the first answer."""

    rows: list[Any]
    more: bool
    date: datetime | None

    @property
    def unreadable(self) -> list[UnreadableRow]:
        """The rows that cannot be given."""
        return [row for row in self.rows if isinstance(row, UnreadableRow)]


def is_splittable(error: SyncError) -> bool:
    """Whether less may work where ``error`` came of asking for a page. A server that says when to come back
    is at rest, not at odds with a row."""
    is_asked_later = isinstance(error, Transient) and error.retry_after is not None
    return isinstance(error, Transient | Permanent) and error.code in _TOO_HARD and not is_asked_later


def bisect_page(ask: Ask, page: int, error: SyncError, size: int = PER_PAGE) -> BisectedPage:
    """Page ``page`` of ``size`` rows, for which the server answered ``error``: pages of ten, each that fails
    as ten of one. ``size`` is what earlier pages had, which matters behind the first one only. Raises
    ``error`` where it is the server that fails, and whatever is no matter of single rows. Where answers stall
    on their way, not even ten rows may arrive together, so single rows are requested before it is raised."""
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
        # The places of rows count from 0, the numbers of pages from 1.
        places = range((number - 1) * _TEN, number * _TEN)
        for place, last in [(0, ten)] if ten else ((n, _answer(ask, n + 1, 1)) for n in places):
            if last is None:
                rows.append(UnreadableRow(place, str(error)))
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
