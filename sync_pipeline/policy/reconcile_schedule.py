"""The reconcile schedule: which windows are compared with their source next, and with how many requests.

Belongs here: pure decisions over one snapshot: the tasks that are due, their order, and the share of the
hour's requests that each gets. Does not belong here: reading the snapshot
(:mod:`sync_pipeline.ledger.reconcile_progress`), running tasks
(:mod:`sync_pipeline.scheduling.reconcile_schedule`), and the consequences of a difference
(:mod:`sync_pipeline.policy.reconciliation`).

Each asset has up to three tasks an hour, one of each :class:`TaskReason`. Within a kind the asset whose
latest task is the longest ago goes first, whatever its result, so that no asset starves. The tasks of
``history`` are the rolling scan: a round of them compares every stored row once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from math import ceil
from typing import Any

from sync_pipeline.core.job_types import DECLARED
from sync_pipeline.core.model import Access, Depth, JobType, Lifecycle, RevisionWindow, TimeWindow, Window
from sync_pipeline.core.windows import between, bounds, hull

REVISIONS_RECENT = 1000
"""The newest part of revisions, which have no time."""

MAX_TASK_WINDOWS = 10
"""Windows around places of open differences that one task compares at most."""

_MIN_ROWS = 20
_MIN_REVISIONS = 1000
# Places so close together are compared as one window, which costs no more than two.
_CLOSE = timedelta(hours=1)
_STEP = timedelta(milliseconds=1)
_HOUR = timedelta(hours=1)
_AFTER_A_DEAD_REPAIR = timedelta(days=1)

_NO_ACCESS = frozenset({Access.DENIED, Access.GONE, Access.DISABLED})

Mark = int | datetime
"""A revision, or a moment of a source's time."""


class TaskReason(StrEnum):
    """The kind of a task, most urgent first. ``places`` are open differences whose repair ended or whose
    deletion has to be confirmed. ``recent`` is the newest part, ``history`` the next share of everything.
    """

    PLACES = "places"
    RECENT = "recent"
    HISTORY = "history"


class SkipReason(StrEnum):
    """The reason why nothing of an asset is compared."""

    RETIRED = "retired"
    NOT_CONFIGURED = "not_configured"
    CREDENTIAL = "credential"
    REPLACED = "replaced"
    NO_ACCESS = "no_access"
    EMPTY = "empty"
    NEVER_READ = "never_read"
    RUNNING = "running"


@dataclass(frozen=True, slots=True)
class ReconcileAsset:
    """One asset as the plan sees it. Times are UTC by the database's clock, except marks.

    ``watermark`` is the end of what is complete, ``covered_from`` the start of all that is covered.
    ``credential``: the token in force is refused; ``configured`` is False where the settings have no such
    server. ``probed``: a probe of it runs. ``places`` of open differences are due, with ``anywhere`` also
    some without a place; ``open`` are all differences, of which ``escalated`` wait for a person.
    ``repairing``: a job of repair waits or runs; ``repair_died_at`` is when the latest died. ``places_at``,
    ``recent_at`` and ``history_at`` are when the latest task of each kind was. ``next`` is the position of
    the round, None at its beginning. ``round_rows`` were stored when it began, and ``round_done`` of them are
    before ``next``. Both are unused for revisions, whose numbers count instead.
    """

    repo_id: int
    job_type: JobType
    instance: str
    lifecycle: Lifecycle = Lifecycle.ACTIVE
    access: Access = Access.OK
    credential: bool = False
    configured: bool = True
    probed: bool = False
    watermark: Mark | None = None
    covered_from: Mark | None = None
    places: tuple[Window, ...] = ()
    anywhere: bool = False
    open: int = 0
    escalated: int = 0
    repairing: bool = False
    repair_died_at: datetime | None = None
    places_at: datetime | None = None
    recent_at: datetime | None = None
    history_at: datetime | None = None
    next: Mark | None = None
    round_began_at: datetime | None = None
    round_ended_at: datetime | None = None
    round_rows: int = 0
    round_done: int = 0

    @property
    def key(self) -> tuple[int, JobType]:
        """The asset."""
        return self.repo_id, self.job_type

    @property
    def is_under_way(self) -> bool:
        """True if a round has begun and not ended."""
        began, ended = self.round_began_at, self.round_ended_at
        return began is not None and (ended is None or ended < began)


@dataclass(frozen=True, slots=True)
class ReconcileLimits:
    """``requests`` are per instance and clock hour. ``recent`` is the length of the newest part. ``round`` is
    the time in which everything is compared once.
    """

    requests: int
    recent: timedelta
    round: timedelta


@dataclass(frozen=True, slots=True)
class ReconcileTask:
    """The windows that one asset compares in one go.

    ``windows`` are compared one after the other. A share of history has none yet: it goes from ``start`` over
    ``rows`` stored rows, or to the watermark if there are fewer. ``begins``: it starts a new round. ``calls``
    is how many requests it takes, about.
    """

    repo_id: int
    job_type: JobType
    instance: str
    reason: TaskReason
    depth: Depth
    calls: int
    windows: tuple[Window, ...] = ()
    start: Mark | None = None
    rows: int = 0
    begins: bool = False

    @property
    def key(self) -> tuple[int, JobType]:
        """The asset of the task."""
        return self.repo_id, self.job_type


def plan(
    assets: Iterable[ReconcileAsset], limits: ReconcileLimits, now: datetime
) -> tuple[list[ReconcileTask], dict[tuple[int, JobType], SkipReason]]:
    """The tasks that are due, in their order, and the assets that are left out."""
    left_out: dict[tuple[int, JobType], SkipReason] = {}
    found: list[tuple[tuple[int, datetime, int, JobType], ReconcileTask]] = []
    order = list(TaskReason)
    for asset in assets:
        reason = skip_reason(asset)
        if reason is not None:
            left_out[asset.key] = reason
            continue
        for task, latest in (
            (_compare_differences(asset), asset.places_at),
            (_of_recent(asset, limits, now), asset.recent_at),
            (_of_history(asset, limits, now), asset.history_at),
        ):
            if task is not None:
                since = latest or datetime.min.replace(tzinfo=UTC)
                found.append(((order.index(task.reason), since, asset.repo_id, asset.job_type), task))
    found.sort(key=lambda one: one[0])
    return [task for _, task in found], left_out


def skip_reason(asset: ReconcileAsset) -> SkipReason | None:
    """The reason why nothing of ``asset`` is compared; None where it is."""
    if asset.lifecycle is Lifecycle.RETIRED:
        return SkipReason.RETIRED
    if not asset.configured:
        return SkipReason.NOT_CONFIGURED
    if asset.credential:
        return SkipReason.CREDENTIAL
    if asset.access is Access.REPLACED:
        return SkipReason.REPLACED
    if asset.access in _NO_ACCESS:
        return SkipReason.NO_ACCESS
    if asset.access is Access.EMPTY:
        return SkipReason.EMPTY
    if asset.watermark is None or asset.covered_from is None or asset.watermark <= asset.covered_from:  # type: ignore[operator]
        return SkipReason.NEVER_READ
    return SkipReason.RUNNING if asset.probed else None


def is_repair_due(asset: ReconcileAsset, now: datetime) -> bool:
    """True if a repair of the open differences may be queued. None waits, runs or died lately, and the result
    of the earlier one has been compared.
    """
    if skip_reason(asset) is not None or asset.open <= asset.escalated:
        return False
    if asset.repairing or asset.places or asset.anywhere:
        return False
    return asset.repair_died_at is None or now - asset.repair_died_at >= _AFTER_A_DEAD_REPAIR


def sent_before(now: int, last_hour: int, limits: ReconcileLimits) -> int:
    """Requests that count against this hour: those sent in it, and the excess of the last hour. A started
    piece is always finished, so it may exceed its hour.
    """
    return now + max(0, last_hour - limits.requests)


# Tasks ---------------------------------------------------------------------------------------------------


def _compare_differences(asset: ReconcileAsset) -> ReconcileTask | None:
    windows = around(asset.places)[:MAX_TASK_WINDOWS]
    if not windows and asset.anywhere:
        # Every comparison checks the differences without a place, so the window may be almost empty.
        windows = [_almost_empty(asset)]
    if not windows:
        return None
    return _task(
        asset,
        TaskReason.PLACES,
        Depth.DETAILS,
        len(windows) * calls_for(asset.job_type, 1),
        windows=tuple(windows),
    )


def _task(
    asset: ReconcileAsset, reason: TaskReason, depth: Depth, calls: int, **range_: Any
) -> ReconcileTask:
    return ReconcileTask(asset.repo_id, asset.job_type, asset.instance, reason, depth, calls, **range_)


def around(places: Iterable[Window]) -> list[Window]:
    """Few small windows that hold ``places``, which are of one kind, in order."""
    found: list[Window] = []
    for place in sorted(places, key=bounds):
        if found and _is_close(found[-1], place):
            whole = hull([found[-1], place])
            assert whole is not None
            found[-1] = whole
        else:
            found.append(place)
    return found


def _is_close(before: Window, after: Window) -> bool:
    length = bounds(after)[1] - bounds(before)[0]
    return bool(length <= (_MIN_REVISIONS if isinstance(before, RevisionWindow) else _CLOSE))


def _almost_empty(asset: ReconcileAsset) -> Window:
    mark: Any = asset.watermark
    if isinstance(mark, datetime):
        # Not the very last moment: rows with a date in the future belong to that.
        return TimeWindow(mark - 2 * _STEP, mark - _STEP)
    return RevisionWindow(mark - 1, mark)


def _of_recent(asset: ReconcileAsset, limits: ReconcileLimits, now: datetime) -> ReconcileTask | None:
    if asset.recent_at is not None and asset.recent_at >= hour_of(now):
        return None
    mark: Any = asset.watermark
    start = mark - (limits.recent if isinstance(mark, datetime) else REVISIONS_RECENT)
    window = between(max(asset.covered_from, start), mark)
    return _task(asset, TaskReason.RECENT, Depth.LISTING, calls_for(asset.job_type, 0), windows=(window,))


def _of_history(asset: ReconcileAsset, limits: ReconcileLimits, now: datetime) -> ReconcileTask | None:
    begins = not asset.is_under_way
    if begins and asset.round_began_at is not None and now < asset.round_began_at + limits.round:
        return None
    if begins:
        done, passed = 0, 0.0
    else:
        assert asset.round_began_at is not None
        passed = (now - asset.round_began_at) / limits.round
        done = rows_done(asset)
        if done > min(1.0, passed) * rows_of_round(asset):
            return None
    start = asset.covered_from if begins or asset.next is None else asset.next
    assert start is not None
    rows = rows_of_round(asset)
    share = rows * min(1.0, passed + _HOUR / limits.round) - done
    least = _MIN_REVISIONS if isinstance(start, int) else _MIN_ROWS
    wanted = min(max(least, ceil(share)), _affordable(asset.job_type, limits))
    return _task(
        asset,
        TaskReason.HISTORY,
        Depth.DETAILS,
        calls_for(asset.job_type, wanted),
        start=start,
        rows=wanted,
        begins=begins,
    )


def rows_of_round(asset: ReconcileAsset) -> int:
    """How many rows the round of ``asset`` goes over."""
    if isinstance(asset.watermark, int):
        assert isinstance(asset.covered_from, int)
        return asset.watermark - asset.covered_from
    return asset.round_rows


def rows_done(asset: ReconcileAsset) -> int:
    """How many of them have been compared in the round that is under way."""
    if not asset.is_under_way:
        return 0
    if isinstance(asset.next, int):
        assert isinstance(asset.covered_from, int)
        return max(0, asset.next - asset.covered_from)
    return min(asset.round_done, asset.round_rows)


def share_compared(asset: ReconcileAsset, limits: ReconcileLimits, now: datetime) -> float:
    """Which share of the rows was compared within the time of a round, from 0 to 1."""
    if asset.round_began_at is None:
        return 0.0
    if not asset.is_under_way:
        assert asset.round_ended_at is not None
        length, late = asset.round_ended_at - asset.round_began_at, now - limits.round - asset.round_began_at
        return 1.0 if late <= timedelta(0) else max(0.0, 1.0 - late / length) if length else 0.0
    passed = (now - asset.round_began_at) / limits.round
    rows = rows_of_round(asset)
    done = rows_done(asset) / rows if rows else 1.0
    # The previous round compared the rest, at the same distance from its beginning.
    before = max(0.0, 1.0 - max(done, passed)) if asset.round_ended_at is not None else 0.0
    return min(1.0, done + before)


def calls_for(job_type: JobType, rows: int) -> int:
    """How many requests comparing ``rows`` with their details takes, about."""
    declared = DECLARED[job_type]
    return declared.compare_calls + ceil(rows * declared.compare_row_calls)


def _affordable(job_type: JobType, limits: ReconcileLimits) -> int:
    """How many rows fit into a third of the requests of an hour."""
    declared = DECLARED[job_type]
    return max(1, int((limits.requests // 3 - declared.compare_calls) / declared.compare_row_calls))


def hour_of(moment: datetime) -> datetime:
    """The start of its hour; requests are counted by hours of the clock."""
    return moment.replace(minute=0, second=0, microsecond=0)


# Requests ------------------------------------------------------------------------------------------------


@dataclass
class _Spent:
    """Requests of one instance: those of this run by kind, those reserved by running tasks, and those that
    were sent in this hour before.
    """

    before: int
    by_reason: dict[TaskReason, int] = field(default_factory=lambda: dict.fromkeys(TaskReason, 0))
    reserved: dict[int, tuple[TaskReason, int]] = field(default_factory=dict)

    def of(self, reason: TaskReason) -> int:
        return self.by_reason[reason] + sum(calls for kind, calls in self.reserved.values() if kind is reason)

    @property
    def total(self) -> int:
        return self.before + sum(self.of(reason) for reason in TaskReason)


class RequestBudget:
    """The requests of an hour, shared among tasks.

    Each kind of task has a third of its own at every instance, so that none starves however long another one
    is. Requests that a kind does not need go to the others afterwards, in their order. The requests that a
    running task may send are reserved until it ends. ``sent`` were sent to each instance in this hour before.
    """

    def __init__(
        self, tasks: Sequence[ReconcileTask], limits: ReconcileLimits, sent: Mapping[str, int]
    ) -> None:
        self._waiting = list(tasks)
        self._third = limits.requests // 3
        self._all = limits.requests
        self._spent = {task.instance: _Spent(sent.get(task.instance, 0)) for task in tasks}

    def next(self) -> tuple[ReconcileTask, int] | None:
        """The next task, and how many requests it may send; None where there is none at this moment. Call
        :meth:`ended` when it is over, and ask again."""
        for whole in (False, True):
            left = {
                (instance, reason): self._left(spent, reason, whole=whole)
                for instance, spent in self._spent.items()
                for reason in TaskReason
            }
            for n, task in enumerate(self._waiting):
                here = left[task.instance, task.reason]
                reserved = self._spent[task.instance].reserved
                if here >= min(task.calls, self._third) and here > 0 and task.repo_id not in reserved:
                    del self._waiting[n]
                    allowed = here if whole else self._allowance(task, here)
                    reserved[task.repo_id] = task.reason, allowed
                    return task, allowed
        return None

    def _left(self, spent: _Spent, reason: TaskReason, *, whole: bool) -> int:
        left = self._all - spent.total
        if whole:
            # The rest is shared when it is known how much is left.
            return 0 if spent.reserved else left
        return min(left, self._third - spent.of(reason))

    def _allowance(self, task: ReconcileTask, left: int) -> int:
        """About twice the expected requests, so that others can run beside it; at least half of the rest."""
        return min(left, max(2 * task.calls, left // 2))

    def ended(self, task: ReconcileTask, calls: int) -> None:
        """``task`` is over and has sent ``calls`` requests."""
        spent = self._spent[task.instance]
        spent.reserved.pop(task.repo_id)
        spent.by_reason[task.reason] += calls

    def drop(self, unwanted: Iterable[tuple[int, JobType]] = (), instance: str | None = None) -> None:
        """Start no more tasks of these assets, or of ``instance``."""
        keys = set(unwanted)
        self._waiting = [t for t in self._waiting if t.key not in keys and t.instance != instance]

    @property
    def waiting(self) -> tuple[ReconcileTask, ...]:
        """Tasks that got no requests, in their order."""
        return tuple(self._waiting)
