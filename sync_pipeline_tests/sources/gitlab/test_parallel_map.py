"""Work side by side: the order, the first error, and a limit that changes meanwhile."""

from __future__ import annotations

import threading

import pytest

from sync_pipeline.sources.gitlab.children import parallel_map


class Meter:
    """Counts who works at once."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.running = self.peak = 0

    def __enter__(self) -> None:
        with self.lock:
            self.running += 1
            self.peak = max(self.peak, self.running)

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.running -= 1


def test_results_come_in_the_order_of_the_items_and_no_more_run_than_the_limit_allows() -> None:
    meter = Meter()

    def work(item: int) -> int:
        with meter:
            return item * item

    items = list(range(200))
    assert parallel_map(work, items, lambda: 3) == [item * item for item in items]
    assert meter.peak <= 3
    assert parallel_map(work, [], lambda: 3) == []
    assert parallel_map(work, [7], lambda: 3) == [49]
    assert parallel_map(work, items, lambda: 1) == [item * item for item in items]


def test_the_number_at_work_grows_and_shrinks_with_the_limit() -> None:
    limit = 2
    together = threading.Barrier(5)
    alone = Meter()

    def work(item: int) -> int:
        nonlocal limit
        if item == 1:
            limit = 5
        elif 2 <= item < 7:
            # Passes only when five are at work.
            together.wait(60)
            limit = 1
        elif item >= 11:
            with alone:
                return item
        return item

    assert parallel_map(work, range(40), lambda: limit) == list(range(40))
    assert alone.peak == 1


def test_the_first_error_by_order_is_raised_after_the_others_ended_and_the_rest_does_not_start() -> None:
    both = threading.Barrier(2)
    started: list[int] = []

    def work(item: int) -> None:
        started.append(item)
        both.wait(60)
        raise ValueError(item)

    with pytest.raises(ValueError, match=r"^0$"):
        parallel_map(work, range(50), lambda: 2)
    assert sorted(started) == [0, 1]
