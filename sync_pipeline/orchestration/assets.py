"""Assets: every (repository, job type), built as one multi-asset per (instance, family).

Belongs here: the specs and the body that turns a run into requests for the engine and its reports into
materializations and checks. What the engine does with a request is in :mod:`sync_pipeline.sync`.

Dagster materializes what a step yields; here a step yields nothing and logs a materialization per finished
block, so that a partly failed range shows what succeeded.
"""

# Dagster looks at the annotation of ``context`` itself, so annotations cannot be postponed here.

import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import dagster as dg
from dagster._core.errors import DagsterExecutionInterruptedError

from sync_pipeline.catalog import block_of
from sync_pipeline.errors import Cancelled, ConfigurationError, SyncError
from sync_pipeline.model import (
    Counts,
    JobReport,
    JobRequest,
    JobType,
    Lifecycle,
    Mode,
    Repository,
    RevisionWindow,
    Trigger,
    Window,
)
from sync_pipeline.orchestration.order import POOLS_VARIABLE, Order, read_order
from sync_pipeline.orchestration.partitions import (
    block_key,
    blocks_of,
    ensure_blocks,
    known_blocks,
    svn_blocks,
)
from sync_pipeline.quality import health
from sync_pipeline.resources import PostgresResource, SvnResource, WatermarkStore, WatermarkStoreResource
from sync_pipeline.settings import Settings
from sync_pipeline.store import health as health_store
from sync_pipeline.store import planning
from sync_pipeline.store.database import Database
from sync_pipeline.sync.engine import Syncer

_log = logging.getLogger(__name__)

CHECK_NAME = "health"
"""Name of the one asset check that every asset has."""

REFUSED = "refused"
"""Metadata of the failure of a step that could not begin: the code of the error."""

_BLOCKS_PER_RUN = 10
_SHARE_OF_RUN_TIME = 0.7
_ERROR_LINES = 5
# Every other window of the same repository would end the same way.
_HOPELESS = frozenset(
    {"denied", "not_found", "replaced", "database_down", "database_full", "configuration", "connection"}
)


@dataclass(frozen=True, slots=True)
class Observer:
    """Who else wants to see what a run does: the runner's progress bar and its result."""

    on_counts: Callable[[int, Window | None, Counts], None] = lambda repo_id, window, counts: None
    on_report: Callable[[JobReport], None] = lambda report: None


def asset_key(repository: Repository, job_type: JobType) -> dg.AssetKey:
    """``[instance slug, repository slug, job type]``; fixed at registration, or history would be lost."""
    return dg.AssetKey([repository.instance_slug, repository.slug, str(job_type)])


def revision_assets(repositories: Sequence[Repository]) -> list[dg.AssetsDefinition]:
    """One multi-asset per SVN instance, with one spec per repository, retired ones too."""
    by_instance: dict[str, list[Repository]] = {}
    for repository in repositories:
        by_instance.setdefault(repository.instance_slug, []).append(repository)
    return [_multi_asset(slug, members) for slug, members in sorted(by_instance.items())]


def _multi_asset(instance_slug: str, repositories: Sequence[Repository]) -> dg.AssetsDefinition:
    members = {asset_key(r, JobType.REVISIONS): r for r in repositories}

    @dg.multi_asset(
        name=f"{instance_slug}_{JobType.REVISIONS}",
        specs=[_spec(key, r) for key, r in members.items()],
        check_specs=[
            dg.AssetCheckSpec(CHECK_NAME, asset=key, description="Complete and fresh, by our own ledger.")
            for key in members
        ],
        partitions_def=svn_blocks,
        can_subset=True,
        backfill_policy=dg.BackfillPolicy.multi_run(_BLOCKS_PER_RUN),
        pool=instance_slug if os.environ.get(POOLS_VARIABLE) else None,
    )
    def revisions(
        context: dg.AssetExecutionContext,
        settings: dg.ResourceParam[Settings],
        svn: SvnResource,
        postgres: PostgresResource,
        watermarks: WatermarkStoreResource,
        observer: dg.ResourceParam[Observer],
    ) -> Iterator[dg.AssetCheckResult]:
        selected = [r for key, r in members.items() if key in context.selected_asset_keys]
        try:
            order = read_order(context.run.tags, known_blocks(context.instance))
            with (
                postgres.database(max_size=2 * settings.parallel_repositories + 2) as database,
                watermarks.store() as store,
            ):
                run = _Run(context, settings, order, database, store, observer)
                yield from run.execute(selected, Syncer(database, settings, svn.source_factory()))
        except ConfigurationError as error:
            raise refused(error) from None

    return revisions


def _spec(key: dg.AssetKey, repository: Repository) -> dg.AssetSpec:
    retired = repository.lifecycle is Lifecycle.RETIRED
    return dg.AssetSpec(
        key,
        skippable=True,
        group_name=repository.instance_slug,
        kinds={"svn", "postgres"},
        description=f"Revisions of {repository.url} in scm.svn_revisions and scm.svn_changed_paths."
        + (" Retired: no longer synced." if retired else ""),
        tags={"scm/lifecycle": str(repository.lifecycle)},
        metadata={
            "url": _link(repository.url),
            "repository": repository.spec,
            "repo_id": repository.repo_id,
            "tenant": repository.tenant,
            "table": "scm.svn_revisions",
        },
    )


@dataclass(frozen=True, slots=True)
class _Piece:
    """One request of one repository, and what came of it: a report, or a line that says why there is none."""

    repository: Repository
    request: JobRequest
    report: JobReport | None = None
    error: str | None = None
    stopped: bool = False

    @property
    def name(self) -> str:
        """How an error names it."""
        where = f" {self.request.window}" if self.request.window is not None else ""
        return f"{self.repository.spec}{where}"


@dataclass
class _Run:
    """One execution of the body. Threads work through repositories; this thread alone talks to Dagster."""

    context: dg.AssetExecutionContext
    settings: Settings
    order: Order
    database: Database
    watermarks: WatermarkStore
    observer: Observer
    cancel: threading.Event = field(default_factory=threading.Event)
    errors: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)
    heads: dict[int, int] = field(default_factory=dict)

    def execute(self, selected: Sequence[Repository], syncer: Syncer) -> Iterator[dg.AssetCheckResult]:
        """Sync ``selected``; yields their checks. Raises Failure that names every error."""
        active = [r for r in selected if r.lifecycle is Lifecycle.ACTIVE]
        self._announce(selected, active)
        finished: queue.Queue[_Piece | None] = queue.Queue()
        deadline = self._deadline()
        threads = ThreadPoolExecutor(self.settings.parallel_repositories, thread_name_prefix="sync")
        try:
            work = self._work(active)
            for repository, requests in work:
                threads.submit(self._sync, syncer, repository, requests, deadline, finished)
            ended = 0
            while ended < len(work):
                piece = finished.get()
                if piece is None:
                    ended += 1
                else:
                    self._record(piece)
        finally:
            # Also on interruption: threads stop between two batches and put their jobs back.
            self.cancel.set()
            _join(threads)
        self._move_origins(work)
        yield from self._checks(selected)
        self._conclude()

    # -- what to do -------------------------------------------------------------------------------------

    def _announce(self, selected: Sequence[Repository], active: Sequence[Repository]) -> None:
        retired = [r.slug for r in selected if r.lifecycle is Lifecycle.RETIRED]
        if retired and not active:
            raise dg.Failure(
                f"nothing to sync, retired: {', '.join(retired[:20])}; scm-sync repo add takes a repository "
                "up again",
                allow_retries=False,
            )
        if retired:
            self.context.log.info(f"skipped, retired: {', '.join(retired[:20])}")
        windows = ", ".join(str(w) for w in self.order.windows[:3]) or "what is new"
        self.context.log.info(f"{self.order.mode} of {len(active)} repositories: {windows}")

    def _deadline(self) -> float | None:
        """When this run stops claiming, so that it ends by itself before run monitoring ends it."""
        limit = self.context.instance.run_monitoring_max_runtime_seconds
        return time.monotonic() + _SHARE_OF_RUN_TIME * limit if limit else None

    def _work(self, active: Sequence[Repository]) -> list[tuple[Repository, list[JobRequest]]]:
        if self.order.from_ledger:
            return self._work_from_ledger(active)
        windows: Sequence[RevisionWindow | None] = self.order.windows or [None]
        return [(r, [self._request(r, window) for window in windows]) for r in active]

    def _work_from_ledger(self, active: Sequence[Repository]) -> list[tuple[Repository, list[JobRequest]]]:
        by_id = {r.repo_id: r for r in active}
        whole = RevisionWindow(self.order.windows[0].first, self.order.windows[-1].end)
        with self.database.connection() as conn:
            requests = planning.waiting_requests(
                conn,
                repo_ids=list(by_id),
                job_type=JobType.REVISIONS,
                mode=self.order.mode,
                window=whole,
                dagster_run_id=self.context.run_id,
            )
        work: dict[int, list[JobRequest]] = {}
        for request in requests:
            work.setdefault(request.repo_id, []).append(request)
        return [(by_id[repo_id], mine) for repo_id, mine in work.items()]

    def _request(self, repository: Repository, window: RevisionWindow | None) -> JobRequest:
        return JobRequest(
            repo_id=repository.repo_id,
            job_type=JobType.REVISIONS,
            mode=self.order.mode,
            trigger=self.order.trigger,
            actor=self.order.actor,
            reason=self.order.reason,
            window=window,
            dagster_run_id=self.context.run_id,
        )

    # -- in the threads ---------------------------------------------------------------------------------

    def _sync(
        self,
        syncer: Syncer,
        repository: Repository,
        requests: Sequence[JobRequest],
        deadline: float | None,
        finished: queue.Queue[_Piece | None],
    ) -> None:
        try:
            hopeless: str | None = None
            for request in requests:
                piece = _Piece(repository, request)
                if self.cancel.is_set():
                    break
                if deadline is not None and time.monotonic() > deadline:
                    finished.put(replace(piece, stopped=True))
                elif hopeless is not None:
                    finished.put(replace(piece, error=f"not tried: {hopeless}"))
                else:
                    done = self._sync_piece(syncer, piece)
                    finished.put(done)
                    code = done.report.error_code if done.report else None
                    if done.report is None or (not done.report.succeeded and code in _HOPELESS):
                        hopeless = done.error or (done.report.error if done.report else None)
        except Cancelled:
            pass
        finally:
            finished.put(None)

    def _sync_piece(self, syncer: Syncer, piece: _Piece) -> _Piece:
        request = piece.request
        try:
            # The runner reads what is missing; a materialization of a covered block is a wish to compare.
            by_hand = request.trigger in (Trigger.UI, Trigger.CI)
            if request.window is not None and by_hand and not self.order.from_ledger:
                request = replace(request, reread=self._is_covered(piece.repository, request.window))
            report = syncer.run(
                request,
                cancel=self.cancel,
                progress=lambda counts: self.observer.on_counts(request.repo_id, request.window, counts),
            )
            return replace(piece, report=report, error=None if report.succeeded else report.error)
        except Cancelled:
            raise
        except SyncError as error:
            return replace(piece, error=str(error))
        except Exception as error:
            _log.exception("%s failed in an unforeseen way", piece.name)
            return replace(piece, error=f"{type(error).__name__}: {error}")

    def _is_covered(self, repository: Repository, window: Window) -> bool:
        """True if there is nothing new to read: whoever asks for such a window wants it read again."""
        assert isinstance(window, RevisionWindow)
        row = self.watermarks.get(repository.repo_id, JobType.REVISIONS)
        end = min(window.end, (row.head_rev or 0) + 1)
        if end <= window.first:
            return False
        known = RevisionWindow(window.first, end)
        return not self.watermarks.missing(repository.repo_id, JobType.REVISIONS, known)

    # -- in the main thread -----------------------------------------------------------------------------

    def _record(self, piece: _Piece) -> None:
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
            self.errors.append(f"{piece.name}: {piece.error or 'not finished'}")
            if len(self.errors) <= _ERROR_LINES:
                self.context.log.error(self.errors[-1])

    def _materialize(self, repository: Repository, report: JobReport) -> None:
        for block in self._finished_blocks(repository, report):
            self.context.log_event(
                dg.AssetMaterialization(
                    asset_key(repository, JobType.REVISIONS),
                    partition=block_key(block),
                    metadata=_metadata(repository, report),
                )
            )

    def _finished_blocks(self, repository: Repository, report: JobReport) -> Iterator[RevisionWindow]:
        """The blocks that are covered up to this moment because of this job."""
        if isinstance(report.window, RevisionWindow):
            touched: Sequence[Window] = (report.window,)
        elif report.counts.changed or report.covered:
            # An incremental that found nothing writes nothing: the ledger has it.
            touched = report.covered or self._newest(report)
        else:
            return
        seen: set[RevisionWindow] = set()
        for window in touched:
            assert isinstance(window, RevisionWindow)
            for block in blocks_of(window):
                if block in seen:
                    continue
                seen.add(block)
                whole = window.first <= block.first and block.end <= window.end
                if (whole and report.succeeded) or self._is_complete(repository, block, report.head):
                    yield block

    def _newest(self, report: JobReport) -> Sequence[Window]:
        """Where an incremental changed rows without covering anything new: edited revision properties."""
        return (block_of(report.head),) if report.head else ()

    def _is_complete(self, repository: Repository, block: RevisionWindow, head: int | None) -> bool:
        if head is None:
            return False
        known = RevisionWindow(block.first, max(block.first, min(block.end, head + 1)))
        return not self.watermarks.missing(repository.repo_id, JobType.REVISIONS, known)

    def _checks(self, selected: Sequence[Repository]) -> Iterator[dg.AssetCheckResult]:
        """The health of what was selected with its checks. Sensor runs leave them to the scheduler."""
        wanted = {key.asset_key for key in self.context.selected_asset_check_keys}
        repositories = {r.repo_id: r for r in selected if asset_key(r, JobType.REVISIONS) in wanted}
        if not repositories:
            return
        with self.database.connection() as conn:
            verdicts = health.read(conn, timedelta(seconds=self.settings.stale_after), list(repositories))
            for verdict in verdicts:
                if verdict.facts.job_type is JobType.REVISIONS:
                    show(conn, verdict)
        for verdict in verdicts:
            if verdict.facts.job_type is JobType.REVISIONS:
                yield dg.AssetCheckResult(
                    asset_key=asset_key(repositories[verdict.facts.repo_id], JobType.REVISIONS),
                    check_name=CHECK_NAME,
                    passed=verdict.health.passed,
                    severity=severity(verdict.health),
                    metadata=check_metadata(verdict),
                )

    def _move_origins(self, work: Sequence[tuple[Repository, Sequence[JobRequest]]]) -> None:
        """What ``--update-watermark`` asks for: once, over everything, after complete success."""
        if not self.order.update_watermark or self.errors or self.left:
            return
        for repository, requests in work:
            windows = [r.window for r in requests if isinstance(r.window, RevisionWindow)]
            if windows:
                self.watermarks.move_origin(
                    repository.repo_id,
                    JobType.REVISIONS,
                    RevisionWindow(min(w.first for w in windows), max(w.end for w in windows)),
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
            # Nobody starts these by himself, so the run must not look complete.
            self.errors += [f"{name}: not started, the run time was used up" for name in self.left]
        if self.errors:
            more = len(self.errors) - _ERROR_LINES
            text = "; ".join(self.errors[:_ERROR_LINES]) + (f"; and {more} more" if more > 0 else "")
            raise dg.Failure(
                text, metadata={"errors": dg.MetadataValue.json(self.errors[:200])}, allow_retries=False
            )


def refused(error: SyncError) -> dg.Failure:
    """The failure of a step that could not begin, because somebody has to set something right first."""
    return dg.Failure(str(error), metadata={REFUSED: error.code}, allow_retries=False)


def _join(threads: ThreadPoolExecutor) -> None:
    """Wait for the threads, also if an impatient person interrupts a second time: they are stopping, and
    without them nobody would put the jobs back."""
    while True:
        try:
            threads.shutdown(wait=True, cancel_futures=True)
            return
        except (KeyboardInterrupt, DagsterExecutionInterruptedError):
            continue


def show(conn: Any, verdict: health.Judged) -> None:
    """Remember that Dagster is shown ``verdict``."""
    health_store.record_shown(
        conn,
        verdict.facts.repo_id,
        str(verdict.facts.job_type),
        passed=verdict.health.passed,
        reasons=[str(reason) for reason in verdict.health.reasons],
    )


def severity(verdict: health.Health) -> dg.AssetCheckSeverity:
    """Red for what is wrong, yellow for what has merely not happened yet."""
    waits = set(verdict.reasons) <= health.WAITS_FOR_ITSELF
    return dg.AssetCheckSeverity.WARN if waits else dg.AssetCheckSeverity.ERROR


def check_metadata(verdict: health.Judged) -> Mapping[str, Any]:
    """The reasons as the UI shows them, one entry each."""
    facts = verdict.facts
    fresh = facts.verified_at
    found: dict[str, Any] = dict(verdict.health.detail)
    found["reasons"] = ", ".join(verdict.health.reasons) or "none"
    if isinstance(facts.watermark, int):
        found["watermark"] = facts.watermark
    if facts.head is not None:
        found["head"] = facts.head
    if fresh is not None:
        found["verified_at"] = dg.MetadataValue.timestamp(fresh)
    return found


def _metadata(repository: Repository, report: JobReport) -> Mapping[str, Any]:
    found: dict[str, Any] = {
        "window": str(report.window) if report.window is not None else "from the watermark to HEAD",
        "mode": str(report.mode),
        "rows_read": report.counts.read,
        "inserted": report.counts.inserted,
        "updated": report.counts.updated,
        "unchanged": report.counts.unchanged,
        "poorer": report.counts.poorer,
        "quarantined": report.counts.quarantined,
        "calls": report.calls,
        "batches": report.batches,
        "seconds": round(report.seconds, 3),
        "waited_seconds": round(report.waited_seconds, 3),
        "beyond_head": report.beyond_head,
        "job_id": str(report.job_id),
        "sync_run_id": str(report.run_id),
        "source": _link(repository.url),
    }
    for name, mark in (
        ("watermark_before", report.watermark_before),
        ("watermark_after", report.watermark_after),
    ):
        if mark is not None:
            found[name] = dg.MetadataValue.timestamp(mark) if isinstance(mark, datetime) else mark
    if report.head is not None:
        found["head"] = report.head
    return found


def _link(url: str) -> dg.MetadataValue[Any]:
    """A link where a browser can follow it."""
    return dg.MetadataValue.url(url) if url.startswith("http") else dg.MetadataValue.text(url)
