"""When a (repository, job type) is healthy, and what is said when it is not."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sync_pipeline.model import Access, JobType, Lifecycle, RevisionWindow
from sync_pipeline.quality.health import Facts, Reason, judge

NOW = datetime(2026, 1, 2, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
GOOD = Facts(
    repo_id=1,
    job_type=JobType.REVISIONS,
    lifecycle=Lifecycle.ACTIVE,
    access=Access.OK,
    access_detail=None,
    visited_at=NOW,
    verified_at=NOW - timedelta(minutes=59),
    watermark=11,
    head=10,
    gap=(),
    queued=(),
    hint_code=None,
    hint_error=None,
    failed=(),
    incremental_dead=False,
    last_error=None,
    quarantined=0,
    obligations=0,
    poorer=0,
)


def test_complete_and_fresh_is_healthy() -> None:
    health = judge(GOOD, NOW, HOUR)
    assert (health.passed, health.reasons, health.detail) == (True, (), {})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"verified_at": NOW - timedelta(minutes=61)}, Reason.STALE),
        ({"verified_at": None, "visited_at": None}, Reason.NEVER_SYNCED),
        ({"queued": (RevisionWindow(1, 5),)}, Reason.INCOMPLETE),
        ({"hint_code": "denied", "hint_error": "no"}, Reason.DENIED),
        ({"hint_code": "not_found", "hint_error": "no"}, Reason.GONE),
        ({"gap": (RevisionWindow(1, 5),)}, Reason.GAP),
        ({"failed": (RevisionWindow(1, 5),), "last_error": "too hard"}, Reason.FAILED_WINDOW),
        ({"incremental_dead": True}, Reason.FAILED_WINDOW),
        ({"quarantined": 2}, Reason.QUARANTINE),
        ({"obligations": 1}, Reason.OBLIGATION),
        ({"access": Access.DENIED}, Reason.DENIED),
        ({"access": Access.GONE}, Reason.GONE),
        ({"access": Access.REPLACED, "access_detail": "another UUID"}, Reason.REPLACED),
        ({"poorer": 3}, Reason.POORER),
    ],
)
def test_each_defect_fails_with_its_own_reason_and_a_line(changes: dict[str, Any], reason: Reason) -> None:
    health = judge(replace(GOOD, **changes), NOW, HOUR)
    assert (health.passed, health.reasons) == (False, (reason,))
    assert health.detail[reason]


def test_several_defects_are_all_named() -> None:
    health = judge(replace(GOOD, quarantined=1, access=Access.DENIED), NOW, HOUR)
    assert set(health.reasons) == {Reason.QUARANTINE, Reason.DENIED}


def test_a_retired_repository_is_not_blamed() -> None:
    retired = replace(GOOD, lifecycle=Lifecycle.RETIRED, access=Access.GONE, verified_at=None)
    assert judge(retired, NOW, HOUR).passed


def test_freshness_of_a_time_watermark_counts_too() -> None:
    assert judge(replace(GOOD, verified_at=None, watermark=NOW - timedelta(minutes=5)), NOW, HOUR).passed


def test_a_long_list_of_gaps_is_cut_and_counted() -> None:
    gaps = tuple(RevisionWindow(n, n + 1) for n in range(1, 100, 2))
    line = judge(replace(GOOD, gap=gaps), NOW, HOUR).detail[Reason.GAP]
    assert "45 more" in line
    assert "(50 revisions)" in line
