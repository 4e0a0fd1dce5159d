"""Pages as they arrive from a source, stored in chunks.

Belongs here: reading one page ahead while the one before is stored, giving the lease back between two chunks,
so that whoever waits may write, and doing a chunk again whose lease was lost.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing
from typing import TypeVar

from sync_pipeline.errors import LeaseLost
from sync_pipeline.sync.attempt import Attempt

_log = logging.getLogger(__name__)

_LEASES_LOST = 3

Page = TypeVar("Page")
Held = TypeVar("Held")
Result = TypeVar("Result")


def store_in_chunks(
    pages: Iterator[Page],
    lease: Callable[[], AbstractContextManager[Held]],
    store: Callable[[Held, Page], int],
    rows: int,
    attempts: Sequence[Attempt],
) -> None:
    """Store each page under the lease, which is taken anew after about ``rows`` rows; ``store`` returns how
    many a page had. A page whose lease was lost is stored again under a new one. ``attempts`` are those that
    write: each is told how many of its requests a page took. Raises what reading and storing raise; pages
    stored before that stay."""
    with closing(prefetch(_counted(pages, attempts))) as waiting:
        try:
            found = next(waiting, None)

            def chunk() -> None:
                nonlocal found
                with lease() as held:
                    left = rows
                    while found is not None and left > 0:
                        page, calls = found
                        for attempt, number in zip(attempts, calls, strict=True):
                            attempt.page_calls = number
                        left -= store(held, page)
                        found = next(waiting, None)

            while found is not None:
                retry_on_lease_loss(chunk)
        finally:
            for attempt in attempts:
                attempt.page_calls = None


def _counted(pages: Iterator[Page], attempts: Sequence[Attempt]) -> Iterator[tuple[Page, list[int]]]:
    """The pages, each with the requests that it took for each attempt."""
    while True:
        before = [attempt.meter().calls for attempt in attempts]
        page = next(pages, None)
        if page is None:
            return
        yield page, [a.meter().calls - calls for a, calls in zip(attempts, before, strict=True)]


def retry_on_lease_loss(work: Callable[[], Result]) -> Result:
    """What ``work`` returns, which takes a lease and may be done again: so it is, a few times, where that
    lease was lost. A claim that is lost ends the job: that is raised."""
    for _ in range(_LEASES_LOST - 1):
        try:
            return work()
        except LeaseLost as lost:
            if type(lost) is not LeaseLost:
                raise
            _log.warning("%s", lost)
    return work()


def prefetch(items: Iterator[Page]) -> Generator[Page, None, None]:
    """``items``, each read in another thread while the caller is busy with the one before."""
    with ThreadPoolExecutor(1, thread_name_prefix="ahead") as reader:
        coming = reader.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = reader.submit(next, items, None)
            yield item
