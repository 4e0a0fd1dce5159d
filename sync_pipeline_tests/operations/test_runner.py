"""What the runner decides and reports: windows, plans, documents, exit codes."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sync_pipeline.errors import ConfigurationError
from sync_pipeline.model import (
    Counts,
    JobReport,
    JobStatus,
    JobType,
    Kind,
    Lifecycle,
    Mode,
    Repository,
    RevisionWindow,
    RunStatus,
)
from sync_pipeline.operations import runner
from sync_pipeline.operations.runner import Outcome

START = datetime(2026, 3, 1, tzinfo=UTC)
END = START + timedelta(seconds=3)
REPOSITORY = Repository(
    repo_id=1,
    kind=Kind.SVN,
    instance="h",
    instance_slug="h",
    tenant="paint",
    slug="paint_1",
    url="svn://h/paint",
    lifecycle=Lifecycle.ACTIVE,
    created_at=START,
    svn_uuid="u",
    svn_root="svn://h/paint",
)
GOOD = JobReport(
    job_id=uuid4(),
    run_id=uuid4(),
    repo_id=1,
    job_type=JobType.REVISIONS,
    mode=Mode.BACKFILL,
    window=RevisionWindow(1, 1001),
    job_status=JobStatus.COMPLETED,
    run_status=RunStatus.COMPLETED,
    counts=Counts(read=10, inserted=6, updated=1, unchanged=2, quarantined=1),
    calls=3,
    watermark_before=1,
    watermark_after=1001,
    covered=(RevisionWindow(1, 1001),),
)
BAD = replace(
    GOOD,
    window=RevisionWindow(1001, 2001),
    job_status=JobStatus.FAILED,
    run_status=RunStatus.FAILED,
    counts=Counts(),
    covered=(),
    error_code="transient",
    error="svn://h does not answer",
)
HALF = replace(BAD, counts=Counts(read=1, inserted=1), covered=(RevisionWindow(1001, 1501),))
HELD = replace(BAD, job_status=JobStatus.RUNNING, run_status=RunStatus.RUNNING, error="x works on it")
STOPPED = replace(HALF, job_status=JobStatus.PENDING, run_status=RunStatus.INTERRUPTED)


def backfill(*reports: JobReport, **options: Any) -> dict[str, Any]:
    chosen: dict[str, Any] = {"window": RevisionWindow(1, 2001), "watermark_updated": False, **options}
    return runner.backfill_document(
        REPOSITORY, JobType.REVISIONS, reports, started_at=START, finished_at=END, **chosen
    )


@pytest.mark.parametrize(
    ("report", "outcome", "code"),
    [
        (GOOD, Outcome.SUCCESS, 0),
        (replace(GOOD, run_status=RunStatus.NO_DATA), Outcome.SUCCESS, 0),
        (HALF, Outcome.PARTIAL, 1),
        (HELD, Outcome.SKIPPED, 1),
        (BAD, Outcome.FAILED, 2),
        (replace(BAD, job_status=JobStatus.DEAD), Outcome.FAILED, 2),
        (STOPPED, Outcome.CANCELLED, 2),
    ],
)
def test_every_end_of_a_job_has_its_exit_code(report: JobReport, outcome: Outcome, code: int) -> None:
    document = runner.incremental_document(
        REPOSITORY, JobType.REVISIONS, [report], started_at=START, finished_at=END
    )
    assert (document["status"], document["exit_code"]) == (outcome, code)


def test_the_incremental_document_has_the_fields_that_scripts_read() -> None:
    document = runner.incremental_document(
        REPOSITORY, JobType.REVISIONS, [GOOD], started_at=START, finished_at=END
    )
    assert document == {
        "phase": "incremental",
        "repo": "svn:svn://h/paint",
        "job": "revisions",
        "status": "success",
        "items_synced": 7,
        "items_skipped": 2,
        "message": "6 inserted, 1 updated, 2 unchanged, 1 quarantined",
        "error": None,
        "started_at": "2026-03-01T00:00:00+00:00",
        "finished_at": "2026-03-01T00:00:03+00:00",
        "vfacts_refreshed": False,
        "exit_code": 0,
        "window": {"start_rev": 1, "end_rev": 1000},
        "inserted": 6,
        "updated": 1,
        "unchanged": 2,
        "quarantined": 1,
        "calls": 3,
        "watermark_before": 1,
        "watermark_after": 1001,
    }


def test_one_failed_block_makes_a_backfill_partial_and_is_named() -> None:
    document = backfill(GOOD, BAD)
    assert (document["status"], document["exit_code"]) == ("partial", 1)
    assert document["total_chunks"] == 2
    assert [document[f"{name}_chunks"] for name in ("success", "partial", "failed")] == [1, 0, 1]
    assert document["total_items_synced"] == 7
    assert document["total_items_skipped"] == 2
    assert document["total_items_failed"] == 1
    assert document["errors"] == ["svn://h does not answer"]
    assert document["chunk_results"][1] == {
        "chunk_index": 1,
        "status": "failed",
        "synced_count": 0,
        "window": {"start_rev": 1001, "end_rev": 2000},
        "error": "svn://h does not answer",
    }


@pytest.mark.parametrize(
    ("reports", "code"),
    [((GOOD, GOOD), 0), ((), 0), ((GOOD, HALF), 1), ((BAD, HALF), 1), ((BAD, BAD), 2), ((STOPPED,), 2)],
)
def test_the_exit_code_of_a_backfill_follows_from_all_its_blocks(
    reports: tuple[JobReport, ...], code: int
) -> None:
    assert backfill(*reports)["exit_code"] == code


def test_a_backfill_with_nothing_missing_says_so() -> None:
    document = backfill(window=None)
    assert document["message"] == "nothing new"
    assert document["window"] is None
    assert document["total_chunks"] == 0


@pytest.mark.parametrize(
    ("start", "end", "window"),
    [
        (None, None, (1, 51)),
        (10, None, (10, 51)),
        (None, 10, (1, 11)),
        (10, 10, (10, 11)),
        (50, 50, (50, 51)),
    ],
)
def test_bounds_are_inclusive_and_optional(
    start: int | None, end: int | None, window: tuple[int, int]
) -> None:
    assert runner.backfill_window(start, end, 50) == RevisionWindow(*window)


@pytest.mark.parametrize(
    ("start", "end", "part"),
    [
        (0, None, "--start-rev 0: the first revision is 1"),
        (None, 0, "--end-rev 0: the first revision is 1"),
        (9, 8, "--end-rev 8 is before --start-rev 9"),
        (900, 800, "--end-rev 800 is before --start-rev 900"),
        (1, 51, "--end-rev 51 is beyond HEAD, which is 50"),
        (51, None, "--start-rev 51 is beyond HEAD, which is 50"),
    ],
)
def test_a_window_that_does_not_exist_is_refused(start: int | None, end: int | None, part: str) -> None:
    with pytest.raises(ConfigurationError, match=part):
        runner.backfill_window(start, end, 50)


def test_an_empty_repository_has_an_empty_window() -> None:
    assert len(runner.backfill_window(None, None, 0)) == 0


def test_a_plan_says_block_by_block_what_is_missing() -> None:
    missing = [RevisionWindow(900, 1101), RevisionWindow(2500, 2501)]
    plan = runner.plan_backfill(RevisionWindow(1, 2601), missing)
    assert [block.missing for block in plan] == [
        (RevisionWindow(900, 1001),),
        (RevisionWindow(1001, 1101),),
        (RevisionWindow(2500, 2501),),
    ]
    document = runner.plan_document(REPOSITORY, JobType.REVISIONS, RevisionWindow(1, 2601), 2600, plan)
    assert (document["total_chunks"], document["missing_chunks"], document["missing_items"]) == (3, 3, 202)
    assert runner.hull(missing) == RevisionWindow(900, 2501)
    assert runner.hull([]) is None


@given(st.sets(st.integers(1, 3500)), st.integers(1, 3500), st.integers(0, 3500))
def test_a_plan_misses_exactly_what_is_missing(revisions: set[int], first: int, length: int) -> None:
    window = RevisionWindow(first, first + length)
    inside = {revision for revision in revisions if first <= revision < first + length}
    plan = runner.plan_backfill(window, [RevisionWindow(r, r + 1) for r in sorted(inside)])
    planned = [r for block in plan for gap in block.missing for r in range(gap.first, gap.end)]
    assert planned == sorted(inside)
    assert sum(len(block.window) for block in plan) == length


def test_the_job_type_has_to_be_one_of_the_repository() -> None:
    assert runner.job_type_for(REPOSITORY, None) is JobType.REVISIONS
    assert runner.job_type_for(REPOSITORY, "svn") is JobType.REVISIONS
    for name, part in (("commits", "has no commits; it has revisions"), ("x", "unknown job type 'x'")):
        with pytest.raises(ConfigurationError, match=part):
            runner.job_type_for(REPOSITORY, name)
