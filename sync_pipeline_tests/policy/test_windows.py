"""Arithmetic on windows of both kinds, held against sets of numbers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sync_pipeline.core.job_types import FAMILY_OF, by_family
from sync_pipeline.core.model import JobType, RevisionWindow, TimeWindow, Window
from sync_pipeline.core.windows import bounds, holds, hull, merged, newest_piece, overlap, span, without

DAY = datetime(2026, 1, 1, tzinfo=UTC)


def revisions(pair: tuple[int, int]) -> RevisionWindow:
    return RevisionWindow(min(pair), max(pair))


def hours(pair: tuple[int, int]) -> TimeWindow:
    return TimeWindow(DAY + timedelta(hours=min(pair)), DAY + timedelta(hours=max(pair)))


PAIRS = st.tuples(st.integers(0, 30), st.integers(0, 30))


@given(st.lists(PAIRS))
def test_merged_windows_hold_the_same_and_do_not_touch(pairs: list[tuple[int, int]]) -> None:
    found = merged(map(revisions, pairs))
    wanted = {n for pair in pairs for n in range(min(pair), max(pair))}
    assert {n for w in found for n in range(w.first, w.end)} == wanted
    assert all(one.end < other.first for one, other in pairwise(found))
    assert [bounds(w) for w in merged(map(hours, pairs))] == [bounds(hours((w.first, w.end))) for w in found]


@given(PAIRS, st.lists(PAIRS))
def test_without_leaves_what_no_other_window_holds(
    one: tuple[int, int], others: list[tuple[int, int]]
) -> None:
    found = without(revisions(one), map(revisions, others))
    taken = {n for pair in others for n in range(min(pair), max(pair))}
    assert {n for w in found for n in range(w.first, w.end)} == set(range(min(one), max(one))) - taken
    assert merged(found) == found


def test_a_span_ends_behind_its_last_time_even_at_the_end_of_all_time() -> None:
    last = datetime.max.replace(tzinfo=UTC)
    assert span([]) == ()
    assert span([DAY]) == (TimeWindow(DAY, DAY + timedelta(seconds=1)),)
    assert span([last, DAY]) == (TimeWindow(DAY, datetime(9999, 12, 31, 0, 0, 1, tzinfo=UTC)),)


@given(PAIRS, PAIRS)
def test_overlap_hull_and_holds_agree_with_sets(one: tuple[int, int], other: tuple[int, int]) -> None:
    a, b = revisions(one), revisions(other)
    both = set(range(a.first, a.end)) & set(range(b.first, b.end))
    common = overlap(a, b)
    assert (set(range(common.first, common.end)) if common else set()) == both
    around = hull([a, b])
    assert around is not None
    assert holds(around, a)
    assert holds(around, b)


@given(PAIRS, st.integers(1, 12), st.integers(0, 30))
def test_pieces_hold_the_whole_window_once_and_none_is_too_long(
    pair: tuple[int, int], hours_each: int, start: int
) -> None:
    window: TimeWindow | None = hours(pair)
    longest, beginning = timedelta(hours=hours_each), DAY + timedelta(hours=start)
    pieces: list[TimeWindow] = []
    while window is not None:
        piece, window = newest_piece(window, longest, beginning)
        pieces.append(piece)
        assert piece.until - max(piece.since, min(beginning, piece.until)) <= longest
    assert bounds(hours(pair)) == (pieces[-1].since, pieces[0].until)
    assert all(later.since == earlier.until for later, earlier in pairwise(pieces))


@pytest.mark.parametrize("window", [RevisionWindow(1, 5), TimeWindow(DAY, DAY + timedelta(1))])
def test_nothing_has_no_hull_and_kinds_do_not_mix(window: Window) -> None:
    assert hull([]) is None
    other: Window = RevisionWindow(0, 10) if isinstance(window, TimeWindow) else TimeWindow(DAY, DAY)
    assert not holds(other, window)


def test_every_job_type_has_its_family_and_reviews_go_with_merge_requests() -> None:
    assert set(FAMILY_OF) == set(JobType)
    assert [(f.job_name, types) for f, types in by_family((JobType.REVIEWS, JobType.COMMITS))] == [
        ("sync_commits", (JobType.COMMITS,)),
        ("sync_merge_requests", (JobType.REVIEWS,)),
    ]
