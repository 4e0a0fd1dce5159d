"""What ``scm-sync runner`` decides and reports; the run itself is a Dagster run of the asset job.

Belongs here: which window a backfill means and why one is refused, the plan of a dry run, and the documents
that scripts read, with their exit codes. Pure functions only. Does not belong here: reading anything,
executing (``orchestration.run``), printing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import pairwise
from typing import Any

from sync_pipeline import catalog
from sync_pipeline.errors import ConfigurationError
from sync_pipeline.model import (
    BEGINNING,
    JOB_TYPES_OF_KIND,
    Counts,
    JobReport,
    JobStatus,
    JobType,
    Kind,
    Mode,
    Repository,
    RevisionWindow,
    RunStatus,
    TimeWindow,
    Window,
)
from sync_pipeline.policy.families import FAMILY_OF, Family
from sync_pipeline.policy.windows import bounds, hull, overlap

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
class PlannedChunk:
    """A piece of a backfill, counted from 0, and what of it is not covered yet: a block of revisions, or a
    stretch of time that is missing or covered as a whole."""

    index: int
    window: Window
    missing: tuple[Window, ...]


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a person said about the window of a backfill; None where nothing was said. Revisions are
    inclusive; ``since`` and ``until`` are ISO texts, UTC where they name no zone, and ``until`` is
    exclusive."""

    start_rev: int | None = None
    end_rev: int | None = None
    since: str | None = None
    until: str | None = None
    last_days: int | None = None
    last_hours: int | None = None

    @property
    def given(self) -> tuple[str, ...]:
        """The names of the options that were used."""
        return tuple(
            f"--{name.replace('_', '-')}"
            for name in self.__dataclass_fields__
            if getattr(self, name) is not None
        )


# Deciding -----------------------------------------------------------------------------------------------


def job_types_for(repository: Repository, name: str | None) -> tuple[JobType, ...]:
    """The job type that ``--job`` names, by default all of the repository. Raises ConfigurationError for one
    that the repository does not have."""
    own = JOB_TYPES_OF_KIND[repository.kind]
    if name is None:
        return own
    try:
        job_type = JobType.parse(name)
    except ValueError as error:
        raise ConfigurationError(f"--job: {error}") from None
    if job_type not in own:
        raise ConfigurationError(f"--job: {repository.spec} has no {job_type}; it has {', '.join(own)}")
    return (job_type,)


def job_type_for(repository: Repository, name: str | None) -> JobType:
    """As :func:`job_types_for`, where exactly one is meant."""
    found = job_types_for(repository, name)
    if len(found) > 1:
        raise ConfigurationError(
            f"{repository.spec} has several job types; name one with --job: {', '.join(found)}"
        )
    return found[0]


def check_bounds(repository: Repository, given: Bounds) -> None:
    """Refuse options that contradict each other or the kind of the repository. Raises ConfigurationError."""
    svn = repository.kind is Kind.SVN
    for option in given.given:
        if option.endswith("-rev") != svn:
            use = "--start-rev and --end-rev" if svn else "--since and --until, --last-days or --last-hours"
            what = "revisions" if svn else "time"
            raise ConfigurationError(f"{option}: {repository.spec} is read by {what}; use {use}")
    if given.last_days is not None or given.last_hours is not None:
        others = [option for option in given.given if option != given.given[-1]]
        if others:
            raise ConfigurationError(f"{given.given[-1]} and {others[0]} contradict each other; give one")


def time_window(given: Bounds, now: datetime) -> TimeWindow:
    """The window of a backfill of time; a missing bound means everything on that side, up to ``now`` (UTC).
    Raises ConfigurationError for what does not exist."""
    for name, count, length in (
        ("--last-days", given.last_days, timedelta(days=1)),
        ("--last-hours", given.last_hours, timedelta(hours=1)),
    ):
        if count is not None:
            if count < 1:
                raise ConfigurationError(f"{name} {count}: write a number from 1 on")
            reach = (now - BEGINNING) // length
            return TimeWindow(max(BEGINNING, now - min(count, reach) * length), now)
    since = BEGINNING if given.since is None else _moment("--since", given.since, now)
    until = now if given.until is None else _moment("--until", given.until, now)
    if until <= since:
        problem = "is" if until == since else "is before"
        raise ConfigurationError(
            f"--until {given.until} {problem} --since {given.since}; the window has to end after it starts"
        )
    return TimeWindow(max(since, BEGINNING), until)


def _moment(name: str, text: str, now: datetime) -> datetime:
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ConfigurationError(
            f"{name} {text!r}: write a date or a time such as 2024-01-31 or 2024-01-31T12:00:00Z"
        ) from None
    try:
        moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except OverflowError:
        raise ConfigurationError(f"{name} {text!r}: there is no such time in UTC") from None
    if moment > now:
        raise ConfigurationError(f"{name} {text} is in the future; it is {now:%Y-%m-%dT%H:%M:%SZ} now")
    if moment < BEGINNING:
        raise ConfigurationError(f"{name} {text} is before {BEGINNING:%Y-%m-%d}, where all history begins")
    return moment


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
            raise ConfigurationError(f"{name} {bound} is beyond HEAD, which is r{head}; use at most {head}")
    return RevisionWindow(start_rev or 1, (head if end_rev is None else end_rev) + 1)


def plan_backfill(window: Window, missing: Iterable[Window]) -> tuple[PlannedChunk, ...]:
    """``window`` in the pieces that are planned, each with its part of ``missing``: revisions by blocks, time
    where covered and missing meet."""
    gaps = sorted(missing, key=bounds)
    pieces: Iterable[Window]
    if isinstance(window, RevisionWindow):
        pieces = catalog.blocks(window)
    else:
        edges = sorted({*bounds(window), *(edge for gap in gaps for edge in bounds(gap))})
        pieces = [
            TimeWindow(since, until)
            for since, until in pairwise(edges)
            if window.since <= since and until <= window.until
        ]
    return tuple(
        PlannedChunk(index, piece, tuple(part for gap in gaps if (part := overlap(gap, piece)) is not None))
        for index, piece in enumerate(pieces)
    )


def windows_to_read(window: Window, plan: Sequence[PlannedChunk], only_missing: bool) -> tuple[Window, ...]:
    """What the engine is asked for. It reads only what is missing anyway; asked for by name, a window is a
    job also where nothing is missing. Time is one window and not a job per stretch."""
    if only_missing:
        return tuple(chunk.window for chunk in plan if chunk.missing)
    return tuple(chunk.window for chunk in plan) if isinstance(window, RevisionWindow) else (window,)


def read_together(windows: Mapping[JobType, Sequence[Window]]) -> list[tuple[JobType, ...]]:
    """The job types in groups that one run reads: of one family, with the same windows."""
    found: dict[tuple[Family, tuple[Window, ...]], list[JobType]] = {}
    for job_type, todo in windows.items():
        found.setdefault((FAMILY_OF[job_type], tuple(todo)), []).append(job_type)
    return [tuple(job_types) for job_types in found.values()]


def coverage_to_set(
    repository: Repository, job_type: JobType, given: Bounds, head: int, now: datetime
) -> Window:
    """The window that a person counts as complete; both bounds have to be named. Raises ConfigurationError
    for what does not exist."""
    check_bounds(repository, given)
    if job_type is JobType.COMMITS:
        raise ConfigurationError(
            "commits are complete by branches and tags, not by time; to read them all again: "
            f"scm-sync watermark reset {repository.spec} --job commits"
        )
    svn = repository.kind is Kind.SVN
    needed = ("--start-rev", "--end-rev") if svn else ("--since", "--until")
    for option in needed:
        if option not in given.given:
            raise ConfigurationError(f"{' and '.join(needed)} say what is complete; {option} is missing")
    return backfill_window(given.start_rev, given.end_rev, head) if svn else time_window(given, now)


# Reporting ----------------------------------------------------------------------------------------------


def outcome_of(report: JobReport) -> Outcome:
    """How one job ended. ``partial``: it failed, but what it completed before stays; ``skipped``: somebody
    else works on it."""
    if report.succeeded:
        return Outcome.SUCCESS
    if report.run_status is RunStatus.INTERRUPTED:
        return Outcome.CANCELLED
    if report.run_status is not RunStatus.FAILED and report.job_status is not JobStatus.DEAD:
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
    window: Window | None,
    watermark_updated: bool,
    started_at: datetime,
    finished_at: datetime,
) -> dict[str, Any]:
    """The document of ``runner backfill``; a chunk is one job: a block of revisions or a stretch of time.
    ``window`` is None if nothing was missing, ``watermark_updated`` says that the origin or the watermark is
    another one now."""
    document = _document(Mode.BACKFILL, repository, job_type, reports, window, started_at, finished_at)
    # They arrive in the order in which they ended.
    reports = sorted(
        reports, key=lambda report: (report.window is not None, report.window and bounds(report.window))
    )
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


def remap_document(
    repository: Repository,
    job_type: JobType,
    report: JobReport,
    *,
    since: datetime | None,
    started_at: datetime,
    finished_at: datetime,
) -> dict[str, Any]:
    """The document of ``repair remap``; its window is of facts and says nothing about coverage."""
    document = _document(Mode.REPAIR, repository, job_type, [report], None, started_at, finished_at)
    return document | {"window": _from(since)}


def remap_plan_document(
    repository: Repository, job_type: JobType, counts: Counts, *, since: datetime | None
) -> dict[str, Any]:
    """The document of ``repair remap --dry-run``. ``rows_unreadable`` are those whose raw cannot be read."""
    return {
        "phase": str(Mode.REPAIR),
        "repo": repository.spec,
        "job": str(job_type),
        "dry_run": True,
        "window": _from(since),
        "rows_read": counts.read,
        "rows_to_change": counts.updated,
        "rows_unchanged": counts.unchanged,
        "rows_unreadable": counts.quarantined,
        "exit_code": SUCCESS,
    }


def _from(since: datetime | None) -> dict[str, str | None]:
    return {"since": since.isoformat() if since else None, "until": None}


def plan_document(
    repository: Repository,
    job_type: JobType,
    window: Window,
    head: int | None,
    plan: Sequence[PlannedChunk],
) -> dict[str, Any]:
    """The document of ``runner backfill --dry-run``. ``head`` is None where there is none."""
    gaps = [gap for chunk in plan for gap in chunk.missing]
    missing: dict[str, Any] = (
        {"missing_items": sum(len(gap) for gap in gaps if isinstance(gap, RevisionWindow))}
        if isinstance(window, RevisionWindow)
        else {"missing_days": _days(gaps)}
    )
    return {
        "phase": str(Mode.BACKFILL),
        "repo": repository.spec,
        "job": str(job_type),
        "dry_run": True,
        "head": head,
        "window": _bounds(window),
        "total_chunks": len(plan),
        "missing_chunks": sum(bool(chunk.missing) for chunk in plan),
        **missing,
        "chunks": [
            {
                "chunk_index": chunk.index,
                "window": _bounds(chunk.window),
                "state": "missing" if chunk.missing else "covered",
                "missing": [_bounds(gap) for gap in chunk.missing],
            }
            for chunk in plan
        ],
        "exit_code": SUCCESS,
    }


def _days(windows: Iterable[Window]) -> float:
    lengths = (w.until - w.since for w in windows if isinstance(w, TimeWindow))
    return round(sum(lengths, timedelta()) / timedelta(days=1), 2)


def together(documents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The document over those of several job types, which are its ``jobs``; ``job`` is None. A single one
    stands for itself."""
    if len(documents) == 1:
        return dict(documents[0])
    first = documents[0]
    found: dict[str, Any] = {name: first[name] for name in ("phase", "repo")} | {"job": None}
    if "dry_run" in first:
        return found | {"dry_run": True, "exit_code": SUCCESS, "jobs": [*documents]}
    outcome = outcome_of_all([Outcome(document["status"]) for document in documents])
    errors = [f"{document['job']}: {document['error']}" for document in documents if document["error"]]
    return found | {
        "status": str(outcome),
        "items_synced": sum(document["items_synced"] for document in documents),
        "items_skipped": sum(document["items_skipped"] for document in documents),
        "message": "; ".join(f"{document['job']}: {document['message']}" for document in documents),
        "error": errors[0] if errors else None,
        "started_at": min(document["started_at"] for document in documents),
        "finished_at": max(document["finished_at"] for document in documents),
        "vfacts_refreshed": False,
        "exit_code": exit_code(outcome),
        "jobs": [*documents],
    }


def _document(
    mode: Mode,
    repository: Repository,
    job_type: JobType,
    reports: Sequence[JobReport],
    window: Window | None,
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


def _bounds(*windows: Window | None) -> dict[str, int] | dict[str, str] | None:
    whole = hull([window for window in windows if window is not None])
    if isinstance(whole, RevisionWindow):
        return {"start_rev": whole.first, "end_rev": whole.end - 1}
    if isinstance(whole, TimeWindow):
        return {"since": whole.since.isoformat(), "until": whole.until.isoformat()}
    return None


def _plain(watermark: int | datetime | None) -> int | str | None:
    return watermark.isoformat() if isinstance(watermark, datetime) else watermark
