"""What is read again by itself: whole days and blocks, once a night, once after each outage."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sync_pipeline.core.model import JobType, RevisionWindow, TimeWindow
from sync_pipeline.core.windows import bounds
from sync_pipeline.policy.resync import ResyncAsset, full_sync, repair

NOW = datetime(2026, 3, 10, 2, 0, 7, tzinfo=UTC)
NIGHT = datetime(2026, 3, 10, tzinfo=UTC)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
PROJECT = ResyncAsset(1, JobType.COMMITS, "gitlab.example", "acme", NOW - timedelta(minutes=2))
SVN = ResyncAsset(2, JobType.REVISIONS, "svn.example", "acme", 2501)


def test_the_last_days_are_whole_ones() -> None:
    assert full_sync(PROJECT, NOW, days=7, longest=7 * DAY) == (TimeWindow(NIGHT - 7 * DAY, NIGHT),)
    pieces = full_sync(PROJECT, NOW, days=7, longest=timedelta(hours=60))
    assert [bounds(piece)[0] for piece in pieces] == [NIGHT - n * DAY for n in (7, 5, 3, 1)]
    assert full_sync(PROJECT, NOW, days=0, longest=DAY) == ()
    # What is not complete yet is live syncing's.
    behind = replace(PROJECT, watermark=NIGHT - 2 * DAY)
    assert full_sync(behind, NOW, days=3, longest=DAY) == (TimeWindow(NIGHT - 3 * DAY, NIGHT - 2 * DAY),)
    assert full_sync(replace(PROJECT, watermark=None), NOW, days=3, longest=DAY) == ()


def test_the_last_blocks_end_at_head() -> None:
    last = (RevisionWindow(1001, 2001), RevisionWindow(2001, 2501))
    assert full_sync(SVN, NOW, days=2, longest=DAY) == last
    assert full_sync(SVN, NOW, days=9, longest=DAY) == (RevisionWindow(1, 1001), *last)
    assert full_sync(replace(SVN, watermark=1), NOW, days=9, longest=DAY) == ()
    assert full_sync(SVN, NOW, days=0, longest=DAY) == ()


@given(days=st.integers(1, 40), longest=st.integers(1, 400), behind=st.integers(0, 24 * 50))
def test_pieces_join_and_none_is_longer_than_allowed(days: int, longest: int, behind: int) -> None:
    asset = replace(PROJECT, watermark=NIGHT - behind * HOUR)
    pieces = [bounds(p) for p in full_sync(asset, NOW, days=days, longest=longest * HOUR)]
    assert all(end - start <= longest * HOUR for start, end in pieces)
    assert all(one[1] == other[0] for one, other in pairwise(pieces))
    total = sum(((end - start) for start, end in pieces), timedelta())
    assert total == max(days * DAY - behind * HOUR, timedelta())


@pytest.mark.parametrize(
    ("queued", "is_open", "due"),
    [
        (NOW - HOUR, False, False),  # earlier in this night
        (NOW - DAY, False, True),
        (NOW - DAY, True, False),  # the caps have not let it through yet
    ],
)
def test_a_set_a_night(queued: datetime, is_open: bool, due: bool) -> None:
    asset = replace(PROJECT, queued_at=queued, open=is_open)
    assert bool(full_sync(asset, NOW, days=1, longest=DAY)) is due


@pytest.mark.parametrize(
    ("failed", "succeeded", "queued", "due"),
    [
        (3, 2, None, True),
        (3, 2, 1, False),  # this outage was looked after
        (3, 2, 5, True),  # that was the outage before
        (2, 3, None, False),  # it still fails
        (3, None, None, False),
        (None, 1, None, False),
        (30, 29, None, False),  # longer ago than the window
    ],
)
def test_once_after_each_outage(
    failed: float | None, succeeded: float | None, queued: float | None, due: bool
) -> None:
    def ago(hours: float | None) -> datetime | None:
        return None if hours is None else NOW - hours * HOUR

    project, svn = (
        replace(asset, failed_at=ago(failed), succeeded_at=ago(succeeded), queued_at=ago(queued))
        for asset in (PROJECT, SVN)
    )
    end = datetime(2026, 3, 10, 1, 58, tzinfo=UTC)
    assert repair(project, NOW, window=DAY) == ((TimeWindow(end - DAY, end),) if due else ())
    assert len(repair(project, NOW, window=26 * HOUR)) == 2 * due
    revisions = (RevisionWindow(1501, 2001), RevisionWindow(2001, 2501))
    assert repair(svn, NOW, window=DAY) == (revisions if due else ())
    assert repair(replace(svn, open=True), NOW, window=DAY) == ()
