"""Details of merge requests: asked for side by side, and owed where one cannot be read.

Belongs here: which errors of a detail are its own, and running several requests at once. Does not belong
here: what the details are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from sync_pipeline.errors import AccessDenied, Permanent, RowUnreadable, SourceGone, Transient
from sync_pipeline.model import Obligation

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

# So many details of one page that cannot be read are no accident of single rows.
_TOO_MANY = 20
# What else the token may not see (approvals, the code of a project whose merge requests are public) is owed
# by each merge request and keeps nobody from the rest. Without notes there is no review.
_ESSENTIAL = "notes"


class Owing:
    """Collects what one page owes. ``attempt`` may be called by several threads."""

    def __init__(self) -> None:
        self._found: list[Obligation] = []
        self._failed = 0

    def attempt(self, natural_key: str, detail: str, read: Callable[[], T]) -> T | None:
        """What ``read`` returns, or None with an obligation where the detail cannot be read. Raises what is
        no
        matter of this detail, and the error itself once a page owes too much."""
        try:
            return read()
        except SourceGone as error:
            # A server without this kind of detail owes nothing.
            if error.code not in ("no_object", "no_route"):
                raise
            if error.code == "no_object":
                self.owe(natural_key, detail, f"{error.code}: {error}")
        except RowUnreadable as error:
            self.owe(natural_key, detail, f"{error.code}: {error}")
        except (AccessDenied, Permanent, Transient) as error:
            if error.code not in OWN_ERRORS:
                raise
            self.owe(natural_key, detail, f"{error.code}: {error}")
            self._failed += error.code != "denied" or detail == _ESSENTIAL
            if self._failed > _TOO_MANY:
                raise
        return None

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
