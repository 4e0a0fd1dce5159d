"""Details of merge requests: requested in parallel, with a deferred fetch where one cannot be read.

Belongs here: which errors of a detail are its own, what the server refuses for every merge request, and
running several requests at once. Does not belong here: what the details are."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

from sync_pipeline.core.errors import AccessDenied, Permanent, RowUnreadable, SourceGone, Transient
from sync_pipeline.core.model import DeferredFetch, Refusal
from sync_pipeline.sources.gitlab.transport import Client

T = TypeVar("T")
R = TypeVar("R")

OWN_ERRORS = frozenset(
    {
        "server_error",
        "timeout",
        "incomplete",
        "not_json",
        "content_too_large",
        "bad_request",
        "denied",
        "paging_loop",
        # A server that redirects everything redirects the project too, which is requested first.
        "redirect",
    }
)
"""Errors of one detail. All others (the network, the credential, the rate limit) are errors of the job."""

REFUSED = frozenset({"denied", "no_object", "no_route"})
"""Errors of a detail that the token may not see or that the server does not have."""

# With this many unreadable details in a page, single rows are not the cause.
_TOO_MANY = 20
# Other details that the token may not see, such as approvals, do not stop the rest. Without notes there is no
# review.
_ESSENTIAL = "notes"
# After this many refused merge requests in a row, the rest of a page is not read.
_ENOUGH = 3
# If this many others are refused too, all are.
_ENOUGH_OTHERS = 2


class Refusals:
    """Details that the server refuses for every merge request of a project. One instance serves one job.

    ``others`` returns some merge requests that are not among the given ones. They show whether only a single
    merge request refuses the detail.
    """

    def __init__(self, others: Callable[[Collection[int]], Sequence[int]]) -> None:
        self.others = others
        self._refused: dict[str, Refusal] = {}
        self._readable: set[str] = set()
        self._unsaved: dict[str, Refusal] = {}

    def load(self, details: Iterable[str]) -> None:
        """Details that were refused at an earlier visit and are not requested."""
        for detail in details:
            self._refused[detail] = Refusal(detail, "denied", "refused before")

    def lift(self, detail: str) -> None:
        """The detail can be read again."""
        self._refused.pop(detail, None)
        self._readable.add(detail)

    def refuse(self, refusal: Refusal) -> None:
        """Do not request this detail again in this job; :attr:`unsaved` has it."""
        self._refused[refusal.detail] = self._unsaved[refusal.detail] = refusal

    def note_readable(self, detail: str) -> None:
        """The detail of some merge request was read."""
        self._readable.add(detail)

    def is_readable(self, detail: str) -> bool:
        """True if the detail of some merge request was read in this job."""
        return detail in self._readable

    def __contains__(self, detail: str) -> bool:
        """True if the server refuses this detail for all of them."""
        return detail in self._refused

    @property
    def refused(self) -> frozenset[str]:
        """The details that the server refuses for all of them."""
        return frozenset(self._refused)

    @property
    def unsaved(self) -> tuple[Refusal, ...]:
        """The details that were refused in this job and are to be recorded."""
        return tuple(self._unsaved.values())

    def saved(self, refusals: Iterable[Refusal]) -> None:
        """Record that these were stored."""
        for one in refusals:
            self._unsaved.pop(one.detail, None)


Ask = Callable[[int, str], Refusal | None]
"""Requests a detail of a merge request, by its number. Returns the refusal, or None if it is readable. Raises
SourceGone with code ``no_object`` if the merge request itself is gone.
"""


def refusal_of(client: Client, merge_request: str, path: str, detail: str) -> Refusal | None:
    """How the server refuses ``path``, a ``detail`` of the merge request at the path ``merge_request``; None
    if it is readable.

    Raises as the transport does if there is no clear response. Raises SourceGone with code ``no_object`` if
    the merge request itself is gone.
    """
    try:
        client.get(path, {"per_page": "1"})
    except (SourceGone, AccessDenied) as error:
        if error.code not in REFUSED:
            raise
        if error.code == "no_object":
            client.get(merge_request)
        return Refusal(detail, error.code, str(error))
    return None


def ask_others(ask: Ask, iids: Iterable[int], detail: str) -> tuple[bool, Refusal | None]:
    """Whether one of ``iids`` has the detail, and else how they refuse it; (False, None) if none of them
    exists. Requests few of them. Raises as ``ask`` does.
    """
    refusals: list[Refusal] = []
    for iid in iids:
        try:
            refusal = ask(iid, detail)
        except SourceGone as error:
            if error.code != "no_object":
                raise
            continue
        if refusal is None:
            return True, None
        refusals.append(refusal)
        if len(refusals) == _ENOUGH_OTHERS:
            break
    return False, refusals[0] if refusals else None


class DeferredFetches:
    """Collects the deferred fetches of one page. ``attempt`` may be called by several threads. With
    ``refusals``, a detail that the server refuses for every merge request is not deferred for each."""

    def __init__(self, refusals: Refusals | None = None) -> None:
        self._refusals = refusals
        self._deferred: list[DeferredFetch] = []
        self._pending: dict[str, list[tuple[str, SourceGone | AccessDenied]]] = {}
        self._skipped: dict[str, list[str]] = {}
        self._failed = 0

    def attempt(self, natural_key: str, detail: str, read: Callable[[], T]) -> T | None:
        """The result of ``read``, or None with a deferred fetch where it cannot be read. Raises errors
        that do not concern this detail, and any error once too many of a page failed."""
        if self._refusals is not None:
            if detail in self._refusals:
                return None
            if self._is_refused_often(detail) and not self._refusals.is_readable(detail):
                self._skipped.setdefault(detail, []).append(natural_key)
                return None
        try:
            found = read()
        except SourceGone as error:
            if error.code not in REFUSED:
                raise
            self._refuse(natural_key, detail, error)
        except RowUnreadable as error:
            self.defer(natural_key, detail, f"{error.code}: {error}")
        except (AccessDenied, Permanent, Transient) as error:
            if error.code not in OWN_ERRORS:
                raise
            if isinstance(error, AccessDenied):
                self._refuse(natural_key, detail, error)
            else:
                self.defer(natural_key, detail, f"{error.code}: {error}")
                self._failed += 1
            if self._failed > _TOO_MANY:
                raise
        else:
            if self._refusals is not None:
                self._refusals.note_readable(detail)
            return found
        return None

    def _is_refused_often(self, detail: str) -> bool:
        # A merge request that is not found may be gone itself.
        return sum(error.code != "no_object" for _, error in self._pending.get(detail, ())) >= _ENOUGH

    def _refuse(self, natural_key: str, detail: str, error: SourceGone | AccessDenied) -> None:
        if self._refusals is not None:
            self._pending.setdefault(detail, []).append((natural_key, error))
            return
        self._defer_refused(natural_key, detail, error)
        self._failed += error.code == "denied" and detail == _ESSENTIAL

    def _defer_refused(self, natural_key: str, detail: str, error: SourceGone | AccessDenied) -> None:
        # A server without this kind of detail has nothing to fetch.
        if error.code != "no_route":
            self.defer(natural_key, detail, f"{error.code}: {error}")

    def settle(self, ask: Ask) -> None:
        """Decide, at the end of a page, which details are refused for every merge request. Raises the refusal
        of a detail that everything else needs.
        """
        if self._refusals is None:
            return
        pending, self._pending = self._pending, {}
        skipped, self._skipped = self._skipped, {}
        for detail, refused in sorted(pending.items()):
            # A merge request that is not found may be gone itself; the others show more.
            error = min((one for _, one in refused), key=lambda one: one.code == "no_object")
            if not self._is_of_all(detail, refused, ask):
                left = [(key, error) for key in skipped.get(detail, ())]
                for key, one in (*refused, *left):
                    # Also without a route: the server has this kind of detail, or did not say.
                    self.defer(key, detail, f"{one.code}: {one}")
            elif detail == _ESSENTIAL and isinstance(error, AccessDenied):
                raise error
            else:
                self._refusals.refuse(Refusal(detail, error.code, str(error)))

    def _is_of_all(
        self, detail: str, refused: Sequence[tuple[str, SourceGone | AccessDenied]], ask: Ask
    ) -> bool:
        assert self._refusals is not None
        if self._refusals.is_readable(detail):
            return False
        others = self._refusals.others({int(key) for key, _ in refused})
        try:
            is_readable, refusal = ask_others(ask, others, detail)
        except (AccessDenied, Permanent, Transient) as error:
            if error.code not in OWN_ERRORS:
                raise
            return False
        if is_readable:
            self._refusals.note_readable(detail)
            return False
        # Without others: merge requests that are not found may be gone, if many are deleted at once.
        return refusal is not None or any(error.code != "no_object" for _, error in refused)

    def defer(self, natural_key: str, detail: str, error: str) -> None:
        """Record a detail that was read only in part."""
        self._deferred.append(DeferredFetch(natural_key, detail, error))

    @property
    def found(self) -> tuple[DeferredFetch, ...]:
        """The deferred fetches, in a stable order."""
        return tuple(sorted(self._deferred, key=lambda one: (one.natural_key, one.detail)))


def parallel_map(work: Callable[[T], R], items: Sequence[T], limit: Callable[[], int]) -> list[R]:
    """``work`` of each of ``items``, at most ``limit()`` at once, in their order. The limit is asked again
    before each item, because it follows the load of the server. The first error, in the order of the items,
    is raised after the running ones have ended; the rest does not start.
    """
    if limit() <= 1 or len(items) <= 1:
        return [work(item) for item in items]
    return _Workers(work, items, limit).run()


class _Workers(Generic[T, R]):
    """Threads that share the items of one :func:`parallel_map`."""

    def __init__(self, work: Callable[[T], R], items: Sequence[T], limit: Callable[[], int]) -> None:
        self._work = work
        self._items = items
        self._limit = limit
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._next = self._running = 0
        self._is_over = False
        self._results: dict[int, R] = {}
        self._errors: dict[int, BaseException] = {}

    def run(self) -> list[R]:
        """See :func:`parallel_map`."""
        with ThreadPoolExecutor(len(self._items), thread_name_prefix="gitlab") as pool:
            try:
                self._add_workers(pool)
                self._ended.wait()
            finally:
                # After an interruption the rest does not start.
                self._is_over = True
        if self._errors:
            raise self._errors[min(self._errors)]
        return [self._results[index] for index in range(len(self._items))]

    def _add_workers(self, pool: ThreadPoolExecutor) -> None:
        with self._lock:
            limit = 0 if self._is_over else min(self._limit(), self._running + len(self._items) - self._next)
            for _ in range(limit - self._running):
                self._running += 1
                pool.submit(self._run_items, pool)

    def _run_items(self, pool: ThreadPoolExecutor) -> None:
        while (index := self._take()) is not None:
            try:
                self._results[index] = self._work(self._items[index])
            except BaseException as error:
                self._errors[index] = error
                self._is_over = True
            else:
                self._add_workers(pool)

    def _take(self) -> int | None:
        """The next item, or None where this worker has to end."""
        with self._lock:
            if self._is_over or self._next == len(self._items) or self._running > self._limit():
                self._running -= 1
                if not self._running:
                    self._ended.set()
                return None
            self._next += 1
            return self._next - 1
