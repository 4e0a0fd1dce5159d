"""Copies requests of people in the Dagster UI to the ledger.

Belongs here: reading Dagster's backfills and runs, and making the jobs that their steps would make. A
backfill whose code location is away, or whose runs cannot start, would otherwise leave no job in the ledger
and never be retried. Does not belong here: the work (:mod:`~.step`), the plan (:mod:`~.sensors`).

Jobs are left to Dagster's own runs while it makes them. When Dagster is done with a request, the ledger owns
its remaining jobs. The plan starts them, or they are given up where the request was canceled or completed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import dagster as dg
import psycopg

from sync_pipeline.core import clock
from sync_pipeline.core.errors import ConfigurationError, LeaseHeld
from sync_pipeline.core.job_types import FAMILY_OF, Family, by_family
from sync_pipeline.core.model import JobType, Kind, Lifecycle, Mode, Repository, Trigger, Window
from sync_pipeline.core.windows import bounds
from sync_pipeline.database.pool import Database
from sync_pipeline.ledger import dagster_requests as store
from sync_pipeline.ledger import jobs
from sync_pipeline.orchestration.assets import BLOCKS_PER_RUN, DAYS_PER_RUN
from sync_pipeline.orchestration.dagster_internals import (
    BULK_ACTION_TERMINAL_STATUSES,
    BulkActionsFilter,
    BulkActionStatus,
    PartitionBackfill,
)
from sync_pipeline.orchestration.partitions import Partitions, partitions_of, windows_of
from sync_pipeline.orchestration.requests import Requests
from sync_pipeline.orchestration.resources import WatermarkStore
from sync_pipeline.orchestration.run_spec import RunSpec, read_run_spec
from sync_pipeline.orchestration.specs import asset_key
from sync_pipeline.orchestration.storage import is_outage
from sync_pipeline.scheduling import pools
from sync_pipeline.settings import Settings
from sync_pipeline.sync import configuration

_log = logging.getLogger(__name__)

_UI_TAG = "dagster/from_ui"
_BACKFILL_TAG = "dagster/backfill"
# A request that is older than this is ignored, because people have given it up.
_LOOKBACK = timedelta(days=7)
_MAX_ROWS_READ = 50
# The tick has other work; the next one takes over the rest.
_SECONDS = 5.0
# A run that was put down is asked about for so long.
_PUT_DOWN_LATELY = timedelta(hours=1)
_TAKEN_BACK = {BulkActionStatus.CANCELING, BulkActionStatus.CANCELED}
_DONE = {BulkActionStatus.COMPLETED_SUCCESS, BulkActionStatus.COMPLETED}

_Wanted = Callable[[Repository, JobType], Sequence[str]]


@dataclass(frozen=True, slots=True)
class _Asked:
    """One request for one repository: the orders of its runs, for these job types."""

    repository: Repository
    family: Family
    job_types: tuple[JobType, ...]
    orders: tuple[RunSpec, ...]
    skipped: int = 0


class UiRequests:
    """Takes over what people asked for, for the repositories of one code location. ``days`` are the
    partitions of everything from GitLab."""

    def __init__(
        self,
        instance: dg.DagsterInstance,
        database: Database,
        settings: Settings,
        repositories: Sequence[Repository],
        days: dg.DailyPartitionsDefinition,
    ) -> None:
        self._instance = instance
        self._database = database
        self._settings = settings
        self._days = days
        self._pool = settings.worker.pool
        self._repositories = repositories
        self._known: dict[Family, Partitions] = {}
        self._failures = 0
        self._deadline = time.monotonic() + _SECONDS
        self._now = clock.now()

    def take_over(self) -> tuple[int, int]:
        """Make jobs for all new requests, and settle those that Dagster has finished. Returns the number of
        jobs that were made or found, and how many requests failed in an unexpected way. Those are logged, and
        delay neither the others nor the plan. Raises if a database is unavailable.
        """
        self._failures = 0
        made = self._take_over_backfills() + self._take_over_failed_runs()
        with self._isolated("jobs that were put down"):
            self._revive()
        return made, self._failures

    @contextmanager
    def _isolated(self, what: str) -> Iterator[None]:
        try:
            yield
        except (ConfigurationError, psycopg.OperationalError, psycopg.InterfaceError):
            raise
        except Exception as error:
            if is_outage(error):
                raise
            self._failures += 1
            _log.exception("%s cannot be taken over", what)

    # -- backfills ----------------------------------------------------------------------------------------

    def _take_over_backfills(self) -> int:
        since = self._now - _LOOKBACK
        found = self._instance.get_backfills(
            filters=BulkActionsFilter(created_after=since), limit=_MAX_ROWS_READ
        )
        with self._database.connection() as conn:
            known = store.known(conn, self._pool, [one.backfill_id for one in found])
        made = 0
        for backfill in sorted(found, key=lambda one: one.backfill_timestamp):
            with self._isolated(f"backfill {backfill.backfill_id}"):
                made += self._take_over_backfill(backfill, known.get(backfill.backfill_id))
        return made

    def _take_over_backfill(self, backfill: PartitionBackfill, request: store.Request | None) -> int:
        status = backfill.status
        # Taken back before the ledger knew it, or done by its own runs.
        is_over = status in _TAKEN_BACK or status in _DONE
        if request.ended if request is not None else is_over:
            return 0
        request = request or store.Request(
            backfill.backfill_id,
            "backfill",
            datetime.fromtimestamp(backfill.backfill_timestamp, UTC),
            backfill.user or str(Trigger.UI),
            status.value,
        )
        before = request.job_count
        if not is_over and not request.complete:
            request = self._record(request, self._of_backfill(backfill))
        self._settle(request, status)
        return request.job_count - before

    def _settle(self, request: store.Request, status: BulkActionStatus) -> None:
        ended = status in BULK_ACTION_TERMINAL_STATUSES
        if status is not BulkActionStatus.CANCELED and status not in _DONE:
            # A long request is taken over in several ticks, also when Dagster has given it up.
            ended = ended and request.complete
        reason = f"backfill {request.request_id}"
        with self._database.connection() as conn, conn.transaction():
            if status is BulkActionStatus.CANCELED:
                store.give_up(conn, reason, code="cancelled", error="the backfill was canceled in Dagster")
            elif status in _DONE:
                store.give_up(conn, reason, code="superseded", error="the runs of the backfill did it")
            elif ended:
                left = store.undispatch(conn, reason)
                _log.warning("%s ended as %s; the ledger does its %d open jobs", reason, status.value, left)
            store.put(conn, self._pool, replace(request, status=status.value, ended=ended))

    def _of_backfill(self, backfill: PartitionBackfill) -> Iterator[_Asked]:
        """The parts of a backfill for each repository, cut into runs as Dagster cuts it."""
        order = RunSpec(
            mode=Mode.BACKFILL,
            trigger=Trigger.UI,
            actor=backfill.user or str(Trigger.UI),
            reason=f"backfill {backfill.backfill_id}",
            windows=(),
        )
        wanted = self._partitions_wanted(backfill)
        for repository in self._repositories:
            for family, job_types in by_family(pools.job_types_of(self._settings, repository)):
                by_keys: dict[tuple[str, ...], list[JobType]] = {}
                for job_type in job_types:
                    if keys := wanted(repository, job_type):
                        by_keys.setdefault(tuple(sorted(keys)), []).append(job_type)
                for keys, chosen in by_keys.items():
                    windows = windows_of(self._partitions(family), keys)
                    size = 1
                    if backfill.is_asset_backfill:
                        size = BLOCKS_PER_RUN if family.kind is Kind.SVN else DAYS_PER_RUN
                    yield _Asked(
                        repository,
                        family,
                        tuple(chosen),
                        tuple(replace(order, windows=part) for part in in_runs(windows, size)),
                        len(keys) - len(windows),
                    )

    def _partitions_wanted(self, backfill: PartitionBackfill) -> _Wanted:
        if not backfill.is_asset_backfill:
            names, job_name = tuple(backfill.partition_names or ()), backfill.job_name
            return lambda _, job_type: names if FAMILY_OF[job_type].job_name == job_name else ()
        data = backfill.asset_backfill_data
        if data is None:
            # Written by a Dagster before 1.13, which needs the graph of that time.
            raise ValueError("the form of this backfill is not known")
        # Some forms of a subset ask the instance which partitions there are.
        with dg.partition_loading_context(dynamic_partitions_store=self._instance):
            by_key = {
                key: tuple(subset.get_partition_keys())
                for key, subset in data.target_subset.partitions_subsets_by_asset_key.items()
            }
        return lambda repository, job_type: by_key.get(asset_key(repository, job_type), ())

    # -- single runs --------------------------------------------------------------------------------------

    def _take_over_failed_runs(self) -> int:
        """Runs that a person launched and that failed before their step began."""
        records = [
            record
            for record in self._instance.get_run_records(
                dg.RunsFilter(
                    statuses=[dg.DagsterRunStatus.FAILURE],
                    tags={_UI_TAG: "true"},
                    updated_after=self._now - _LOOKBACK,
                ),
                limit=_MAX_ROWS_READ,
            )
            if record.start_time is None and _BACKFILL_TAG not in record.dagster_run.tags
        ]
        if not records:
            return 0
        with self._database.connection() as conn:
            known = store.known(conn, self._pool, [record.dagster_run.run_id for record in records])
        made = 0
        for record in records:
            run = record.dagster_run
            request = known.get(run.run_id) or store.Request(
                run.run_id,
                "run",
                record.create_timestamp.astimezone(UTC),
                run.tags.get("user") or str(Trigger.UI),
                run.status.value,
            )
            if request.ended:
                continue
            before = request.job_count
            with self._isolated(f"run {run.run_id}"):
                asked = list(self._of_run(run))
                request = self._record(request, iter(asked))
                with self._database.connection() as conn:
                    for reason in {order.reason for one in asked for order in one.orders}:
                        store.undispatch(conn, reason)
                    store.put(conn, self._pool, replace(request, ended=request.complete))
            made += request.job_count - before
        return made

    def _of_run(self, run: dg.DagsterRun) -> Iterator[_Asked]:
        for repository in self._repositories:
            for family, job_types in by_family(pools.job_types_of(self._settings, repository)):
                chosen = job_types if run.job_name == family.job_name else ()
                if run.asset_selection is not None:
                    chosen = tuple(j for j in job_types if asset_key(repository, j) in run.asset_selection)
                if not chosen:
                    continue
                try:
                    order = read_run_spec(run.tags, self._partitions(family))
                except ConfigurationError:
                    continue  # its step would refuse it too
                order = replace(order, reason=f"{order.reason} (run {run.run_id})")
                yield _Asked(repository, family, chosen, (order,))

    # -- the ledger ---------------------------------------------------------------------------------------

    def _record(self, request: store.Request, asked: Iterator[_Asked]) -> store.Request:
        """Make the jobs of a request, as far as the time of this tick suffices."""
        for number, one in enumerate(asked):
            if time.monotonic() > self._deadline:
                return request
            if number < request.assets_done:
                continue
            made, skipped = self._enqueue(one)
            request = replace(
                request,
                job_count=request.job_count + made,
                skipped_count=request.skipped_count + skipped,
                assets_done=number + 1,
            )
            with self._database.connection() as conn:
                store.put(conn, self._pool, request)
        return replace(request, complete=True)

    def _partitions(self, family: Family) -> Partitions:
        if family not in self._known:
            self._known[family] = partitions_of(family, self._instance, self._days)
        return self._known[family]

    def _enqueue(self, asked: _Asked) -> tuple[int, int]:
        if asked.repository.lifecycle is not Lifecycle.ACTIVE:
            return 0, sum(len(order.windows) for order in asked.orders) + asked.skipped
        made = []
        for order in asked.orders:
            requests = Requests(asked.family, order, self._days, WatermarkStore(self._database), None)
            for group in requests.groups(asked.repository, asked.job_types):
                for request in map(requests.with_priority, group):
                    with self._database.connection() as conn:
                        try:
                            made.append(
                                jobs.enqueue(
                                    conn,
                                    request,
                                    max_attempts=self._settings.jobs.max_attempts,
                                    config_hash=configuration.keep(conn, self._settings),
                                )
                            )
                        except (LeaseHeld, LookupError):
                            # A repair of the same window reads the requested rows. A repository that is not
                            # in the database, for example after a restore, has nothing to read.
                            continue
        with self._database.connection() as conn:
            store.dispatched(conn, made)
        return len(made), asked.skipped

    # -- jobs that were put down ----------------------------------------------------------------------------

    def _revive(self) -> None:
        """Let jobs wait again whose run was interrupted by no person: the machine or a service stopped."""
        with self._database.connection() as conn:
            found = store.put_down(conn, _PUT_DOWN_LATELY, _MAX_ROWS_READ)
        if not found:
            return
        runs = self._instance.get_runs(dg.RunsFilter(run_ids=sorted(set(found.values()))))
        failed = {run.run_id for run in runs if run.status is dg.DagsterRunStatus.FAILURE}
        again = [job_id for job_id, run_id in found.items() if run_id in failed]
        if again:
            with self._database.connection() as conn:
                number = store.revive(conn, again)
            _log.warning("%d jobs wait again: their run was interrupted, and no person ended it", number)


def in_runs(windows: Sequence[Window], size: int) -> list[tuple[Window, ...]]:
    """Partitions as Dagster's backfill cuts them into runs: neighbours together, ``size`` at most, from the
    oldest on."""
    found: list[list[Window]] = []
    for window in sorted(windows, key=bounds):
        last = found[-1] if found else []
        if last and len(last) < size and bounds(last[-1])[1] == bounds(window)[0]:
            last.append(window)
        else:
            found.append([window])
    return [tuple(part) for part in found]
