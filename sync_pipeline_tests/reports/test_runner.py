"""What the runner decides and reports: windows, plans, documents, exit codes."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sync_pipeline.core import formatting
from sync_pipeline.core.errors import ConfigurationError
from sync_pipeline.core.model import (
    BEGINNING,
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
    TimeWindow,
    Traffic,
    Window,
)
from sync_pipeline.core.windows import hull, without
from sync_pipeline.ledger.runs import BatchRow
from sync_pipeline.registry import projects
from sync_pipeline.reports import plans, runner
from sync_pipeline.reports.runner import Bounds, Outcome

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
    traffic=Traffic(calls=3),
    watermark_before=1,
    watermark_after=1001,
    covered=(RevisionWindow(1, 1001),),
)
BAD = replace(
    GOOD,
    run_id=uuid4(),
    window=RevisionWindow(1001, 2001),
    job_status=JobStatus.FAILED,
    run_status=RunStatus.FAILED,
    counts=Counts(),
    covered=(),
    error_code="transient",
    error="svn://h does not answer",
)
HALF = replace(BAD, run_id=uuid4(), counts=Counts(read=1, inserted=1), covered=(RevisionWindow(1001, 1501),))
HELD = replace(BAD, job_status=JobStatus.RUNNING, run_status=RunStatus.RUNNING, error="x works on it")
STOPPED = replace(HALF, job_status=JobStatus.PENDING, run_status=RunStatus.INTERRUPTED)


def backfill(*reports: JobReport, **options: Any) -> dict[str, Any]:
    windows = [report.window for report in reports]
    chosen: dict[str, Any] = {
        "windows": windows,
        "batches": [batch for report in reports for batch in batches_of(report)],
        "missing": [
            gap
            for report in reports
            if report.window is not None
            for gap in without(report.window, report.covered)
        ],
        "complete_before": [],
        "watermark_updated": False,
        **options,
    }
    return runner.backfill_document(
        REPOSITORY, JobType.REVISIONS, reports, started_at=START, finished_at=END, **chosen
    )


def batches_of(report: JobReport, *covered: Window, **changes: Any) -> list[BatchRow]:
    """A batch for each window, by default those that ``report`` covered, each under a lease of its own; the
    first one has the rows."""
    assert report.run_id is not None
    return [
        BatchRow(
            batch_id=number,
            run_id=report.run_id,
            number=number,
            fence=number,
            window=report.window,
            covered=window,
            read=(window,),
            counts=report.counts if number == 1 else Counts(),
            owed=0,
            position="p",
            first_key="1",
            last_key="2",
            calls=report.calls if number == 1 else 0,
            seconds=0.5,
            committed_at=START,
            **changes,
        )
        for number, window in enumerate(covered or report.covered, 1)
    ]


def plan_document(
    repository: Repository, job_type: JobType, window: Window, head: int | None, chunks: Any
) -> dict[str, Any]:
    nothing = plans.Expected(None, None, None)
    return plans.plan_document(
        plans.ReadPlan(repository, job_type, Mode.BACKFILL, window, head, chunks, nothing)
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
    assert document["chunk_results"] == [
        {
            "chunk_index": 0,
            "status": "success",
            "synced_count": 7,
            "window": {"start_rev": 1, "end_rev": 1000},
            "error": None,
            "state": "missing",
            "rows_read": 10,
            "inserted": 6,
            "updated": 1,
            "unchanged": 2,
            "quarantined": 1,
            "calls": 3,
            "batches": 1,
            "seconds": 0.5,
        },
        {
            "chunk_index": 1,
            "status": "failed",
            "synced_count": 0,
            "window": {"start_rev": 1001, "end_rev": 2000},
            "error": "svn://h does not answer",
            "state": "missing",
            "rows_read": 0,
            "inserted": 0,
            "updated": 0,
            "unchanged": 0,
            "quarantined": 0,
            "calls": 3,
            "batches": 0,
            "seconds": 0.0,
        },
    ]


@pytest.mark.parametrize(
    ("reports", "code"),
    [((GOOD, GOOD), 0), ((), 0), ((GOOD, HALF), 1), ((BAD, HALF), 1), ((BAD, BAD), 2), ((STOPPED,), 2)],
)
def test_the_exit_code_of_a_backfill_follows_from_all_its_blocks(
    reports: tuple[JobReport, ...], code: int
) -> None:
    assert backfill(*reports)["exit_code"] == code


def test_a_backfill_with_nothing_missing_says_so() -> None:
    document = backfill()
    assert document["message"] == "nothing was missing, so nothing was read"
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
        (1, 51, "--end-rev 51 is beyond HEAD, which is r50"),
        (51, None, "--start-rev 51 is beyond HEAD, which is r50"),
    ],
)
def test_a_window_that_does_not_exist_is_refused(start: int | None, end: int | None, part: str) -> None:
    with pytest.raises(ConfigurationError, match=part):
        runner.backfill_window(start, end, 50)


def test_an_empty_repository_has_an_empty_window() -> None:
    assert len(runner.backfill_window(None, None, 0)) == 0


def test_a_plan_says_block_by_block_what_is_missing() -> None:
    missing = [RevisionWindow(900, 1101), RevisionWindow(2500, 2501)]
    plan = plans.plan_backfill(RevisionWindow(1, 2601), missing)
    assert [block.missing for block in plan] == [
        (RevisionWindow(900, 1001),),
        (RevisionWindow(1001, 1101),),
        (RevisionWindow(2500, 2501),),
    ]
    document = plan_document(REPOSITORY, JobType.REVISIONS, RevisionWindow(1, 2601), 2600, plan)
    assert (document["total_chunks"], document["missing_chunks"], document["missing_items"]) == (3, 3, 202)
    assert hull(missing) == RevisionWindow(900, 2501)
    assert hull([]) is None


@given(st.sets(st.integers(1, 3500)), st.integers(1, 3500), st.integers(0, 3500))
def test_a_plan_misses_exactly_what_is_missing(revisions: set[int], first: int, length: int) -> None:
    window = RevisionWindow(first, first + length)
    inside = {revision for revision in revisions if first <= revision < first + length}
    plan = plans.plan_backfill(window, [RevisionWindow(r, r + 1) for r in sorted(inside)])
    gaps = [gap for block in plan for gap in block.missing if isinstance(gap, RevisionWindow)]
    assert [r for gap in gaps for r in range(gap.first, gap.end)] == sorted(inside)
    blocks = [block.window for block in plan if isinstance(block.window, RevisionWindow)]
    assert sum(map(len, blocks)) == length


def test_the_job_type_has_to_be_one_of_the_repository() -> None:
    assert runner.job_type_for(REPOSITORY, None) is JobType.REVISIONS
    assert runner.job_type_for(REPOSITORY, "svn") is JobType.REVISIONS
    for name, part in (("commits", "has no commits; it has revisions"), ("x", "unknown job type 'x'")):
        with pytest.raises(ConfigurationError, match=part):
            runner.job_type_for(REPOSITORY, name)


# Time -------------------------------------------------------------------------------------------------------

NOW = datetime(2026, 3, 10, 12, 30, tzinfo=UTC)
PROJECT = replace(REPOSITORY, kind=Kind.GITLAB, url="https://h/projects/7", project_id=7, project_path="a/b")
MRS, REVIEWS = JobType.MERGE_REQUESTS, JobType.REVIEWS


def day(number: int, month: int = 3) -> datetime:
    return datetime(2026, month, number, tzinfo=UTC)


@pytest.mark.parametrize(
    ("bounds", "since", "until"),
    [
        (Bounds(), BEGINNING, NOW),
        (Bounds(since="2026-03-01"), day(1), NOW),
        (Bounds(until="2026-03-02T00:00:00Z"), BEGINNING, day(2)),
        (Bounds(since="2026-03-01T02:00:00+02:00", until="2026-03-02 00:00"), day(1), day(2)),
        (Bounds(last_days=9), NOW - timedelta(days=9), NOW),
        (Bounds(last_hours=24), NOW - timedelta(hours=24), NOW),
        (Bounds(last_days=10**9), None, NOW),
    ],
)
def test_times_without_a_zone_are_utc_and_a_missing_bound_is_everything(
    bounds: Bounds, since: datetime | None, until: datetime
) -> None:
    window = runner.time_window(bounds, NOW)
    assert window.until == until
    assert window.since == since if since else window.since >= BEGINNING


@pytest.mark.parametrize(
    ("repository", "bounds", "line"),
    [
        (PROJECT, Bounds(start_rev=1), "--start-rev: gitlab:7 is read by time; use --since and --until"),
        (
            REPOSITORY,
            Bounds(since="2026-03-01"),
            "--since: svn:svn://h/paint is read by revisions; use --start",
        ),
        (REPOSITORY, Bounds(last_days=3), "--last-days: svn:svn://h/paint is read by revisions"),
        (PROJECT, Bounds(last_days=3, since="2026-03-01"), "--last-days and --since contradict each other"),
        (PROJECT, Bounds(last_days=3, last_hours=1), "--last-hours and --last-days contradict each other"),
        (PROJECT, Bounds(last_days=0), "--last-days 0: write a number from 1 on"),
        (PROJECT, Bounds(since="yesterday"), "--since 'yesterday': write a date or a time such as"),
        (PROJECT, Bounds(since="2026-03-02", until="2026-03-01"), "is before --since 2026-03-02"),
        (PROJECT, Bounds(since="2026-03-02", until="2026-03-02"), "has to end after it starts"),
        (
            PROJECT,
            Bounds(since="2026-03-11"),
            "--since 2026-03-11 is in the future; it is 2026-03-10T12:30:00Z",
        ),
        (PROJECT, Bounds(until="2099-01-01"), "--until 2099-01-01 is in the future"),
        (PROJECT, Bounds(since="1899-12-31"), "--since 1899-12-31 is before 1900-01-01"),
        (PROJECT, Bounds(since="0001-01-01T00:00:00+14:00"), "there is no such time in UTC"),
    ],
)
def test_bounds_that_contradict_each_other_or_do_not_exist_are_refused_in_one_line(
    repository: Repository, bounds: Bounds, line: str
) -> None:
    def decide() -> None:
        runner.check_bounds(repository, bounds)
        runner.time_window(bounds, NOW)

    with pytest.raises(ConfigurationError) as refused:
        decide()
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_history_that_was_never_read_is_not_counted_in_days() -> None:
    window = TimeWindow(BEGINNING, day(2))
    chunks = plans.plan_backfill(window, [window])
    nothing = plans.Expected(None, None, None)
    line = plans.plan_line(plans.ReadPlan(PROJECT, MRS, Mode.BACKFILL, window, None, chunks, nothing))
    assert line == f"{PROJECT.spec} merge_requests: history from the beginning in 1 stretch missing"


@pytest.mark.parametrize(
    ("mode", "missing", "where"),
    [
        (Mode.INCREMENTAL, [TimeWindow(day(9), day(10))], "to read: the last 24 h"),
        (Mode.INCREMENTAL, [TimeWindow(day(8), day(9))], "24 h in 1 stretch missing"),
        (
            Mode.INCREMENTAL,
            [TimeWindow(day(2), day(3)), TimeWindow(day(9), day(10))],
            "2 days in 2 stretches missing",
        ),
        (Mode.BACKFILL, [TimeWindow(day(9), day(10))], "24 h in 1 stretch missing"),
    ],
)
def test_the_time_since_the_last_visit_is_not_called_missing(
    mode: Mode, missing: list[TimeWindow], where: str
) -> None:
    window = TimeWindow(day(1), day(10))
    chunks = plans.plan_backfill(window, missing)
    nothing = plans.Expected(None, None, None)
    line = plans.plan_line(plans.ReadPlan(PROJECT, MRS, mode, window, None, chunks, nothing))
    assert line == f"{PROJECT.spec} merge_requests: {where}"


def test_time_is_planned_where_covered_and_missing_meet() -> None:
    window = TimeWindow(day(1), day(10))
    plan = plans.plan_backfill(window, [TimeWindow(day(1), day(2)), TimeWindow(day(5), day(6))])
    document = plan_document(PROJECT, MRS, window, None, plan)
    assert [
        (c["state"], c["window"]["since"][:10], c["window"]["until"][:10]) for c in document["chunks"]
    ] == [
        ("missing", "2026-03-01", "2026-03-02"),
        ("covered", "2026-03-02", "2026-03-05"),
        ("missing", "2026-03-05", "2026-03-06"),
        ("covered", "2026-03-06", "2026-03-10"),
    ]
    assert (document["missing_chunks"], document["missing_days"], document["head"]) == (2, 2.0, None)
    missing = [TimeWindow(day(1), day(2)), TimeWindow(day(5), day(6))]
    assert list(plans.windows_to_read(window, plan, only_missing=True)) == missing
    assert plans.windows_to_read(window, plan, only_missing=False) == (window,)


def test_what_misses_the_same_is_read_in_one_run() -> None:
    same, other = [TimeWindow(day(1), day(2))], [TimeWindow(day(1), day(3))]
    commits = JobType.COMMITS
    assert plans.read_together({commits: same, MRS: same, REVIEWS: same}) == [(commits,), (MRS, REVIEWS)]
    assert plans.read_together({MRS: same, REVIEWS: other}) == [(MRS,), (REVIEWS,)]


def timed(job_type: JobType, **changes: Any) -> JobReport:
    window = TimeWindow(day(1), day(3))
    good = replace(GOOD, job_type=job_type, window=window, covered=(window,))
    good = replace(good, watermark_before=day(1), watermark_after=day(3))
    return replace(good, **changes)


def test_several_job_types_are_one_document_with_a_list() -> None:
    documents = [
        runner.incremental_document(PROJECT, MRS, [timed(MRS)], started_at=START, finished_at=END),
        runner.incremental_document(
            PROJECT,
            REVIEWS,
            [timed(REVIEWS, job_status=JobStatus.FAILED, covered=(), counts=Counts(), error="no access")],
            started_at=START,
            finished_at=END,
        ),
    ]
    assert documents[0]["window"] == {"since": day(1).isoformat(), "until": day(3).isoformat()}
    assert documents[0]["watermark_after"] == day(3).isoformat()
    found = runner.together(documents)
    assert (found["job"], found["status"], found["exit_code"]) == (None, "partial", 1)
    assert (found["items_synced"], found["error"]) == (7, "reviews: no access")
    assert [one["job"] for one in found["jobs"]] == ["merge_requests", "reviews"]
    assert runner.together(documents[:1]) == documents[0]


def test_job_types_default_to_all_and_one_has_to_be_named_where_one_is_meant() -> None:
    assert runner.job_types_for(PROJECT, None) == (JobType.COMMITS, MRS, REVIEWS)
    assert runner.job_types_for(PROJECT, "mrs") == (MRS,)
    with pytest.raises(ConfigurationError, match="name one with --job: commits, merge_requests, reviews"):
        runner.job_type_for(PROJECT, None)


def test_coverage_to_set_needs_both_bounds_and_commits_are_never_set() -> None:
    both = Bounds(since="2026-03-01", until="2026-03-02")
    assert runner.coverage_to_set(PROJECT, MRS, both, 0, NOW) == TimeWindow(day(1), day(2))
    for job_type, bounds, line in (
        (JobType.COMMITS, both, "watermark reset gitlab:7 --job commits"),
        (MRS, Bounds(since="2026-03-01"), "--until is missing"),
        (MRS, Bounds(start_rev=1, end_rev=2), "is read by time"),
    ):
        with pytest.raises(ConfigurationError, match=line):
            runner.coverage_to_set(PROJECT, job_type, bounds, 0, NOW)


def test_a_job_that_failed_and_waits_is_a_failure_and_one_that_somebody_else_has_is_skipped() -> None:
    waits = replace(
        GOOD, job_status=JobStatus.PENDING, run_status=RunStatus.FAILED, covered=(), counts=Counts()
    )
    assert runner.outcome_of(waits) is runner.Outcome.FAILED
    held = replace(waits, job_status=JobStatus.RUNNING, run_status=RunStatus.RUNNING)
    assert runner.outcome_of(held) is runner.Outcome.SKIPPED
    given_back = replace(waits, run_status=RunStatus.INTERRUPTED)
    assert runner.outcome_of(given_back) is runner.Outcome.CANCELLED


def test_a_chunk_that_was_not_tried_is_told_as_such() -> None:
    windows = [GOOD.window, BAD.window, RevisionWindow(2001, 3001)]
    document = backfill(GOOD, BAD, windows=windows)
    counted = [document[f"{name}_chunks"] for name in ("total", "success", "partial", "failed")]
    assert counted == [3, 1, 0, 2]
    assert [chunk["error"] for chunk in document["chunk_results"]] == [None, BAD.error, "not tried"]


GOOD_ROWS = "6 inserted, 1 updated, 2 unchanged, 1 quarantined"
DAY = timedelta(days=1)
MONTH = replace(
    GOOD,
    job_type=JobType.MERGE_REQUESTS,
    window=TimeWindow(START, START + 30 * DAY),
    counts=Counts(read=9, inserted=9),
)


def days(first: int, end: int) -> TimeWindow:
    return TimeWindow(START + first * DAY, START + end * DAY)


def described(report: JobReport, batches: list[BatchRow], *missing: Window) -> list[tuple[Any, ...]]:
    return [
        (chunk.window, str(chunk.status), chunk.counts.read, chunk.batches, chunk.error)
        for chunk in runner.chunks_of(report, batches, missing)
    ]


def test_a_backfill_of_time_is_told_in_the_chunks_that_were_read_one_for_each_lease() -> None:
    pages = batches_of(MONTH, days(0, 3), days(3, 10), days(20, 29))
    pages[1] = replace(pages[1], fence=1)
    # The last hours are not there yet, and what no batch read was complete before.
    assert described(MONTH, pages, days(29, 30)) == [
        (days(0, 10), "success", 9, 2, None),
        (days(10, 20), "success", 0, 0, None),
        (days(20, 29), "success", 0, 1, None),
    ]


def test_a_batch_that_completes_nothing_belongs_to_the_chunk_that_it_was_read_for() -> None:
    first, walk, last, after = batches_of(MONTH, days(0, 1), days(0, 1), days(0, 30), days(5, 6))
    refs = [replace(first, covered=None), replace(walk, covered=None, fence=9), last, after]
    assert described(MONTH, refs) == [(days(0, 30), "success", 9, 4, None)]
    assert described(MONTH, [*batches_of(MONTH, days(0, 30)), replace(walk, covered=None)])[0][3] == 2


def test_what_could_not_be_read_is_a_chunk_of_its_own_with_the_window_to_read_again() -> None:
    failed = replace(MONTH, job_status=JobStatus.FAILED, run_status=RunStatus.FAILED, error="no answer")
    good, lost = batches_of(MONTH, days(0, 10), days(10, 30))
    lost = replace(lost, covered=None)
    gaps = (days(10, 20), days(25, 30))
    assert described(failed, [good, lost], *gaps) == [
        (days(0, 10), "success", 9, 1, None),
        (days(10, 20), "failed", 0, 1, "no answer"),
        (days(20, 25), "success", 0, 0, None),
        (days(25, 30), "skipped", 0, 0, "not tried"),
    ]
    assert (
        described(failed, [good, replace(lost, counts=Counts(read=1, inserted=1))], *gaps)[1][1] == "partial"
    )
    stopped = replace(failed, job_status=JobStatus.DEAD, run_status=RunStatus.INTERRUPTED)
    assert described(stopped, [good], *gaps)[1][1] == "cancelled"
    # What it stored of a page under the lease of the one before belongs to the next one.
    same = [good, replace(lost, fence=good.fence, counts=Counts(read=1, inserted=1))]
    assert [one[1:4] for one in described(failed, same, *gaps)][:2] == [("success", 9, 1), ("partial", 1, 1)]
    # It failed before the first one, or behind the last one.
    assert described(failed, []) == [(days(0, 30), "failed", 0, 0, "no answer")]
    assert described(failed, batches_of(MONTH, days(0, 30))) == [(days(0, 30), "partial", 9, 1, "no answer")]


def test_the_parts_of_chunks_add_up_to_the_job() -> None:
    failed = replace(MONTH, job_status=JobStatus.FAILED, run_status=RunStatus.FAILED, error="no", seconds=4.0)
    chunks = runner.chunks_of(failed, batches_of(failed, days(0, 10), days(10, 20)), [days(20, 30)])
    assert sum(chunk.calls for chunk in chunks) == failed.calls
    assert sum(chunk.seconds for chunk in chunks) == failed.seconds


def test_a_repeated_backfill_says_that_nothing_was_missing() -> None:
    empty = replace(
        GOOD,
        run_id=uuid4(),
        window=RevisionWindow(1001, 2001),
        counts=Counts(),
        covered=(),
        traffic=Traffic(),
    )
    document = backfill(empty, missing=[], complete_before=[empty.window])
    assert document["message"] == "nothing was missing, so nothing was read"
    assert [(one["state"], one["status"]) for one in document["chunk_results"]] == [("covered", "success")]
    both = backfill(GOOD, empty, missing=[], complete_before=[empty.window])
    assert both["message"].endswith("; 1 of 2 chunks complete before")
    # Somebody else was faster.
    assert backfill(empty, missing=[])["message"] == "nothing new"
    # Commits are found by refs, also in days that are complete.
    again = backfill(GOOD, complete_before=[GOOD.window])
    assert (again["message"], again["chunk_results"][0]["state"]) == (GOOD_ROWS, "covered")


def test_a_stopped_run_says_where_and_ends_as_interrupted() -> None:
    missing = [RevisionWindow(first, first + 10) for first in (501, 1001, 1501, 2001)]
    counts = GOOD.counts + Counts(read=30, inserted=30)
    document = runner.stopped_document(backfill(GOOD), missing, counts)
    # With what the attempt that was stopped had stored.
    assert (document["status"], document["exit_code"], document["items_synced"]) == ("cancelled", 130, 37)
    assert document["message"].startswith("36 inserted, 1 updated")
    assert "r501..r510, r1001..r1010, r1501..r1510, r2001..r2010 (40 revisions);" in document["error"]
    assert document["missing"][3] == {"start_rev": 2001, "end_rev": 2010}
    whole = runner.together([backfill(GOOD) | {"job": "commits"}, document])
    assert (whole["status"], whole["exit_code"]) == ("cancelled", 130)


@pytest.mark.parametrize(
    ("loop", "interval", "most", "part"),
    [
        (False, 5.0, None, "--loop-interval is of a loop; add --loop"),
        (False, None, 3, "--max-iterations is of a loop; add --loop"),
        (True, -1.0, None, "--loop-interval -1: write seconds from 0 to 86400"),
        (True, 1e9, None, "--loop-interval"),
        (True, None, 0, "--max-iterations 0: write a number from 1 on"),
    ],
)
def test_a_loop_that_makes_no_sense_is_refused(
    loop: bool, interval: float | None, most: int | None, part: str
) -> None:
    with pytest.raises(ConfigurationError, match=part):
        runner.check_loop(loop, interval, most)
    with pytest.raises(ConfigurationError, match="--loop and --dry-run contradict each other"):
        runner.check_loop(True, 0, 1, dry_run=True)
    runner.check_loop(True, 0, 1)


@pytest.mark.parametrize(
    ("done", "total", "rate", "words"),
    [
        (0, None, None, "0 rows"),
        (1, None, 0.1, "1 row, 0.1 rows/s"),
        (3400, 12000, 1700.0, "3,400 of 12,000 rows (28 %), 1,700 rows/s, 5 s left"),
        (12000, 12000, 200.0, "12,000 of 12,000 rows (100 %), 200 rows/s"),
        # What is read again for safety may be more than was expected.
        (13000, 12000, 216.7, "13,000 of 12,000 rows (100 %), 217 rows/s"),
    ],
)
def test_progress_tells_rate_and_what_is_left(
    done: int, total: int | None, rate: float | None, words: str
) -> None:
    assert formatting.pace(done, total, rate) == words


def test_requests_of_a_plan_follow_from_its_rows() -> None:
    revisions = [RevisionWindow(1, 2501), RevisionWindow(3001, 3002)]
    assert projects.commands_for(revisions, 1000) == 2 + 3 + 1
    assert projects.requests_for(JobType.COMMITS, 201) == 3 + 3
    assert projects.requests_for(MRS, 150) == 1 + 2 + 165
    assert projects.requests_for(REVIEWS, 150) == 1 + 2 + 675
    assert projects.requests_for(REVIEWS, 150, usable=True) == 1 + 2 + 8
