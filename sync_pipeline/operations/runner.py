"""What ``scm-sync runner`` decides and reports; the run itself is a Dagster run of the asset job.

Belongs here: which window a backfill means and why one is refused, the plan of a dry run, and the documents
that scripts read, with their exit codes. Pure functions only. Does not belong here: reading anything,
executing (``orchestration.run``), printing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from sync_pipeline import catalog
from sync_pipeline.errors import ConfigurationError
from sync_pipeline.model import (
    JOB_TYPES_OF_KIND,
    Counts,
    JobReport,
    JobStatus,
    JobType,
    Mode,
    Repository,
    RevisionWindow,
    RunStatus,
    Window,
)

SUCCESS, PARTIAL, FAILED, CONFIGURATION = 0, 1, 2, 3
"""Exit codes of every command."""


class Outcome(StrEnum):
    """How a runner's job or chunk ended, in the words of its documents."""

    SUCCESS = "success"
    PARTIAL = "partial"
    FAILED = "failed"
    SKIPPED = "skipped"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class PlannedBlock:
    """A block of a backfill, counted from 0, and what of it is not covered yet."""

    index: int
    window: RevisionWindow
    missing: tuple[RevisionWindow, ...]


# Deciding -----------------------------------------------------------------------------------------------


def job_type_for(repository: Repository, name: str | None) -> JobType:
    """The job type that ``--job`` names, by default the first of the repository's kind. Raises
    ConfigurationError for one that the repository does not have."""
    own = JOB_TYPES_OF_KIND[repository.kind]
    if name is None:
        return own[0]
    try:
        job_type = JobType.parse(name)
    except ValueError as error:
        raise ConfigurationError(f"--job: {error}") from None
    if job_type not in own:
        raise ConfigurationError(f"--job: {repository.spec} has no {job_type}; it has {', '.join(own)}")
    return job_type


def backfill_window(start_rev: int | None, end_rev: int | None, head: int) -> RevisionWindow:
    """The window of a backfill; both bounds are inclusive, a missing one means everything on that side.
    Raises ConfigurationError for what does not exist."""
    for name, bound in (("--start-rev", start_rev), ("--end-rev", end_rev)):
        if bound is not None and bound < 1:
            raise ConfigurationError(f"{name} {bound}: the first revision is 1")
    if start_rev is not None and end_rev is not None and end_rev < start_rev:
        raise ConfigurationError(
            f"--end-rev {end_rev} is before --start-rev {start_rev}; exchange them to sync what is between"
        )
    for name, bound in (("--start-rev", start_rev), ("--end-rev", end_rev)):
        if bound is not None and bound > head:
            raise ConfigurationError(f"{name} {bound} is beyond HEAD, which is {head}; use at most {head}")
    return RevisionWindow(start_rev or 1, (head if end_rev is None else end_rev) + 1)


def plan_backfill(window: RevisionWindow, missing: Iterable[Window]) -> tuple[PlannedBlock, ...]:
    """``window`` by blocks, each with its part of ``missing``."""
    gaps = [gap for gap in missing if isinstance(gap, RevisionWindow)]
    return tuple(
        PlannedBlock(
            index,
            block,
            tuple(
                RevisionWindow(max(gap.first, block.first), min(gap.end, block.end))
                for gap in gaps
                if gap.first < block.end and block.first < gap.end
            ),
        )
        for index, block in enumerate(catalog.blocks(window))
    )


def hull(windows: Iterable[Window]) -> RevisionWindow | None:
    """The smallest window that holds all of ``windows``; None if there is none."""
    known = [window for window in windows if isinstance(window, RevisionWindow)]
    return RevisionWindow(min(w.first for w in known), max(w.end for w in known)) if known else None


# Reporting ----------------------------------------------------------------------------------------------


def outcome_of(report: JobReport) -> Outcome:
    """How one job ended. ``partial``: it failed, but what it completed before stays; ``skipped``: somebody
    else works on it."""
    if report.succeeded:
        return Outcome.SUCCESS
    if report.run_status is RunStatus.INTERRUPTED:
        return Outcome.CANCELLED
    if report.job_status in (JobStatus.PENDING, JobStatus.RUNNING):
        return Outcome.SKIPPED
    return Outcome.PARTIAL if report.covered or report.counts.changed else Outcome.FAILED


def outcome_of_all(outcomes: Sequence[Outcome]) -> Outcome:
    """How several chunks ended together; no chunk at all is a success with nothing to do."""
    different = set(outcomes) or {Outcome.SUCCESS}
    return different.pop() if len(different) == 1 else Outcome.PARTIAL


def exit_code(outcome: Outcome) -> int:
    """0 all well, 1 partly failed (or somebody else's work was in the way), 2 failed."""
    if outcome is Outcome.SUCCESS:
        return SUCCESS
    return PARTIAL if outcome in (Outcome.PARTIAL, Outcome.SKIPPED) else FAILED


def incremental_document(
    repository: Repository,
    job_type: JobType,
    reports: Sequence[JobReport],
    *,
    started_at: datetime,
    finished_at: datetime,
) -> dict[str, Any]:
    """The document of ``runner incremental``."""
    return _document(Mode.INCREMENTAL, repository, job_type, reports, None, started_at, finished_at)


def backfill_document(
    repository: Repository,
    job_type: JobType,
    reports: Sequence[JobReport],
    *,
    window: RevisionWindow | None,
    watermark_updated: bool,
    started_at: datetime,
    finished_at: datetime,
) -> dict[str, Any]:
    """The document of ``runner backfill``; a chunk is one block. ``window`` is None if nothing was missing,
    ``watermark_updated`` says that the origin or the watermark is another one now."""
    document = _document(Mode.BACKFILL, repository, job_type, reports, window, started_at, finished_at)
    # They arrive in the order in which they ended.
    reports = sorted(reports, key=lambda report: _first(report.window))
    outcomes = [outcome_of(report) for report in reports]
    document |= {
        "total_chunks": len(reports),
        "success_chunks": outcomes.count(Outcome.SUCCESS),
        "partial_chunks": outcomes.count(Outcome.PARTIAL),
        "failed_chunks": sum(
            outcome in (Outcome.FAILED, Outcome.SKIPPED, Outcome.CANCELLED) for outcome in outcomes
        ),
        "total_items_synced": document["items_synced"],
        "total_items_skipped": document["items_skipped"],
        "total_items_failed": document["quarantined"],
        "chunk_results": [
            {
                "chunk_index": index,
                "status": str(outcome),
                "synced_count": report.counts.changed,
                "window": _bounds(report.window),
                "error": report.error,
            }
            for index, (report, outcome) in enumerate(zip(reports, outcomes, strict=True))
        ],
        "errors": [report.error for report in reports if report.error],
        "watermark_updated": watermark_updated,
    }
    return document


def plan_document(
    repository: Repository, job_type: JobType, window: RevisionWindow, head: int, plan: Sequence[PlannedBlock]
) -> dict[str, Any]:
    """The document of ``runner backfill --dry-run``."""
    return {
        "phase": str(Mode.BACKFILL),
        "repo": repository.spec,
        "job": str(job_type),
        "dry_run": True,
        "head": head,
        "window": _bounds(window),
        "total_chunks": len(plan),
        "missing_chunks": sum(bool(block.missing) for block in plan),
        "missing_items": sum(len(gap) for block in plan for gap in block.missing),
        "chunks": [
            {
                "chunk_index": block.index,
                "window": _bounds(block.window),
                "state": "missing" if block.missing else "covered",
                "missing": [_bounds(gap) for gap in block.missing],
            }
            for block in plan
        ],
        "exit_code": SUCCESS,
    }


def _document(
    mode: Mode,
    repository: Repository,
    job_type: JobType,
    reports: Sequence[JobReport],
    window: RevisionWindow | None,
    started_at: datetime,
    finished_at: datetime,
) -> dict[str, Any]:
    outcome = outcome_of_all([outcome_of(report) for report in reports])
    counts = sum((report.counts for report in reports), Counts())
    error = next((report.error for report in reports if report.error), None)
    return {
        "phase": str(mode),
        "repo": repository.spec,
        "job": str(job_type),
        "status": str(outcome),
        "items_synced": counts.changed,
        "items_skipped": counts.unchanged + counts.poorer,
        "message": _message(outcome, counts, error),
        "error": error,
        "started_at": started_at.isoformat(),
        "finished_at": finished_at.isoformat(),
        # scm.v_facts is a plain view: it is always current.
        "vfacts_refreshed": False,
        "exit_code": exit_code(outcome),
        "window": _bounds(window) if window else _bounds(*(w for report in reports for w in report.covered)),
        "inserted": counts.inserted,
        "updated": counts.updated,
        "unchanged": counts.unchanged,
        "quarantined": counts.quarantined,
        "calls": sum(report.calls for report in reports),
        "watermark_before": _plain(reports[0].watermark_before if reports else None),
        "watermark_after": _plain(reports[-1].watermark_after if reports else None),
    }


def _message(outcome: Outcome, counts: Counts, error: str | None) -> str:
    if outcome is Outcome.SUCCESS and counts == Counts():
        return "nothing new"
    rows = f"{counts.inserted} inserted, {counts.updated} updated, {counts.unchanged} unchanged"
    if counts.quarantined:
        rows += f", {counts.quarantined} quarantined"
    return rows if error is None else f"{rows}; {error}"


def _bounds(*windows: Window | None) -> dict[str, int] | None:
    revisions = hull([window for window in windows if window is not None])
    return {"start_rev": revisions.first, "end_rev": revisions.end - 1} if revisions else None


def _first(window: Window | None) -> int:
    return window.first if isinstance(window, RevisionWindow) else 0


def _plain(watermark: int | datetime | None) -> int | str | None:
    return watermark.isoformat() if isinstance(watermark, datetime) else watermark
