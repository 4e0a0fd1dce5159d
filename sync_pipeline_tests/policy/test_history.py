"""The order of a first sync: the newest history of the whole fleet first, and nothing left out."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from sync_pipeline.core.model import BEGINNING, TimeWindow
from sync_pipeline.policy.history import HISTORY_PRIORITY, pieces, priority

NOW = datetime(2026, 7, 1, 15, tzinfo=UTC)
RECENT = datetime(2026, 4, 2, tzinfo=UTC)
OLDEST = datetime(2024, 8, 1, tzinfo=UTC)


@given(
    st.integers(50 * 365, 130 * 365 * 24).map(lambda hours: BEGINNING + timedelta(hours=hours)),
    st.integers(1940, 2040).map(lambda year: datetime(year, 3, 1, tzinfo=UTC)),
)
def test_pieces_are_whole_years_after_the_recent_one_and_leave_nothing_out(
    until: datetime, oldest: datetime
) -> None:
    found = list(pieces(TimeWindow(BEGINNING, until), NOW, oldest))
    assert (found[0].until, found[-1].since) == (until, BEGINNING)
    for later, earlier in pairwise(found):
        assert earlier.until == later.since
        assert later.since in (RECENT, datetime(later.since.year, 1, 1, tzinfo=UTC))
    assert all(piece.since.year >= oldest.year for piece in found[:-1])
    assert len(found) <= max(1, until.year - oldest.year + 1) + 1


def test_the_newest_90_days_come_before_all_older_history_and_later_years_before_earlier_ones() -> None:
    found = list(pieces(TimeWindow(BEGINNING, datetime(2026, 6, 1, tzinfo=UTC)), NOW, OLDEST))
    assert [piece.since for piece in found] == [
        RECENT,
        datetime(2026, 1, 1, tzinfo=UTC),
        datetime(2025, 1, 1, tzinfo=UTC),
        BEGINNING,
    ]
    assert [priority(piece, NOW) - HISTORY_PRIORITY for piece in found] == [0, 1, 2, 3]


def test_a_repository_that_is_younger_than_90_days_has_one_piece() -> None:
    window = TimeWindow(BEGINNING, datetime(2026, 6, 1, tzinfo=UTC))
    assert list(pieces(window, NOW, datetime(2026, 5, 1, tzinfo=UTC))) == [window]
    assert priority(window, NOW) == HISTORY_PRIORITY


def test_the_priority_of_a_piece_does_not_depend_on_how_many_are_queued() -> None:
    """A gap of 2020 in one repository goes with 2020 of every other one."""
    year = TimeWindow(datetime(2020, 1, 1, tzinfo=UTC), datetime(2021, 1, 1, tzinfo=UTC))
    assert priority(year, NOW) == HISTORY_PRIORITY + 7
    assert priority(TimeWindow(BEGINNING, datetime(1920, 1, 1, tzinfo=UTC)), NOW) == HISTORY_PRIORITY + 91
