"""Decisions and reports of ``scm-sync runner``. The run itself is a Dagster run of the asset job.

Belongs here: which window a backfill means and why one is refused, and the documents that scripts read, with
their exit codes. Pure functions only. Does not belong here: the plan (:mod:`sync_pipeline.reports.plans`),
executing (``orchestration.run``), printing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import groupby
from typing import Any, Literal

from sync_pipeline.core.documents.common import changed_rows
from sync_pipeline.core.errors import ConfigurationError
from sync_pipeline.core.exit_codes import FAILED, INTERRUPTED, PARTIAL, SUCCESS
from sync_pipeline.core.formatting import counted, plain_mark, plain_window
from sync_pipeline.core.job_types import DECLARED, OPTIONAL, job_types_of
from sync_pipeline.core.model import (
    BEGINNING,
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
from sync_pipeline.core.windows import bounds, hull, merged, overlap, without
from sync_pipeline.ledger.runs import BatchRow
from sync_pipeline.reports import health

NOT_TRIED = "not tried"
"""Error of a chunk whose reading never began."""

_NOTHING_NEW = "nothing new"


class Outcome(StrEnum):
    """How a runner's job or chunk ended, in the words of its documents."""

    SUCCESS = "success"
    PARTIAL = "partial"
    FAILED = "failed"
    SKIPPED = "skipped"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds of a backfill from a person's options; None if not given. Revisions are inclusive. ``since``
    and ``until`` are ISO texts, UTC if they have no zone, and ``until`` is exclusive.
    """

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
    own = job_types_of(repository)
    if name is None:
        return own
    try:
        job_type = JobType.parse(name)
    except ValueError as error:
        raise ConfigurationError(f"--job: {error}") from None
    if job_type not in own:
        command = f"scm-sync repo add {repository.spec} --with {job_type}"
        more = f"; add it: {command}" if job_type in OPTIONAL else ""
        raise ConfigurationError(f"--job: {repository.spec} has no {job_type}; it has {', '.join(own)}{more}")
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


def coverage_to_set(
    repository: Repository, job_type: JobType, given: Bounds, head: int, now: datetime
) -> Window:
    """The window that a person counts as complete; both bounds have to be named. Raises ConfigurationError
    for what does not exist."""
    check_bounds(repository, given)
    if repository.kind is Kind.GITLAB and not DECLARED[job_type].by_time:
        raise ConfigurationError(
            f"{job_type} are complete as a whole, not by time; to read them all again: "
            f"scm-sync watermark reset {repository.spec} --job {job_type}"
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


def check_loop(loop: bool, interval: float | None, most: int | None, dry_run: bool = False) -> None:
    """Refuse options of a loop that make no sense. Raises ConfigurationError."""
    if loop and dry_run:
        raise ConfigurationError("--loop and --dry-run contradict each other; give one")
    for name, value in (("--loop-interval", interval), ("--max-iterations", most)):
        if value is not None and not loop:
            raise ConfigurationError(f"{name} is of a loop; add --loop, or leave it out")
    if interval is not None and not 0 <= interval <= 86_400:
        raise ConfigurationError(f"--loop-interval {interval:g}: write seconds from 0 to 86400")
    if most is not None and most < 1:
        raise ConfigurationError(f"--max-iterations {most}: write a number from 1 on")


def outcome_of_all(outcomes: Sequence[Outcome]) -> Outcome:
    """How several chunks ended together; no chunk at all is a success with nothing to do."""
    different = set(outcomes) or {Outcome.SUCCESS}
    return different.pop() if len(different) == 1 else Outcome.PARTIAL


def exit_code(outcome: Outcome) -> Literal[0, 1, 2]:
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
    windows: Sequence[Window],
    batches: Sequence[BatchRow],
    missing: Sequence[Window],
    complete_before: Sequence[Window],
    watermark_updated: bool,
    started_at: datetime,
    finished_at: datetime,
) -> dict[str, Any]:
    """The document of ``runner backfill``; each window is a job, which is read in chunks.

    ``windows`` were to be read, none if nothing was missing; one without a report was not tried.
    ``batches`` are those of the reported runs, ``missing`` what is not complete now, ``complete_before`` what
    was complete when it began.
    ``watermark_updated`` says that the origin or the watermark is another one now."""
    document = _document(Mode.BACKFILL, repository, job_type, reports, hull(windows), started_at, finished_at)
    found = [
        chunk
        for report in reports
        for chunk in chunks_of(report, [b for b in batches if b.run_id == report.run_id], missing)
    ]
    found = [replace(one, was_covered=not without(one.window, complete_before)) for one in found]
    done = [report.window for report in reports]
    found += [Chunk(window, Outcome.SKIPPED, NOT_TRIED) for window in windows if window not in done]
    # They arrive in the order in which they ended.
    found.sort(key=lambda chunk: bounds(chunk.window))
    statuses = [chunk.status for chunk in found]
    good, part = statuses.count(Outcome.SUCCESS), statuses.count(Outcome.PARTIAL)
    before = sum(chunk.was_covered for chunk in found)
    if document["message"] == _NOTHING_NEW and before == len(found):
        document["message"] = "nothing was missing, so nothing was read"
    elif 0 < before < len(found):
        document["message"] += f"; {before} of {counted(len(found), 'chunk')} complete before"
    chunks = [_chunk_result(chunk) for chunk in found]
    document |= {
        "total_chunks": len(chunks),
        "success_chunks": good,
        "partial_chunks": part,
        "failed_chunks": len(chunks) - good - part,
        "total_items_synced": document["items_synced"],
        "total_items_skipped": document["items_skipped"],
        "total_items_failed": document["quarantined"],
        "chunk_results": [{"chunk_index": index, **chunk} for index, chunk in enumerate(chunks)],
        "errors": [report.error for report in reports if report.error],
        "watermark_updated": watermark_updated,
    }
    return document


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a backfill, as it was read: under one lease, and complete since then. Or what could not be
    read, with the ``error``; or what was not read, because it is complete anyway. ``was_covered``: so it was
    before. ``calls`` are requests or svn commands, ``seconds`` run from the end of the chunk before."""

    window: Window
    status: Outcome
    error: str | None = None
    counts: Counts = field(default_factory=Counts)
    calls: int = 0
    batches: int = 0
    seconds: float = 0.0
    was_covered: bool = False


def chunks_of(report: JobReport, batches: Sequence[BatchRow], missing: Sequence[Window]) -> list[Chunk]:
    """The chunks of a job with a window, in order. ``batches`` are those of its run, in the order in which
    they were written; ``missing`` is what is incomplete now.

    Batches that complete nothing belong to the chunk after them. The last ones belong to the first missing
    piece, or else to the chunk before them.
    """
    whole = report.window
    assert whole is not None
    read: list[Chunk] = []
    waiting: list[BatchRow] = []
    for _, batches_of_lease in groupby(batches, key=lambda one: one.fence):
        waiting += batches_of_lease
        end = 0
        news: list[Window] = []
        for number, one in enumerate(waiting, 1):
            if one.covered and (part := overlap(one.covered, whole)):
                end = number
                news += without(part, [chunk.window for chunk in read])
        if (window := hull(news)) is not None:
            read.append(_chunk(window, waiting[:end]))
            waiting = waiting[end:]
    missing = [part for gap in missing if (part := overlap(gap, whole))]
    left = without(whole, [*missing, *(chunk.window for chunk in read)])
    complete = [Chunk(window, Outcome.SUCCESS) for window in left]
    failed: list[Chunk] = []
    if not report.succeeded:
        # The error that ended the job belongs to the first of them, or to the end of the read part.
        failed = [Chunk(gap, Outcome.SKIPPED, NOT_TRIED) for gap in merged(missing)]
        last = read.pop() if read and not failed else None
        if not failed and last is None:
            # Nothing was missing, and yet the job could not do what belongs to it.
            last, complete = Chunk(whole, Outcome.SUCCESS), []
        first = _chunk(last.window if last else failed[0].window, waiting, last)
        outcome = outcome_of(report)
        if outcome in (Outcome.PARTIAL, Outcome.FAILED):
            outcome = Outcome.PARTIAL if first.counts.changed else Outcome.FAILED
        first = replace(
            first,
            status=outcome,
            error=report.error,
            calls=max(first.calls, report.calls - sum(one.calls for one in read)),
            seconds=max(first.seconds, report.seconds - sum(one.seconds for one in read)),
        )
        failed[:1] = [first]
    elif waiting and read:
        read[-1] = _chunk(read[-1].window, waiting, read[-1])
    elif not read and not complete:
        # The source cannot have anything there yet.
        complete = [_chunk(whole, waiting)]
    return sorted([*read, *complete, *failed], key=lambda chunk: bounds(chunk.window))


def _chunk(window: Window, batches: Sequence[BatchRow], before: Chunk | None = None) -> Chunk:
    """A chunk with the sums of ``batches``, and of ``before``."""
    before = before or Chunk(window, Outcome.SUCCESS)
    return replace(
        before,
        counts=sum((one.counts for one in batches), before.counts),
        calls=before.calls + sum(one.calls or 0 for one in batches),
        batches=before.batches + len(batches),
        seconds=before.seconds + sum(one.seconds or 0.0 for one in batches),
    )


def _chunk_result(chunk: Chunk) -> dict[str, Any]:
    return {
        "status": str(chunk.status),
        "synced_count": chunk.counts.changed,
        "window": plain_window(chunk.window),
        "error": chunk.error,
        "state": "covered" if chunk.was_covered else "missing",
        "rows_read": chunk.counts.read,
        **changed_rows(chunk.counts),
        "calls": chunk.calls,
        "batches": chunk.batches,
        "seconds": round(chunk.seconds, 3),
    }


def chunk_line(repository: Repository, report: JobReport, done: int, total: int) -> str:
    """One line for people on a chunk that ended, the ``done``-th of ``total``."""
    where = health.in_words([report.window]) if report.window is not None else "what is new"
    message = _message(outcome_of(report), report.counts, report.error)
    how = f"{outcome_of(report)}; {message}"
    return f"{repository.spec} {report.job_type} {where}: {how} ({done} of {total} chunks)"


def stopped_document(
    document: Mapping[str, Any], missing: Sequence[Window], counts: Counts
) -> dict[str, Any]:
    """``document`` of what a person stopped, with what was to be read and is still ``missing``, and the rows
    that were stored before."""
    error = "stopped between two batches; what was committed stays"
    missing = merged(missing)
    if missing:
        error += f"; still missing: {health.in_words(missing)}; the same command goes on there"
    return {
        **document,
        "status": str(Outcome.CANCELLED),
        "items_synced": counts.changed,
        "items_skipped": counts.unchanged + counts.regressed,
        **changed_rows(counts),
        "message": _message(Outcome.CANCELLED, counts, None),
        "error": error,
        "exit_code": INTERRUPTED,
        "missing": [plain_window(window) for window in missing],
    }


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
    stopped = any(document["exit_code"] == INTERRUPTED for document in documents)
    errors = [f"{document['job']}: {document['error']}" for document in documents if document["error"]]
    return found | {
        "status": str(Outcome.CANCELLED if stopped else outcome),
        "items_synced": sum(document["items_synced"] for document in documents),
        "items_skipped": sum(document["items_skipped"] for document in documents),
        "message": "; ".join(f"{document['job']}: {document['message']}" for document in documents),
        "error": errors[0] if errors else None,
        "started_at": min(document["started_at"] for document in documents),
        "finished_at": max(document["finished_at"] for document in documents),
        "vfacts_refreshed": False,
        "exit_code": INTERRUPTED if stopped else exit_code(outcome),
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
        "items_skipped": counts.unchanged + counts.regressed,
        "message": _message(outcome, counts, error),
        "error": error,
        "started_at": started_at.isoformat(),
        "finished_at": finished_at.isoformat(),
        # scm.v_facts is a plain view: it is always current.
        "vfacts_refreshed": False,
        "exit_code": exit_code(outcome),
        "window": plain_window(window)
        if window
        else plain_window(*(w for report in reports for w in report.covered)),
        **changed_rows(counts),
        "calls": sum(report.calls for report in reports),
        "watermark_before": plain_mark(reports[0].watermark_before if reports else None),
        "watermark_after": plain_mark(reports[-1].watermark_after if reports else None),
    }


def _message(outcome: Outcome, counts: Counts, error: str | None) -> str:
    if outcome is Outcome.SUCCESS and counts == Counts():
        return _NOTHING_NEW
    rows = f"{counts.inserted} inserted, {counts.updated} updated, {counts.unchanged} unchanged"
    if counts.quarantined:
        rows += f", {counts.quarantined} quarantined"
    return rows if error is None else f"{rows}; {error}"
