"""The plan of a manual sync, with its windows, chunks, rows, requests and time.

Belongs here: the plan that the runner shows before it starts and that a dry run prints. Does not belong here:
the choice of the window (:mod:`sync_pipeline.reports.runner`), and when an asset is due
(:mod:`sync_pipeline.policy`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

from sync_pipeline.core import catalog
from sync_pipeline.core.errors import SyncError
from sync_pipeline.core.exit_codes import SUCCESS
from sync_pipeline.core.formatting import age, counted, plain_window
from sync_pipeline.core.job_types import DECLARED, FAMILY_OF, Family
from sync_pipeline.core.model import (
    BEGINNING,
    JobType,
    Kind,
    Mode,
    Repository,
    RevisionWindow,
    TimeWindow,
    Window,
)
from sync_pipeline.core.windows import bounds, overlap
from sync_pipeline.database.pool import Database
from sync_pipeline.ledger import runs, watermarks
from sync_pipeline.registry import projects
from sync_pipeline.registry.projects import commands_for, requests_for
from sync_pipeline.settings import Settings
from sync_pipeline.sync.readers import Readers

# Each stretch of time costs one question; more than these are counted as one.
_MAX_QUESTIONS = 5


@dataclass(frozen=True, slots=True)
class Expected:
    """The estimated cost of reading: ``rows`` of the source (revisions, commits, or merge requests, also for
    reviews), ``requests`` (or svn commands), ``seconds``. A number is None if it is unknown. ``problem`` is
    why the source did not send it.
    """

    rows: int | None
    requests: int | None
    seconds: float | None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class PlannedChunk:
    """A piece of a backfill, counted from 0, and its uncovered part. It is a block of revisions, or a period
    that is wholly missing or covered.
    """

    index: int
    window: Window
    missing: tuple[Window, ...]


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """The plan for one job type of a repository: the ``window`` (None: there is none to read), its
    ``chunks``, and the ``expected`` cost. ``head`` is the newest revision; None for GitLab.
    """

    repository: Repository
    job_type: JobType
    mode: Mode
    window: Window | None
    head: int | None
    chunks: tuple[PlannedChunk, ...]
    expected: Expected

    @property
    def missing(self) -> tuple[Window, ...]:
        """The uncovered windows, in order."""
        return tuple(gap for chunk in self.chunks for gap in chunk.missing)


# Planning -----------------------------------------------------------------------------------------------


def plan(
    database: Database,
    settings: Settings,
    repository: Repository,
    job_types: Sequence[JobType],
    window: Window | None,
    *,
    head: int | None,
    now: datetime,
) -> tuple[ReadPlan, ...]:
    """The plan to read ``window`` of these job types; None for an incremental. ``head`` is SVN's newest
    revision. Asks a GitLab for the number of merge requests; a refusal is part of the estimate.
    """
    found = []
    # Merge requests and reviews miss the same merge requests: they are counted once.
    counted: dict[tuple[str, tuple[Window, ...]], _Asked] = {}
    for job_type in job_types:
        with database.connection() as conn:
            whole = window or _live_window(watermarks.get(conn, repository.repo_id, job_type), head, now)
            missing = (
                watermarks.missing(conn, repository.repo_id, job_type, whole) if whole is not None else ()
            )
            # A row of reviews is a merge request: its first job type says how fast these come.
            paced = FAMILY_OF[job_type].job_types[0]
            seconds_per_row = runs.seconds_per_row(conn, repository.repo_id, paced)
        chunks = () if whole is None else plan_backfill(whole, missing)
        mode = Mode.INCREMENTAL if window is None else Mode.BACKFILL
        if repository.kind is Kind.SVN:
            rows = sum(len(gap) for gap in missing if isinstance(gap, RevisionWindow))
            seconds = None if seconds_per_row is None else rows * seconds_per_row
            expected = Expected(rows, commands_for(missing, settings.chunks.revisions), seconds)
        else:
            key = DECLARED[job_type].row, missing
            if key not in counted:
                counted[key] = _ask(database, settings, repository, job_type, missing)
            expected = _expected(job_type, counted[key], seconds_per_row, settings.gitlab.parallel)
        found.append(ReadPlan(repository, job_type, mode, whole, head, chunks, expected))
    return tuple(found)


def _live_window(row: watermarks.WatermarkRow, head: int | None, now: datetime) -> Window | None:
    """The window of live syncing: from the origin to the source's end, or everything if rows are not read by
    time.
    """
    if isinstance(row.origin, int):
        end = (head or 0) + 1
        return RevisionWindow(row.origin, end) if row.origin < end else None
    since = row.origin if DECLARED[row.job_type].by_time else BEGINNING
    return TimeWindow(since, now) if since < now else None


@dataclass(frozen=True, slots=True)
class _Asked:
    """A GitLab's count of the missing ``rows``, None if it sends none, and the seconds of a request; or the
    ``problem``.
    """

    rows: int | None
    seconds: float | None
    problem: str | None = None


def _ask(
    database: Database,
    settings: Settings,
    repository: Repository,
    job_type: JobType,
    missing: Sequence[Window],
) -> _Asked:
    times = [gap for gap in missing if isinstance(gap, TimeWindow)]
    if not times:
        return _Asked(0, None)
    if len(times) > _MAX_QUESTIONS:
        times = [TimeWindow(times[0].since, times[-1].until)]
    client = Readers(settings, database).gitlab(
        repository.instance, patience=projects.ESTIMATE_SECONDS, tenant=repository.tenant
    )
    assert repository.project_id is not None
    started = client.instance.monotonic()
    try:
        if DECLARED[job_type].by_time:
            counts = [projects.count_merge_requests(client, repository.project_id, gap) for gap in times]
            rows = None if None in counts else sum(count or 0 for count in counts)
        elif job_type is JobType.COMMITS and times[0].since == BEGINNING:
            rows = projects.count_commits(client, repository.project_id)
        else:
            # Only the refs know how many commits are new, and only a whole list how many rows it has.
            return _Asked(None, None)
    except SyncError as error:
        return _Asked(None, None, str(error))
    return _Asked(rows, (client.instance.monotonic() - started) / max(client.calls, 1))


def _expected(job_type: JobType, asked: _Asked, seconds_per_row: float | None, parallel: int) -> Expected:
    if asked.rows is None:
        return Expected(None, None, None, asked.problem)
    requests = requests_for(job_type, asked.rows)
    seconds = None
    if seconds_per_row is not None:
        seconds = asked.rows * seconds_per_row
    elif asked.seconds is not None:
        seconds = requests * asked.seconds / parallel
    return Expected(asked.rows, requests, seconds)


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
    """The requests for the engine, which reads only missing parts anyway. A window that a person names is a
    job even if nothing is missing. Time is one window and not a job per period.
    """
    if only_missing:
        return tuple(chunk.window for chunk in plan if chunk.missing)
    return tuple(chunk.window for chunk in plan) if isinstance(window, RevisionWindow) else (window,)


def read_together(windows: Mapping[JobType, Sequence[Window]]) -> list[tuple[JobType, ...]]:
    """The job types in groups that one run reads: of one family, with the same windows."""
    found: dict[tuple[Family, tuple[Window, ...]], list[JobType]] = {}
    for job_type, todo in windows.items():
        found.setdefault((FAMILY_OF[job_type], tuple(todo)), []).append(job_type)
    return [tuple(job_types) for job_types in found.values()]


# Reporting ----------------------------------------------------------------------------------------------


def plan_document(plan: ReadPlan) -> dict[str, Any]:
    """The document of ``runner incremental|backfill --dry-run``."""
    revisions = plan.repository.kind is Kind.SVN
    return {
        "phase": str(plan.mode),
        "repo": plan.repository.spec,
        "job": str(plan.job_type),
        "dry_run": True,
        "head": plan.head,
        "window": plain_window(plan.window),
        "total_chunks": len(plan.chunks),
        "missing_chunks": sum(bool(chunk.missing) for chunk in plan.chunks),
        **({"missing_items": _revisions(plan)} if revisions else {"missing_days": _days(plan.missing)}),
        "expected": {
            "rows": plan.expected.rows,
            "requests": plan.expected.requests,
            "seconds": None if plan.expected.seconds is None else round(plan.expected.seconds, 3),
            "problem": plan.expected.problem,
        },
        "chunks": [
            {
                "chunk_index": chunk.index,
                "window": plain_window(chunk.window),
                "state": "missing" if chunk.missing else "covered",
                "missing": [plain_window(gap) for gap in chunk.missing],
            }
            for chunk in plan.chunks
        ],
        "exit_code": SUCCESS,
    }


def plan_line(plan: ReadPlan) -> str:
    """The plan in one line for people."""
    chunks = sum(bool(chunk.missing) for chunk in plan.chunks)
    if not chunks:
        where = "nothing is missing"
    elif _is_only_recent(plan):
        where = f"to read: the last {age(_days(plan.missing) * 86_400)}"
    elif plan.repository.kind is Kind.SVN:
        where = f"{counted(_revisions(plan), 'revision')} in {counted(chunks, 'block')} missing"
    else:
        length = age(_days(plan.missing) * 86_400)
        if any(isinstance(gap, TimeWindow) and gap.since <= BEGINNING for gap in plan.missing):
            length = "history from the beginning"
        where = f"{length} in {counted(chunks, 'stretch', 'stretches')} missing"
    if plan.head is not None:
        where += f"; HEAD is r{plan.head}"
    expected = plan.expected
    takes = []
    if expected.rows is not None and plan.repository.kind is Kind.GITLAB:
        takes.append(counted(expected.rows, DECLARED[plan.job_type].row))
    if expected.requests is not None:
        takes.append(counted(expected.requests, "svn command" if plan.head is not None else "request"))
    if expected.seconds is not None:
        takes.append(age(max(expected.seconds, 1)))
    about = f"; about {', '.join(takes)}" if takes and plan.missing else ""
    if expected.problem is not None:
        about = f"; the source does not say how much that is: {expected.problem}"
    return f"{plan.repository.spec} {plan.job_type}: {where}{about}"


def _is_only_recent(plan: ReadPlan) -> bool:
    """True if live syncing lacks only the time since the last visit, which is normal."""
    if plan.mode is not Mode.INCREMENTAL or plan.window is None or len(plan.missing) != 1:
        return False
    gap = plan.missing[0]
    return isinstance(gap, TimeWindow) and gap.since > BEGINNING and gap.until == bounds(plan.window)[1]


def _revisions(plan: ReadPlan) -> int:
    return sum(len(gap) for gap in plan.missing if isinstance(gap, RevisionWindow))


def _days(windows: Iterable[Window]) -> float:
    lengths = (w.until - w.since for w in windows if isinstance(w, TimeWindow))
    return round(sum(lengths, timedelta()) / timedelta(days=1), 4)
