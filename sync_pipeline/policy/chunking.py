"""The size of the next chunk.

Belongs here: growth where the source is sparse, and smaller sizes after failures. The engine halves a failed
chunk, because that is about the current chunk, not the next one.
"""

from __future__ import annotations

import sys
from datetime import timedelta

LARGEST_GROWTH = 64


def next_size(size: int, rows: int, base: int) -> int:
    """Revisions of the chunk after one of ``size`` revisions that had ``rows`` rows.

    It doubles while fewer than a quarter of the revisions were rows (a registered subfolder of a large
    repository), up to 64 times ``base``. It returns to ``base`` in the first dense chunk.
    """
    return min(size * 2, base * LARGEST_GROWTH) if rows * 4 < size else base


class WindowLimit:
    """How many ``revisions`` are requested at once after time-outs.

    It falls to an eighth with each time-out, so that four of them lead from 1,000 revisions to one. Each
    response doubles it again, up to half of the size that timed out. That size is not tried twice. Halving
    would use up the allowed time-outs before the size is small enough for a link that stalls after some
    kilobytes.
    """

    def __init__(self) -> None:
        """No limit at first."""
        self.revisions = self._ceiling = sys.maxsize

    def shrink(self, failed: int) -> None:
        """Record that a window of ``failed`` revisions timed out."""
        self._ceiling = max(1, failed // 2)
        self.revisions = max(1, failed // 8)

    def grow(self) -> None:
        """Record that the requested window arrived."""
        self.revisions = min(self.revisions * 2, self._ceiling)


def share_of(size: int, share: float) -> int:
    """``share`` of a size, at least one."""
    return max(1, round(size * share))


def page_size(share: float) -> int:
    """Rows of a page at ``share`` of the usual size. It is a multiple of ten, because a failing page is read
    in tens, and at most 100, GitLab's own limit.
    """
    return min(100, max(10, 10 * int(10 * share)))


def next_step(step: timedelta, rows: int, *, page: int, first: timedelta, longest: timedelta) -> timedelta:
    """Length of the next step through a list by time, after a step of ``step`` that had ``rows`` rows.

    It is shorter after more than a ``page`` of rows, but not below ``first``. It is longer after less than
    half a page, up to ``longest``. An empty step doubles it beyond ``longest``: ten empty years take a few
    requests, not one for each day.
    """
    if rows == 0:
        return step * 2
    if rows > page:
        return max(step / 2, first)
    return min(step * 2 if rows * 2 < page else step, max(longest, first))
