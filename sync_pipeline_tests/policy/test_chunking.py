"""Sizes of the next piece."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from sync_pipeline.policy.chunking import next_step

FIRST, LONGEST = timedelta(minutes=5), timedelta(days=1)


def following(step: timedelta, rows: int) -> timedelta:
    return next_step(step, rows, page=100, first=FIRST, longest=LONGEST)


@given(st.lists(st.integers(0, 300), max_size=60))
def test_a_step_is_never_shorter_than_the_first_nor_longer_than_allowed_where_there_are_rows(
    found: list[int],
) -> None:
    step = FIRST
    for rows in found:
        before, step = step, following(step, rows)
        assert step >= FIRST
        assert rows == 0 or step <= LONGEST
        assert rows <= 100 or step <= before


def test_ten_empty_years_take_a_few_steps() -> None:
    step, passed, steps = FIRST, timedelta(), 0
    while passed < timedelta(days=3653):
        passed, step, steps = passed + step, following(step, 0), steps + 1
    assert steps <= 21
