"""How large the next chunk is.

Belongs here: growth where the source is sparse, and smaller pieces for one in trouble. Halving after a hard
answer is the engine's, because it is about the chunk at hand, not the next one.
"""

from __future__ import annotations

import sys
from datetime import timedelta

LARGEST_GROWTH = 64


def next_size(size: int, rows: int, base: int) -> int:
    """Revisions of the chunk after one of ``size`` revisions that held ``rows`` rows.

    Doubles while fewer than a quarter of the revisions were rows (a registered subfolder of a large
    repository), up to 64 times ``base``; falls back to ``base`` as soon as it is dense again.
    """
    return min(size * 2, base * LARGEST_GROWTH) if rows * 4 < size else base


class WindowLimit:
    """How many ``revisions`` are requested at once after answers that did not arrive in time.

    It falls to an eighth with each time-out, so that four of them lead from 1,000 revisions to one. Each
    answer doubles it again, up to half of what timed out: that size is not tried twice. Halves alone would
    meet the limit of time-outs before they are short enough for a link that stalls after some kilobytes.
    """

    def __init__(self) -> None:
        """No limit at first."""
        self.revisions = self._ceiling = sys.maxsize

    def shrink(self, failed: int) -> None:
        """A window of ``failed`` revisions did not arrive in time."""
        self._ceiling = max(1, failed // 2)
        self.revisions = max(1, failed // 8)

    def grow(self) -> None:
        """What was requested arrived."""
        self.revisions = min(self.revisions * 2, self._ceiling)


def share_of(size: int, share: float) -> int:
    """``share`` of a size, at least one."""
    return max(1, round(size * share))


def page_size(share: float) -> int:
    """Rows of a page of which ``share`` is asked for: a multiple of ten, as a page that cannot be given is
    read in tens; 100 is the most that GitLab gives."""
    return min(100, max(10, 10 * int(10 * share)))


def next_step(step: timedelta, rows: int, *, page: int, first: timedelta, longest: timedelta) -> timedelta:
    """Length of time of the next step through a list by time, after one of ``step`` that held ``rows`` rows.

    It follows the rows: shorter, but not below ``first``, after more than a ``page`` of them, longer up to
    ``longest`` after less than half a page. Time in which nothing was updated doubles it whatever
    ``longest`` is: ten empty years are a few questions, not one for each day.
    """
    if rows == 0:
        return step * 2
    if rows > page:
        return max(step / 2, first)
    return min(step * 2 if rows * 2 < page else step, max(longest, first))
