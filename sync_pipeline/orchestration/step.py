"""The body of a step: from a run of Dagster to requests for the engine, and from its reports to events.

Belongs here: one execution of a family's multi-asset. :mod:`sync_pipeline.sync` handles a request, and
:mod:`sync_pipeline.orchestration.completed_partitions` decides which partitions a report completes.

Dagster materializes every result that a step yields. Here a step yields checks only, and logs a
materialization per finished partition, so that a partly failed range shows its successes.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any
from uuid import uuid4

import dagster as dg

from sync_pipeline.core.errors import Cancelled, ConfigurationError, SyncError
from sync_pipeline.core.formatting import counted
from sync_pipeline.core.job_types import Family
from sync_pipeline.core.model import (
    Counts,
    DecisionReason,
    JobReport,
    JobRequest,
    JobStatus,
    JobType,
    Kind,
    Lifecycle,
    Mode,
    Repository,
    Window,
)
from sync_pipeline.core.safe_text import one_line
from sync_pipeline.core.windows import hull, merged
from sync_pipeline.database.pool import Database
from sync_pipeline.ledger import planning
from sync_pipeline.orchestration.asset_page import OF_EVERY_PARTITION, AssetPages, check_fields
from sync_pipeline.orchestration.completed_partitions import finished_blocks, finished_days
from sync_pipeline.orchestration.dagster_internals import DagsterEventBatchMetadata
from sync_pipeline.orchestration.failures import StepFailure, failed
from sync_pipeline.orchestration.health_checks import mark_reported, show_again
from sync_pipeline.orchestration.partitions import Days, block_key, day_key, ensure_blocks
from sync_pipeline.orchestration.processes import variables_set
from sync_pipeline.orchestration.requests import Requests
from sync_pipeline.orchestration.resources import WatermarkStore
from sync_pipeline.orchestration.run_spec import RunSpec
from sync_pipeline.orchestration.specs import asset_key
from sync_pipeline.reports import health
from sync_pipeline.scheduling import credentials
from sync_pipeline.settings import Settings
from sync_pipeline.sync.engine import Syncer
from sync_pipeline.sync.readers import Readers

_log = logging.getLogger(__name__)

Selected = Sequence[tuple[Repository, tuple[JobType, ...]]]
"""The repositories of a run, each with its job types in the order of the family."""

_SHARE_OF_RUN_TIME = 0.7
_ERROR_LINES = 5
_BATCH_VARIABLE = "DAGSTER_EVENT_BATCH_SIZE"
# Every other window of the same (repository, job type) would end the same way.
_HOPELESS = frozenset(
    {
        "denied",
        "disabled",
        "credential",
        "scope",
        "blocked",
        "not_found",
        "replaced",
        "moved",
        "database_down",
        "database_full",
        "configuration",
        "connection",
    }
)


@dataclass(frozen=True, slots=True)
class Observer:
    """Callbacks for the counts and reports of a run, for the runner's progress bar and its result."""

    on_counts: Callable[[int, JobType, Window | None, Counts], None] = lambda *_: None
    on_report: Callable[[JobReport], None] = lambda report: None


@dataclass(frozen=True, slots=True)
class _RequestResult:
    """One request of one repository and its result: a report, or a line that says why there is none.
    ``refused`` is the code of an error in the configuration."""

    repository: Repository
    request: JobRequest
    report: JobReport | None = None
    error: str | None = None
    refused: str | None = None
    stopped: bool = False

    @property
    def name(self) -> str:
        """How an error names it."""
        what = "" if self.repository.kind is Kind.SVN else f" {self.request.job_type}"
        where = f" {self.request.window}" if self.request.window is not None else ""
        return f"{self.repository.spec}{what}{where}"


@dataclass(frozen=True, slots=True)
class _RepositoryWork:
    """The work for one repository: groups of requests, each read together."""

    repository: Repository
    groups: tuple[tuple[JobRequest, ...], ...]


@dataclass
class Step:
    """One execution of the body. Threads work through repositories; this thread alone talks to Dagster."""

    context: dg.AssetExecutionContext
    settings: Settings
    family: Family
    order: RunSpec
    days: dg.DailyPartitionsDefinition
    database: Database
    watermarks: WatermarkStore
    readers: Readers
    observer: Observer
    cancel: threading.Event = field(default_factory=threading.Event)
    errors: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    causes: dict[str, list[str]] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)
    heads: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.pages = AssetPages(self.database, self.settings)

    @property
    def requests(self) -> Requests:
        """The request of this run to the engine."""
        return Requests(self.family, self.order, self.days, self.watermarks, self.context.run.run_id)

    def execute(self, selected: Selected) -> Iterator[dg.AssetCheckResult]:
        """Sync what is ``selected``; yields its checks. Raises Failure that names every error."""
        active = [(r, job_types) for r, job_types in selected if r.lifecycle is Lifecycle.ACTIVE]
        self._announce(selected, active)
        syncer = Syncer(self.database, self.settings, self.readers)
        finished: queue.Queue[_RequestResult | None] = queue.Queue()
        deadline = self._deadline()
        threads = ThreadPoolExecutor(self.settings.jobs.parallel_repositories, thread_name_prefix="sync")
        try:
            try:
                todo = self._work(active)
                for work in todo:
                    threads.submit(self._sync, syncer, work, deadline, finished)
                ended = 0
                while ended < len(todo):
                    piece = finished.get()
                    if piece is None:
                        ended += 1
                    else:
                        self._record(piece)
            finally:
                # Also on interruption: threads stop between two batches and put their jobs back.
                self._stop(threads)
        finally:
            # `timeout` sends its signal twice; the second one may come as the first call begins.
            self._stop(threads)
        self._move_origins(todo)
        yield from self._checks(selected)
        self._conclude()

    # -- what to do -------------------------------------------------------------------------------------

    def _announce(self, selected: Selected, active: Selected) -> None:
        retired = [r.slug for r, _ in selected if r.lifecycle is Lifecycle.RETIRED]
        if retired and not active:
            raise StepFailure(
                f"nothing to sync, retired: {', '.join(retired[:20])}; scm-sync repo add takes a repository "
                "up again"
            )
        if retired:
            self.context.log.info(f"skipped, retired: {', '.join(retired[:20])}")
        windows = ", ".join(str(w) for w in merged(self.order.windows)[:3]) or "what is new"
        if self.order.reason == DecisionReason.PLANNED_FETCHES:
            # The partition of the run only carries it.
            windows = "planned fetches"
        count = counted(len(active), "repository", "repositories")
        self.context.log.info(f"{self.order.mode} of {count}: {windows}")

    def _deadline(self) -> float | None:
        """When this run stops claiming, so that it ends by itself before run monitoring ends it."""
        limit = self.context.instance.run_monitoring_max_runtime_seconds
        return time.monotonic() + _SHARE_OF_RUN_TIME * limit if limit else None

    def _work(self, active: Selected) -> list[_RepositoryWork]:
        """The dispatched jobs of each repository. Other jobs are made or found."""
        dispatched = self._dispatched(active) if self.order.from_ledger or self.order.dispatch else {}
        found = []
        for repository, job_types in active:
            groups: Sequence[Sequence[JobRequest]] = dispatched.get(repository.repo_id, ())
            if not groups and not self.order.from_ledger:
                groups = self.requests.groups(repository, job_types)
            if groups:
                found.append(_RepositoryWork(repository, tuple(map(tuple, groups))))
        return found

    def _dispatched(self, active: Selected) -> dict[int, list[list[JobRequest]]]:
        """The waiting jobs of the run by repository, in groups that are read together."""
        selected = {repository.repo_id: job_types for repository, job_types in active}
        with self.database.connection() as conn:
            requests = planning.waiting_requests(
                conn,
                repo_ids=list(selected),
                mode=self.order.mode,
                window=hull(self.order.windows),
                dispatch=self.order.dispatch,
                dagster_run_id=self.context.run.run_id,
            )
        waiting: dict[int, dict[tuple[Window | None, JobType | None], list[JobRequest]]] = {}
        for job_type in self.family.job_types:
            for request in requests:
                if request.job_type is job_type and job_type in selected[request.repo_id]:
                    # Differences are read again for each job type separately.
                    part = request.window, job_type if request.only_differences else None
                    waiting.setdefault(request.repo_id, {}).setdefault(part, []).append(request)
        return {repo_id: list(groups.values()) for repo_id, groups in waiting.items()}

    # -- in the threads ---------------------------------------------------------------------------------

    def _sync(
        self,
        syncer: Syncer,
        work: _RepositoryWork,
        deadline: float | None,
        finished: queue.Queue[_RequestResult | None],
    ) -> None:
        try:
            skip_remaining: dict[JobType, _RequestResult] = {}
            for group in work.groups:
                if self.cancel.is_set():
                    break
                pieces = [_RequestResult(work.repository, request) for request in group]
                if deadline is not None and time.monotonic() > deadline:
                    for piece in pieces:
                        finished.put(replace(piece, stopped=True))
                    continue
                for piece in pieces:
                    if (cause := skip_remaining.get(piece.request.job_type)) is not None:
                        error = f"not tried: {cause.error or 'not finished'}"
                        finished.put(replace(piece, error=error, refused=cause.refused))
                todo = [piece for piece in pieces if piece.request.job_type not in skip_remaining]
                for done in self._sync_together(syncer, todo) if todo else ():
                    finished.put(done)
                    code = done.report.error_code if done.report else None
                    if done.report is None or (not done.report.succeeded and code in _HOPELESS):
                        skip_remaining[done.request.job_type] = done
        except Cancelled:
            pass
        finally:
            finished.put(None)

    def _sync_together(self, syncer: Syncer, pieces: Sequence[_RequestResult]) -> list[_RequestResult]:
        """Ask the engine for pieces of one repository and one window."""
        try:
            pieces = [replace(piece, request=self.requests.with_priority(piece.request)) for piece in pieces]
            first = pieces[0].request
            reports = syncer.run_together(
                [piece.request for piece in pieces],
                cancel=self.cancel,
                progress=lambda job_type, counts: self.observer.on_counts(
                    first.repo_id, job_type, first.window, counts
                ),
            )
            return [
                replace(piece, report=report, error=None if report.succeeded else report.error)
                for piece, report in zip(pieces, reports, strict=True)
            ]
        except Cancelled:
            raise
        except SyncError as error:
            refused = error.code if isinstance(error, ConfigurationError) else None
            return [replace(piece, error=str(error), refused=refused) for piece in pieces]
        except Exception as error:
            _log.exception("%s failed in an unforeseen way", pieces[0].name)
            return [replace(piece, error=f"{type(error).__name__}: {error}") for piece in pieces]

    # -- in the main thread -----------------------------------------------------------------------------

    def _stop(self, threads: ThreadPoolExecutor) -> None:
        """Wait for the threads, also after a second interrupt: only they put their jobs back."""
        while True:
            try:
                self.cancel.set()
                threads.shutdown(wait=True, cancel_futures=True)
                return
            except (KeyboardInterrupt, dg.DagsterExecutionInterruptedError):
                continue

    def _record(self, piece: _RequestResult) -> None:
        if piece.stopped:
            self.left.append(piece.name)
            return
        report = piece.report
        if report is not None:
            self.observer.on_report(report)
            self.counts += report.counts
            if report.head is not None and report.head > self.heads.get(piece.repository.repo_id, -1):
                self.heads[piece.repository.repo_id] = report.head
                ensure_blocks(self.context.instance, self.database, report.head)
            self._materialize(piece.repository, report)
        if report is None or not report.succeeded:
            self.errors.append(one_line(f"{piece.name}: {piece.error or 'not finished'}"))
            if piece.refused is not None:
                self.refusals.append(piece.refused)
            if report is not None and (cause := _cause(report)) is not None:
                self.causes.setdefault(cause, []).append(piece.repository.spec)
            if len(self.errors) <= _ERROR_LINES:
                self.context.log.error(self.errors[-1])

    def _materialize(self, repository: Repository, report: JobReport) -> None:
        if self.family.kind is not Kind.SVN:
            materialize_days(self.context, repository, report, self.days, self.watermarks, self.pages)
            return
        if keys := [block_key(block) for block in finished_blocks(report, self.watermarks)]:
            whole = self.pages.metadata(repository, report)
            _log_together(self.context, asset_key(repository, report.job_type), dict.fromkeys(keys, whole))
            show_again(self.database, repository.repo_id, report.job_type)

    def _checks(self, selected: Selected) -> Iterator[dg.AssetCheckResult]:
        """The health of what was selected with its checks. Sensor runs leave them to the scheduler."""
        wanted = {key.asset_key for key in self.context.selected_asset_check_keys}
        keys = {
            (repository.repo_id, job_type): key
            for repository, job_types in selected
            for job_type in job_types
            if (key := asset_key(repository, job_type)) in wanted
        }
        if not keys:
            return
        specs = {repository.repo_id: repository.spec for repository, _ in selected}
        with self.database.connection() as conn:
            results = [
                verdict
                for verdict in health.read(
                    conn,
                    timedelta(seconds=self.settings.scheduler.stale_after_seconds),
                    credentials.in_force(conn, self.readers),
                    sorted({repo_id for repo_id, _ in keys}),
                )
                if (verdict.facts.repo_id, verdict.facts.job_type) in keys
            ]
            for verdict in results:
                mark_reported(conn, verdict)
        for verdict in results:
            yield dg.AssetCheckResult(
                asset_key=keys[verdict.facts.repo_id, verdict.facts.job_type],
                **check_fields(verdict, specs[verdict.facts.repo_id]),
            )

    def _move_origins(self, todo: Sequence[_RepositoryWork]) -> None:
        """Do what ``--update-watermark`` asks for, once and after complete success."""
        if not self.order.update_watermark or self.errors or self.left:
            return
        for work in todo:
            requests = [request for group in work.groups for request in group]
            for job_type in dict.fromkeys(request.job_type for request in requests):
                window = hull(r.window for r in requests if r.job_type is job_type and r.window is not None)
                if window is not None:
                    self.watermarks.move_origin(
                        work.repository.repo_id,
                        job_type,
                        window,
                        actor=self.order.actor,
                        reason=self.order.reason,
                    )

    def _conclude(self) -> None:
        c = self.counts
        self.context.log.info(
            f"read {c.read}, inserted {c.inserted}, updated {c.updated}, unchanged {c.unchanged}, "
            f"quarantined {c.quarantined}; {len(self.errors)} errors, {len(self.left)} left for the next run"
        )
        if self.left and not self.order.from_ledger and self.order.mode is not Mode.INCREMENTAL:
            # No schedule starts these, so the run must not look complete.
            self.errors += [f"{name}: not started, the run time was used up" for name in self.left]
        if self.errors:
            refusal = self.refusals[0] if len(self.refusals) == len(self.errors) else None
            raise failed(self.errors, self.causes, refusal)


def _cause(report: JobReport) -> str | None:
    """The reason of the catalogue for a job that failed; None where its error says itself what to do."""
    is_tried_again = report.job_status in (JobStatus.PENDING, JobStatus.FAILED)
    return health.reason_of_failure(report.error_code, report.mode, is_tried_again=is_tried_again)


# Events -------------------------------------------------------------------------------------------------


def materialize_days(
    context: dg.AssetExecutionContext,
    repository: Repository,
    report: JobReport,
    days: dg.DailyPartitionsDefinition,
    watermarks: WatermarkStore,
    pages: AssetPages,
) -> None:
    """Show the days that a job of a GitLab project finished as materialized."""
    keys = [day_key(day) for day in finished_days(report, Days.of(days), watermarks)]
    if not keys:
        return
    whole = pages.metadata(repository, report)
    # Only the newest day shows the rest, which is about the whole window.
    part = {name: whole[name] for name in OF_EVERY_PARTITION}
    shown = {key: whole if key == keys[-1] else part for key in keys}
    _log_together(context, asset_key(repository, report.job_type), shown)
    show_again(watermarks.database, repository.repo_id, report.job_type)


def _log_together(
    context: dg.AssetExecutionContext, asset: dg.AssetKey, metadata: Mapping[str, Mapping[str, Any]]
) -> None:
    """Log a materialization of each of these partitions of an asset. One by one each would cost several
    database sessions: a year of days is written in a few statements."""
    events = [
        dg.AssetMaterialization(asset, partition=key, metadata=shown) for key, shown in metadata.items()
    ]
    if len(events) == 1:
        context.log_event(events[0])
        return
    step = context.get_step_execution_context()
    batch = str(uuid4())
    # Dagster writes events in batches where this variable says so; the executor is in this process.
    with variables_set({_BATCH_VARIABLE: os.environ.get(_BATCH_VARIABLE, "100")}):
        for number, event in enumerate(events, 1):
            dg.DagsterEvent.asset_materialization(
                step, event, DagsterEventBatchMetadata(batch, is_end=number == len(events))
            )
