"""Details of merge requests: requested in parallel, with an obligation where one cannot be read.

Belongs here: which errors of a detail are its own, what the server refuses for every merge request, and
running several requests at once. Does not belong here: what the details are."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from sync_pipeline.errors import AccessDenied, Permanent, RowUnreadable, SourceGone, Transient
from sync_pipeline.model import Obligation, Refusal
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
    }
)
"""Errors of one detail. Everything else (the network, the credential, the rate limit) is one of the job."""

REFUSED = frozenset({"denied", "no_object", "no_route"})
"""Errors of a detail that say that the token may not see it, or that the server does not have it."""

# So many details of one page that cannot be read are no accident of single rows.
_TOO_MANY = 20
# What else the token may not see (approvals, the code of a project whose merge requests are public) does not
# keep the rest from being read. Without notes there is no review.
_ESSENTIAL = "notes"
# So many merge requests that are refused, and none that is not, stand for all.
_ENOUGH = 3


class Refusals:
    """Which details the server refuses for every merge request of a project. One instance serves one job.

    ``others`` gives some merge requests that are not among the given ones; they tell whether a refusal is
    one of a single merge request.
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
        """These were written down."""
        for one in refusals:
            self._unsaved.pop(one.detail, None)


Ask = Callable[[int, str], Refusal | None]
"""Asks for a detail of a merge request, by its number: the refusal, or None where it can be read."""


def refusal_of(client: Client, path: str, detail: str) -> Refusal | None:
    """How the server refuses ``path``, which is a ``detail``; None where it gives it. Raises as the transport
    does where it does not say."""
    try:
        client.get(path, {"per_page": "1"})
    except (SourceGone, AccessDenied) as error:
        if error.code not in REFUSED:
            raise
        return Refusal(detail, error.code, str(error))
    return None


class Owing:
    """Collects what one page owes. ``attempt`` may be called by several threads. With ``refusals``, a detail
    that the server refuses for every merge request gets no obligation for each."""

    def __init__(self, refusals: Refusals | None = None) -> None:
        self._refusals = refusals
        self._found: list[Obligation] = []
        self._pending: dict[str, list[tuple[str, SourceGone | AccessDenied]]] = {}
        self._skipped: dict[str, list[str]] = {}
        self._failed = 0

    def attempt(self, natural_key: str, detail: str, read: Callable[[], T]) -> T | None:
        """The result of ``read``, or None with an obligation where the detail cannot be read. Raises errors
        that do not concern this detail, and any error once a page owes too much."""
        if self._refusals is not None:
            if detail in self._refusals:
                return None
            if len(self._pending.get(detail, ())) >= _ENOUGH and not self._refusals.is_readable(detail):
                self._skipped.setdefault(detail, []).append(natural_key)
                return None
        try:
            found = read()
        except SourceGone as error:
            if error.code not in REFUSED:
                raise
            self._refuse(natural_key, detail, error)
        except RowUnreadable as error:
            self.owe(natural_key, detail, f"{error.code}: {error}")
        except (AccessDenied, Permanent, Transient) as error:
            if error.code not in OWN_ERRORS:
                raise
            if isinstance(error, AccessDenied):
                self._refuse(natural_key, detail, error)
            else:
                self.owe(natural_key, detail, f"{error.code}: {error}")
                self._failed += 1
            if self._failed > _TOO_MANY:
                raise
        else:
            if self._refusals is not None:
                self._refusals.note_readable(detail)
            return found
        return None

    def _refuse(self, natural_key: str, detail: str, error: SourceGone | AccessDenied) -> None:
        if self._refusals is not None:
            self._pending.setdefault(detail, []).append((natural_key, error))
            return
        self._owe_refused(natural_key, detail, error)
        self._failed += error.code == "denied" and detail == _ESSENTIAL

    def _owe_refused(self, natural_key: str, detail: str, error: SourceGone | AccessDenied) -> None:
        # A server without this kind of detail owes nothing.
        if error.code != "no_route":
            self.owe(natural_key, detail, f"{error.code}: {error}")

    def settle(self, ask: Ask) -> None:
        """Decide, at the end of a page, whether what was refused is refused for every merge request. Raises
        the refusal of what nothing can be read without."""
        if self._refusals is None:
            return
        pending, self._pending = self._pending, {}
        skipped, self._skipped = self._skipped, {}
        for detail, refused in sorted(pending.items()):
            error = refused[0][1]
            if not self._is_of_all(detail, refused, ask):
                keys = [*(key for key, _ in refused), *skipped.get(detail, ())]
                for key in keys:
                    self._owe_refused(key, detail, error)
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
        keys = {int(key) for key, _ in refused}
        if len(keys) >= _ENOUGH:
            return True
        others = self._refusals.others(keys)
        try:
            if any(ask(iid, detail) is None for iid in others):
                self._refusals.note_readable(detail)
                return False
        except (AccessDenied, Permanent, Transient) as error:
            if error.code not in OWN_ERRORS:
                raise
            return False
        # One alone that is not found may be gone itself.
        return bool(others) or len(keys) > 1 or refused[0][1].code != "no_object"

    def owe(self, natural_key: str, detail: str, error: str) -> None:
        """Write down a detail that was read in part only."""
        self._found.append(Obligation(natural_key, detail, error))

    @property
    def obligations(self) -> tuple[Obligation, ...]:
        """What is owed, in a stable order."""
        return tuple(sorted(self._found, key=lambda one: (one.natural_key, one.detail)))


def side_by_side(work: Callable[[T], R], items: Sequence[T], parallel: int) -> list[R]:
    """``work`` of each of ``items``, at most ``parallel`` at once, in their order. The first error is raised
    when what has begun is over; the rest is not begun."""
    if parallel <= 1 or len(items) <= 1:
        return [work(item) for item in items]
    with ThreadPoolExecutor(min(parallel, len(items)), thread_name_prefix="gitlab") as pool:
        futures = [pool.submit(work, item) for item in items]
        try:
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
