"""``scm-sync reconcile``: which window is compared, what it costs, and the document about it.

Belongs here: the bounds that a person gives, the plan, and the document that ``docs/comparisons.md``
describes. Does not belong here: comparing (:mod:`sync_pipeline.sync.reconcile`), what follows from a
difference (:mod:`sync_pipeline.policy.reconciliation`), and how the document looks on a terminal.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sync_pipeline.core import exit_codes
from sync_pipeline.core.errors import ConfigurationError
from sync_pipeline.core.formatting import plain_window
from sync_pipeline.core.model import Counts, Depth, JobReport, JobType, Repository, RevisionWindow, Window
from sync_pipeline.core.windows import overlap, without
from sync_pipeline.database.pool import Connection, Database
from sync_pipeline.facts import stored_rows
from sync_pipeline.ledger import reconciliations, watermarks
from sync_pipeline.ledger.reconciliations import Discrepancy
from sync_pipeline.policy.reconciliation import Next, Patience, default_depth, scope_of
from sync_pipeline.registry.projects import commands_for, requests_for
from sync_pipeline.reports.runner import Bounds, backfill_window, check_bounds, time_window
from sync_pipeline.scheduling import comparisons
from sync_pipeline.scheduling.comparisons import Result, Starter
from sync_pipeline.settings import Settings
from sync_pipeline.sources.gitlab.batches import MAX_SIZE
from sync_pipeline.sync.engine import Syncer
from sync_pipeline.sync.reconcile import CLEAN, INCONCLUSIVE, next_of, patience_of

SHOWN = 100
"""Differences of one job type that a document lists unless told otherwise; all are counted."""

Document = dict[str, Any]
Progress = Callable[[Counts], None]


@dataclass(frozen=True, slots=True)
class ComparisonOptions:
    """The options of a comparison: its ``depth`` (None: that of the job type), and how many differences are
    listed. They are repaired at once (``repair_differences``) or by a job of the scheduler (``queue``).
    """

    depth: Depth | None = None
    repair_differences: bool = False
    queue: bool = True
    shown: int = SHOWN
    max_calls: int | None = None

    def depth_of(self, job_type: JobType) -> Depth:
        """The depth for a job type."""
        return self.depth or default_depth(job_type)


def window_for(
    conn: Connection, repository: Repository, job_type: JobType, given: Bounds, now: datetime
) -> Window:
    """The window of a person's bounds; without bounds everything up to the watermark.

    Raises ConfigurationError for bounds that contradict each other, lie in the future, or reach beyond the
    watermark. Rows beyond it have not been read yet, so they cannot be compared.
    """
    check_bounds(repository, given)
    settled = comparisons.settled_window(conn, repository.repo_id, job_type)
    if settled is None:
        raise ConfigurationError(
            f"nothing of {repository.spec} {job_type} has been read yet, so there is nothing to compare; "
            f"run: scm-sync runner incremental --repo {repository.spec} --job {job_type}"
        )
    if not given.given:
        return settled
    if isinstance(settled, RevisionWindow):
        last = settled.end - 1
        for option, number in (("--start-rev", given.start_rev), ("--end-rev", given.end_rev)):
            if number is not None and number > last:
                raise ConfigurationError(
                    f"{option} {number} is not settled: revisions are read up to r{last}; use at most {last}"
                )
        return backfill_window(given.start_rev, given.end_rev, last)
    wanted = time_window(given, now)
    end = settled.until
    if wanted.since >= end or (given.until is not None and wanted.until > end):
        option, text = ("--until", given.until) if given.until is not None else (given.given[0], "")
        raise ConfigurationError(
            f"{option} {text}: that is not settled, {job_type} are read up to {end:%Y-%m-%dT%H:%M:%SZ}; "
            "end the window there, or leave --until out"
        )
    found = overlap(wanted, settled)
    assert found is not None
    return found


# The plan -----------------------------------------------------------------------------------------------


def plan(
    database: Database,
    settings: Settings,
    repository: Repository,
    windows: Sequence[tuple[JobType, Window]],
    options: ComparisonOptions,
) -> Document:
    """The plan of :func:`reconcile`; nothing is changed and no source is asked."""
    jobs = []
    with database.connection() as conn:
        for job_type, window in windows:
            rows = stored_rows.count_in(conn, repository.repo_id, job_type, window)
            depth = options.depth_of(job_type)
            jobs.append(
                {
                    "job": str(job_type),
                    "window": plain_window(window),
                    "depth": str(depth),
                    "stored": rows,
                    "calls": _calls(settings, job_type, window, rows, depth),
                }
            )
    return {"repo": repository.spec, "dry_run": True, "results": jobs, "exit_code": exit_codes.SUCCESS}


def _calls(settings: Settings, job_type: JobType, window: Window, rows: int, depth: Depth) -> int:
    if isinstance(window, RevisionWindow):
        return commands_for([window], settings.chunks.revisions)
    if depth is Depth.DETAILS:
        return requests_for(job_type, rows)
    # Lists only: as of commits, whose rows have no details. GraphQL shows reviews in batches.
    batches = -(-rows // MAX_SIZE) if job_type is JobType.REVIEWS and settings.gitlab.graphql else 0
    return requests_for(JobType.COMMITS, rows) + batches


# Comparing ----------------------------------------------------------------------------------------------


def reconcile(
    database: Database,
    settings: Settings,
    syncer: Syncer,
    repository: Repository,
    windows: Sequence[tuple[JobType, Window]],
    options: ComparisonOptions,
    starter: Starter,
    *,
    cancel: threading.Event | None = None,
    progress: Progress | None = None,
) -> Document:
    """Compare windows of one repository with its source, and repair the differences or queue their repair.

    The document's ``exit_code`` is 0 if every window is clean to its end (after repairs). It is 1 if
    something differs or could not be compared, and 2 if nothing could be compared. Raises ConfigurationError
    for a retired repository, Cancelled after ``cancel`` was set.
    """
    reconciler = _Reconciler(database, settings, syncer, repository, options, starter, cancel, progress)
    results = [reconciler.run(job_type, window) for job_type, window in windows]
    last = [one["after"] or one for one in results]
    if all(one["status"] == CLEAN and one["complete"] and not one["unreadable"] for one in last):
        code = exit_codes.SUCCESS
    else:
        useless = all(one["status"] == INCONCLUSIVE for one in last)
        code = exit_codes.FAILED if useless else exit_codes.PARTIAL
    return {
        "repo": repository.spec,
        "path": repository.project_path or repository.url,
        "status": comparisons.worst({one["status"] for one in last}),
        "results": results,
        "exit_code": code,
    }


@dataclass(frozen=True, slots=True)
class _Reconciler:
    """Compares windows of one repository for one person."""

    database: Database
    settings: Settings
    syncer: Syncer
    repository: Repository
    options: ComparisonOptions
    starter: Starter
    cancel: threading.Event | None
    progress: Progress | None

    def run(self, job_type: JobType, window: Window) -> Document:
        """Compare a window, and repair the differences now, or queue that."""
        repo_id = self.repository.repo_id
        status, document = self._compare(job_type, window)
        document |= {"repair": None, "after": None}
        if status == CLEAN or not (self.options.repair_differences or self.options.queue):
            return document
        with self.database.connection() as conn:
            if not self.options.repair_differences:
                job_id = comparisons.queue_repair(conn, self.settings, repo_id, job_type, self.starter)
                document["repair"] = None if job_id is None else _repair(None, str(job_id))
                return document
            reconciliations.forgive(conn, repo_id, job_type)
            repair = comparisons.repair_request(conn, self.settings, repo_id, job_type, self.starter)
        if repair is not None:
            report = self.syncer.run(repair, cancel=self.cancel, progress=self.progress)
            document["repair"] = _repair(report, str(report.job_id))
            _, document["after"] = self._compare(job_type, window)
        return document

    def _compare(self, job_type: JobType, window: Window) -> tuple[str, Document]:
        request = comparisons.probe_request(
            self.repository.repo_id,
            job_type,
            window,
            self.options.depth_of(job_type),
            self.starter,
            max_calls=self.options.max_calls,
        )
        report = self.syncer.run(request, cancel=self.cancel, progress=self.progress)
        with self.database.connection() as conn:
            result = comparisons.result_of(conn, report)
            return result.status, self._document(conn, window, result)

    def _document(self, conn: Connection, window: Window, result: Result) -> Document:
        report, repo_id = result.report, self.repository.repo_id
        gaps = watermarks.missing(conn, repo_id, report.job_type, window)
        found: list[Discrepancy] = []
        for part in result.parts:
            left = max(0, self.options.shown - len(found))
            found += reconciliations.open_ones(
                conn, repo_id, report.job_type, number=part["reconciliation_id"], limit=left
            )
        compared = [part["window"] for part in result.parts if part["status"] != INCONCLUSIVE]
        patience = patience_of(self.settings)
        notice = next((part["notice"] for part in result.parts if part["notice"]), None)
        depth = self.options.depth_of(report.job_type)
        scope = scope_of(report.job_type, depth, by_graphql=notice is None)
        return {
            "job": str(report.job_type),
            "status": result.status,
            "depth": str(depth),
            "details": list(scope.compared),
            "details_left_out": list(scope.left_out),
            "notice": notice,
            "window": plain_window(window),
            "compared": [plain_window(one) for one in compared],
            "uncovered": [plain_window(one) for one in gaps],
            **result.sums,
            "differences": [_difference(one, patience) for one in found],
            "calls": report.calls,
            "seconds": round(report.seconds, 3),
            "job_id": str(report.job_id),
            "run_id": None if report.run_id is None else str(report.run_id),
            "complete": bool(compared) and not without(window, [*compared, *gaps]),
            "detail": report.error or next((part["detail"] for part in result.parts if part["detail"]), None),
        }


def _repair(report: JobReport | None, job_id: str) -> Document:
    """The repair that ran, or that is queued."""
    if report is None:
        changes: Document = {"inserted": 0, "updated": 0, "calls": 0, "error": None}
        return {"job_id": job_id, "status": "queued", "window": None} | changes
    return {
        "job_id": job_id,
        "status": str(report.job_status),
        "window": plain_window(report.window),
        "inserted": report.counts.inserted,
        "updated": report.counts.updated,
        "calls": report.calls,
        "error": report.error,
    }


def _difference(one: Discrepancy, patience: Patience) -> Document:
    difference, following = one.difference, next_of(one, patience)
    return {
        "key": difference.natural_key,
        "kind": str(difference.kind),
        "fields": list(difference.fields),
        "place": plain_window(difference.position),
        "found_at": one.found_at.isoformat(),
        "looks": one.looks,
        "repairs": one.repairs,
        "next": str(following),
        "believed_at": (one.found_at + patience.time).isoformat() if following is Next.WAIT else None,
    }
