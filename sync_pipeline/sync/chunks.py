"""Pages as they arrive from a source, stored in chunks.

Belongs here: prefetching one page while the one before is stored, and releasing the lease between two chunks
so that others may write. Also repeating a chunk whose lease was lost.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from itertools import islice
from typing import TypeAlias, TypeVar

from sync_pipeline.core.errors import LeaseLost
from sync_pipeline.core.model import JobType
from sync_pipeline.sync.attempt import Attempt

_log = logging.getLogger(__name__)

_MAX_LEASES_LOST = 3

Item = TypeVar("Item")
Result = TypeVar("Result")
_Counted: TypeAlias = tuple[Item, dict[JobType, int]]


def store_in_chunks(
    attempts: Sequence[Attempt], pages: Iterator[Item], store: Callable[[Item], int], *, rows: int
) -> None:
    """Store each page under the leases of ``attempts``, which are taken anew after about ``rows`` rows. The
    first page of a chunk is read before they are taken, so with one row others may write during reading.

    ``store`` returns how many rows a page had, and may take an attempt out of ``attempts``. A page whose
    lease was lost is stored again under a new one. Ends early when no attempt is left. Raises what reading
    and storing raise; pages stored before that stay."""
    with closing(prefetch(_counted(attempts, pages))) as waiting:
        try:
            while attempts and (following := list(islice(waiting, 1))):
                retry_on_lease_loss(partial(_store_chunk, attempts, following, waiting, store, rows))
        finally:
            for attempt in attempts:
                attempt.page_calls = None


def _store_chunk(
    attempts: Sequence[Attempt],
    following: list[_Counted[Item]],
    waiting: Iterator[_Counted[Item]],
    store: Callable[[Item], int],
    rows: int,
) -> None:
    """Store pages under one lease until there are enough rows. ``following`` holds the page that is stored
    next; it is empty at the end."""
    with ExitStack() as leases:
        # Always in the same order: two workers must not wait for each other.
        for attempt in attempts:
            leases.enter_context(attempt.lease())
        while following and attempts:
            page, calls = following[0]
            for attempt in attempts:
                attempt.page_calls = calls[attempt.job_type]
            rows -= store(page)
            following[:] = islice(waiting, 1) if rows > 0 else ()


def _counted(attempts: Sequence[Attempt], pages: Iterator[Item]) -> Iterator[_Counted[Item]]:
    """The pages, each with the requests that it took, by job type."""
    every = tuple(attempts)
    while True:
        before = [attempt.meter().calls for attempt in every]
        page = next(pages, None)
        if page is None:
            return
        yield page, {a.job_type: a.meter().calls - calls for a, calls in zip(every, before, strict=True)}


def retry_on_lease_loss(work: Callable[[], Result]) -> Result:
    """The result of ``work``. It takes a lease, and is repeated a few times if that lease was lost. Raises
    ClaimLost at once, which ends the job.
    """
    for _ in range(_MAX_LEASES_LOST - 1):
        try:
            return work()
        except LeaseLost as lost:
            if type(lost) is not LeaseLost:
                raise
            _log.warning("%s", lost)
    return work()


def prefetch(items: Iterator[Item]) -> Generator[Item, None, None]:
    """``items``, each read in another thread while the caller is busy with the one before."""
    with ThreadPoolExecutor(1, thread_name_prefix="ahead") as reader:
        coming = reader.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = reader.submit(next, items, None)
            yield item
