"""The unattended comparison: one run of the reconcile schedule.

Belongs here: the order in which tasks get their requests, and the steps of one task. They are a visit if the
last one is old, the probes, the progress of the rolling scan, and the repair.
:mod:`sync_pipeline.policy.reconcile_schedule` decides the tasks; :mod:`sync_pipeline.sync.reconcile` does a
probe. Does not belong here: when it runs, and its page in Dagster.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from sync_pipeline.core.errors import Cancelled, ConfigurationError, SyncError
from sync_pipeline.core.job_types import FAMILY_OF
from sync_pipeline.core.model import (
    BEGINNING,
    JobReport,
    JobRequest,
    JobType,
    Kind,
    Mode,
    TimeWindow,
    Trigger,
    Window,
)
from sync_pipeline.core.windows import between, bounds
from sync_pipeline.database.pool import Connection, Database
from sync_pipeline.database.rows import read_row
from sync_pipeline.facts import stored_rows
from sync_pipeline.ledger import reconcile_progress, watermarks
from sync_pipeline.policy.reconcile_schedule import (
    Mark,
    ReconcileAsset,
    ReconcileLimits,
    ReconcileTask,
    RequestBudget,
    SkipReason,
    TaskReason,
    is_repair_due,
    plan,
    sent_before,
)
from sync_pipeline.policy.reconciliation import REPAIRS_BEFORE_A_PERSON
from sync_pipeline.scheduling import credentials
from sync_pipeline.scheduling.comparisons import Result, Starter, probe_request, queue_repair, result_of
from sync_pipeline.settings import Settings
from sync_pipeline.sync.engine import Syncer
from sync_pipeline.sync.readers import Readers
from sync_pipeline.sync.reconcile import INCONCLUSIVE, MISMATCH

_log = logging.getLogger(__name__)

ACTOR = "reconcile"
"""Who the ledger says compared and repaired."""


Key = tuple[int, JobType]

# Errors of one asset only, which say nothing about its server.
_OF_THE_ASSET = frozenset(
    {"denied", "disabled", "not_found", "no_repository", "replaced", "moved", "lease_held"}
)
_OF_THE_TOKEN = frozenset({"credential", "scope"})
# After so many failures in a row the server is left alone until the next hour.
_MAX_FAILURES_IN_A_ROW = 3


@dataclass(slots=True)
class TaskResult:
    """The result of a task. ``calls`` are the requests of its probes; ``visits`` the reports of incrementals
    before them. ``error`` is why it could not be concluded, ``code`` its code; ``failure`` is a defect of
    ours or of the installation. ``stuck``: its requests were too few for any progress."""

    task: ReconcileTask
    results: list[Result] = field(default_factory=list)
    visits: tuple[JobReport, ...] = ()
    calls: int = 0
    repair: bool = False
    error: str | None = None
    code: str | None = None
    failure: str | None = None
    stuck: bool = False

    @property
    def goes_on(self) -> bool:
        """True if the same asset may have another task in this hour."""
        return self.error is None and self.failure is None and not self.stuck

    def count(self, name: str) -> int:
        """The sum of a figure of its results, such as ``stored``."""
        return sum(result.sums[name] for result in self.results)

    def fail(self, code: str | None, error: str, *, ours: bool = False) -> None:
        """An error ended the task. A source that does not answer is no failure."""
        self.code = code
        line = " ".join(error.split())
        if ours or code == "exception" or (code or "").startswith("database"):
            self.failure = line
        else:
            self.error = line


@dataclass
class ReconcileRound:
    """The results of a run: every task that ran, how many waited for requests, the assets that were left out,
    and the fleet afterwards. ``sent`` are requests by instance, of the hour; ``dropped`` instances did not
    answer."""

    outcomes: list[TaskResult] = field(default_factory=list)
    waiting: int = 0
    left_out: dict[Key, SkipReason] = field(default_factory=dict)
    assets: list[ReconcileAsset] = field(default_factory=list)
    sent: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)
    repairs: int = 0
    now: datetime | None = None


def limits_of(settings: Settings) -> ReconcileLimits:
    """The limits in the settings."""
    return ReconcileLimits(
        settings.reconcile.requests,
        timedelta(days=settings.reconcile.recent_days),
        timedelta(days=settings.reconcile.days),
    )


class ReconcileSchedule:
    """One run of the unattended comparison, over ``repo_ids``.

    Threads run tasks; the caller's thread alone plans, and gets every result. ``deadline`` (of
    :func:`time.monotonic`) is when it starts no more tasks. ``dagster_run_id`` is noted with every job.
    """

    def __init__(
        self,
        database: Database,
        settings: Settings,
        readers: Readers,
        repo_ids: Collection[int],
        *,
        deadline: float | None = None,
        dagster_run_id: str | None = None,
    ) -> None:
        self.round = ReconcileRound()
        self._database = database
        self._settings = settings
        self._readers = readers
        self._repo_ids = frozenset(repo_ids)
        self._deadline = deadline
        self._dagster_run_id = dagster_run_id
        self._limits = limits_of(settings)
        self._syncer = Syncer(database, settings, readers)
        self._cancel = threading.Event()
        self._visited: dict[Key, datetime | None] = {}
        self._resting: set[Key] = set()
        self._in_a_row: dict[str, int] = {}

    def run(self) -> Iterator[TaskResult]:
        """Run tasks as long as some are due and there are requests for them; :attr:`round` is complete when
        all results were taken. Runs none where the schedule is switched off."""
        if not self._settings.reconcile.enabled:
            self._plan()
            return
        threads = ThreadPoolExecutor(
            self._settings.jobs.parallel_repositories, thread_name_prefix="reconcile"
        )
        try:
            while True:
                tasks = self._plan()
                budget = RequestBudget(tasks, self._limits, self.round.sent)
                before = len(self.round.outcomes)
                yield from self._hand_out(budget, threads)
                self.round.waiting = len(budget.waiting)
                if len(self.round.outcomes) == before or self._is_over():
                    break
        finally:
            # Also on interruption: threads stop between two pieces and put their jobs back.
            self._cancel.set()
            threads.shutdown(wait=True, cancel_futures=True)
        self._plan()
        self._queue_repairs()

    def _is_over(self) -> bool:
        return self._deadline is not None and time.monotonic() > self._deadline

    # -- in the caller's thread -------------------------------------------------------------------------

    def _plan(self) -> list[ReconcileTask]:
        settings = self._settings
        with self._database.connection() as conn:
            tokens = credentials.in_force(conn, self._readers)
            rows = reconcile_progress.snapshot(
                conn,
                repairs=REPAIRS_BEFORE_A_PERSON,
                looks=settings.reconcile.deletion_confirmations,
                believed=settings.reconcile.deletion_after_seconds,
            )
        if self.round.now is None:
            # Requests of others meanwhile count in the next hour.
            self.round.sent = {
                instance: sent_before(now, before, self._limits)
                for instance, (now, before) in rows.sent.items()
            }
        wanted = settings.worker.job_type_allowlist
        mine = [
            row
            for row in rows.assets
            if row["repo_id"] in self._repo_ids and (not wanted or row["job_type"] in wanted)
        ]
        for row in mine:
            self._visited[row["repo_id"], JobType(row["job_type"])] = row["visited_at"]
        self.round.now = rows.now
        self.round.assets = [_asset(row, tokens) for row in mine]
        tasks, self.round.left_out = plan(self.round.assets, self._limits, rows.now)
        return [
            task
            for task in tasks
            if task.key not in self._resting and task.instance not in self.round.dropped
        ]

    def _hand_out(self, budget: RequestBudget, threads: ThreadPoolExecutor) -> Iterator[TaskResult]:
        running: dict[Future[TaskResult], ReconcileTask] = {}
        while True:
            while not self._is_over() and len(running) < self._settings.jobs.parallel_repositories:
                taken = budget.next()
                if taken is None:
                    break
                running[threads.submit(self._run_task, *taken)] = taken[0]
            if not running:
                return
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                outcome, task = future.result(), running.pop(future)
                budget.ended(task, outcome.calls)
                self._note(outcome, budget)
                yield outcome

    def _note(self, outcome: TaskResult, budget: RequestBudget) -> None:
        task, current = outcome.task, self.round
        current.outcomes.append(outcome)
        current.repairs += outcome.repair
        current.sent[task.instance] = current.sent.get(task.instance, 0) + outcome.calls
        if not outcome.goes_on:
            self._resting.add(task.key)
            budget.drop([task.key])
        if outcome.error is None or outcome.code in _OF_THE_ASSET:
            self._in_a_row[task.instance] = 0
            return
        self._in_a_row[task.instance] = self._in_a_row.get(task.instance, 0) + 1
        if outcome.code in _OF_THE_TOKEN or self._in_a_row[task.instance] >= _MAX_FAILURES_IN_A_ROW:
            current.dropped[task.instance] = outcome.error
            budget.drop(instance=task.instance)

    def _queue_repairs(self) -> None:
        """Queue repairs that no task queued. They are for confirmed deletions, for differences of a person's
        comparison, and for differences that came after another repair of the same asset.
        """
        assert self.round.now is not None
        for asset in self.round.assets:
            if is_repair_due(asset, self.round.now):
                with self._database.connection() as conn:
                    starter = self._starter("differences are open")
                    if queue_repair(conn, self._settings, asset.repo_id, asset.job_type, starter) is not None:
                        self.round.repairs += 1

    def _starter(self, reason: str) -> Starter:
        return Starter(Trigger.SENSOR, ACTOR, reason)

    # -- in the threads ---------------------------------------------------------------------------------

    def _run_task(self, task: ReconcileTask, allowed: int) -> TaskResult:
        """Run a task with at most ``allowed`` requests. Raises Cancelled only."""
        result = TaskResult(task)
        try:
            with self._database.connection() as conn:
                reconcile_progress.mark_started(conn, task.repo_id, task.job_type, str(task.reason))
            result.visits = self._visit(task)
            failed = next((report for report in result.visits if not report.succeeded), None)
            if failed is None:
                self._compare(result, allowed)
            else:
                result.fail(failed.error_code, failed.error or "the visit failed")
        except Cancelled:
            raise
        except SyncError as error:
            result.fail(error.code, str(error), ours=isinstance(error, ConfigurationError))
        except Exception as error:
            _log.exception("the comparison of %s %s failed in an unforeseen way", task.repo_id, task.job_type)
            result.fail("exception", f"{type(error).__name__}: {error}")
        return result

    def _visit(self, task: ReconcileTask) -> tuple[JobReport, ...]:
        """Sync the family first where its last visit is old, so that what is compared is fresh. Revisions
        never change their place, so nothing is gained there."""
        if task.job_type is JobType.REVISIONS:
            return ()
        assert self.round.now is not None
        latest = self._visited[task.key]
        interval = timedelta(seconds=self._settings.scheduler.sync_interval_seconds)
        if latest is not None and latest > self.round.now - interval:
            return ()
        requests = [
            JobRequest(
                repo_id=task.repo_id,
                job_type=job_type,
                mode=Mode.INCREMENTAL,
                trigger=Trigger.SENSOR,
                actor=ACTOR,
                reason="before a comparison",
                dagster_run_id=self._dagster_run_id,
            )
            for job_type in FAMILY_OF[task.job_type].job_types
            if (task.repo_id, job_type) in self._visited
        ]
        reports = tuple(self._syncer.run_together(requests, cancel=self._cancel))
        for report in reports:
            # A repository has one task at a time, so no other thread reads these.
            self._visited[report.repo_id, report.job_type] = self.round.now
        return tuple(report for report in reports if report.job_type is task.job_type) + tuple(
            report for report in reports if report.job_type is not task.job_type and report.succeeded
        )

    def _compare(self, result: TaskResult, allowed: int) -> None:
        task = result.task
        windows, mark = self._windows(task, fresh=bool(result.visits))
        for window in windows:
            left = allowed - result.calls
            if left <= 0:
                break
            starter = self._starter(f"comparison of {task.reason}")
            request = replace(
                probe_request(task.repo_id, task.job_type, window, task.depth, starter, max_calls=left),
                dagster_run_id=self._dagster_run_id,
            )
            report = self._syncer.run(request, cancel=self._cancel)
            with self._database.connection() as conn:
                found = result_of(conn, report)
            result.results.append(found)
            result.calls += report.calls
            reached = _reached(window, found, whole=report.succeeded and report.calls < left)
            if task.reason is TaskReason.HISTORY:
                self._move(task, window, reached, mark)
            if not report.succeeded:
                result.fail(report.error_code, report.error or "not finished")
                break
            if reached == bounds(window)[0]:
                result.stuck = True
                break
        if any(one.status == MISMATCH for one in result.results):
            result.repair = self._repair(task)

    def _windows(self, task: ReconcileTask, *, fresh: bool) -> tuple[tuple[Window, ...], Mark | None]:
        """The windows to compare, and the watermark; with a ``fresh`` visit the recent part ends there."""
        with self._database.connection() as conn:
            mark = watermarks.get(conn, task.repo_id, task.job_type).watermark
            if mark is None:
                return (), None
            if task.reason is TaskReason.HISTORY:
                return self._share(conn, task, mark), mark
        if task.reason is TaskReason.RECENT and fresh and isinstance(mark, datetime):
            (window,) = task.windows
            start, end = bounds(window)
            return (between(start, max(mark, end)),), mark
        return task.windows, mark

    def _share(self, conn: Connection, task: ReconcileTask, mark: Mark) -> tuple[Window, ...]:
        """The next share of history, at most up to the watermark; begins the round where that is to be."""
        start: Any = task.start
        if task.begins:
            rows = 0
            if isinstance(mark, datetime):
                whole = TimeWindow(BEGINNING, mark)
                rows = stored_rows.count_in(conn, task.repo_id, task.job_type, whole)
            reconcile_progress.begin(conn, task.repo_id, task.job_type, rows)
        if start < mark:
            if isinstance(mark, datetime):
                left = TimeWindow(start, mark)
                end: Mark = stored_rows.end_of(conn, task.repo_id, task.job_type, left, task.rows)
            else:
                end = min(start + task.rows, mark)
            return (between(start, end),)
        # The watermark was set back behind it.
        reconcile_progress.move(conn, task.repo_id, task.job_type, None, rows=0)
        return ()

    def _move(self, task: ReconcileTask, window: Window, reached: Mark, mark: Mark | None) -> None:
        """The round got to ``reached``; it ends at the watermark that there was when the share began."""
        start = bounds(window)[0]
        if reached == start:
            return
        with self._database.connection() as conn:
            rows = 0
            if isinstance(window, TimeWindow):
                rows = stored_rows.count_in(conn, task.repo_id, task.job_type, between(start, reached))
            reconcile_progress.move(
                conn, task.repo_id, task.job_type, None if reached == mark else reached, rows=rows
            )

    def _repair(self, task: ReconcileTask) -> bool:
        """Queue the repair of what is open, unless one is under way: its results are checked first."""
        with self._database.connection() as conn:
            if reconcile_progress.is_repairing(conn, task.repo_id, task.job_type):
                return False
            starter = self._starter("a comparison found differences")
            return queue_repair(conn, self._settings, task.repo_id, task.job_type, starter) is not None


def _reached(window: Window, result: Result, *, whole: bool) -> Mark:
    """How far a probe of ``window`` got: to its end, or to where the parts end that say something."""
    start, end = bounds(window)
    conclusive = [part["window"] for part in result.parts if part["status"] != INCONCLUSIVE]
    reached: Mark = end if whole else max([start, *(bounds(window)[1] for window in conclusive)])
    return reached


def _asset(row: dict[str, Any], tokens: credentials.Credentials) -> ReconcileAsset:
    """The asset in a row of the snapshot."""
    is_gitlab = row["kind"] == Kind.GITLAB
    return read_row(
        ReconcileAsset,
        row,
        credential=is_gitlab and row["instance"] in tokens.stopped,
        configured=not is_gitlab or tokens.has_token(row["instance"]),
    )
