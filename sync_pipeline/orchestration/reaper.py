"""The reaper's sensor, and the cleanup in Dagster after a process was killed.

Belongs here: asking Dagster about runs, ending those without a process, and freeing the slots of ended ones.
Abandoned records of our own are ended by :mod:`sync_pipeline.scheduling.reaper`. The name is fixed:
Dagster keeps the switch of a sensor by it.

Dagster's own run monitoring ends a run that did not start or did not stop in time, and one that runs too
long. It does not know that a process is gone whose code server went with it: that is found here.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping
from datetime import UTC, timedelta
from functools import partial

import dagster as dg

from sync_pipeline.core import clock
from sync_pipeline.core.errors import ConfigurationError
from sync_pipeline.database.pool import Database, database_time
from sync_pipeline.ledger import reaping as store
from sync_pipeline.orchestration.dagster_internals import BulkActionStatus
from sync_pipeline.orchestration.processes import Process, end_lost_run, process_of
from sync_pipeline.orchestration.resources import PostgresResource
from sync_pipeline.orchestration.storage import records_problem
from sync_pipeline.orchestration.ticks import UNFINISHED, heartbeat, skips_outages
from sync_pipeline.policy.reaping import Rules, RunInDagster, RunState, loss_reason
from sync_pipeline.scheduling.reaper import AT_ONCE, REAPER, Item, ReapReport, reap, rules_of
from sync_pipeline.settings import Settings

_log = logging.getLogger(__name__)

_AT_WORK = [dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING]
_UNFINISHED_BACKFILLS = (BulkActionStatus.REQUESTED, BulkActionStatus.CANCELING, BulkActionStatus.FAILING)
_BACKFILL_TAG = "dagster/backfill"
_BACKFILL_GRACE = timedelta(hours=1)
_MAX_BACKFILLS_READ = 20
_SLOT_GRACE = timedelta(seconds=60)
# A tick ends well within Dagster's limit; the next tick does the rest.
_TICK_SECONDS = 4.0


class Asked:
    """The states of runs by a Dagster instance."""

    def __init__(self, instance: dg.DagsterInstance) -> None:
        self._instance = instance

    def states(self, run_ids: Collection[str]) -> Mapping[str, RunState]:
        """The state of each of these runs that Dagster knows."""
        return {
            run.run_id: RunState.ENDED if run.is_finished else RunState.LIVES
            for run in self._instance.get_runs(dg.RunsFilter(run_ids=list(run_ids)))
        }


def reaper_sensor(settings: Settings) -> dg.SensorDefinition:
    """The sensor that ends abandoned jobs, runs and leases. Starts nothing."""

    @dg.sensor(
        name=REAPER,
        minimum_interval_seconds=settings.reaper.interval_seconds,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Ends jobs, runs and leases whose owners are gone, and what such runs left in Dagster.",
    )
    @skips_outages
    def reaper(
        context: dg.SensorEvaluationContext,
        settings: dg.ResourceParam[Settings],
        postgres: PostgresResource,
    ) -> dg.SkipReason:
        every = settings.reaper.interval_seconds
        with (
            postgres.database() as database,
            heartbeat(database, settings, REAPER, every=every) as record_tick,
        ):
            report = reap_all(database, settings, context.instance, seconds=_TICK_SECONDS)
            for line in (*(item.line for item in report.items), *report.errors):
                _log.warning("%s", line)
            record_tick(report.summary())
        return dg.SkipReason(report.summary())

    return reaper


def reap_all(
    database: Database,
    settings: Settings,
    instance: dg.DagsterInstance,
    *,
    dry_run: bool = False,
    seconds: float | None = None,
) -> ReapReport:
    """One pass over our own records and then over Dagster's. ``seconds``: no longer than about so long; what
    is left is for the next pass. Raises ConfigurationError as :func:`reap` does."""
    deadline = None if seconds is None else time.monotonic() + seconds
    report = reap(database, settings, Asked(instance), dry_run=dry_run)
    if report.skipped:
        return report
    rules = rules_of(settings)
    for part in (_end_runs, _free_slots, _name_backfills):
        if deadline is not None and time.monotonic() > deadline:
            break
        try:
            part(database, instance, report, rules)
        except ConfigurationError:
            raise
        except Exception as error:
            report.errors.append(records_problem(error))
    return report


def _end_runs(database: Database, instance: dg.DagsterInstance, report: ReapReport, rules: Rules) -> None:
    runs = list(instance.get_runs(dg.RunsFilter(statuses=_AT_WORK), limit=AT_ONCE, ascending=True))
    if not runs:
        return
    with database.connection() as conn:
        now = database_time(conn)
        signs = store.signs_of_life(conn, [run.run_id for run in runs])
    for run in runs:
        sign = signs.get(run.run_id)
        process = process_of(run)
        facts = RunInDagster(
            process_gone=process is Process.GONE,
            process_lives=process is Process.LIVES,
            claims_live=bool(sign and sign["claims_live"]),
            last_sign=sign["last_sign"] if sign else None,
            lost_at=sign["lost_at"] if sign else None,
        )
        why = loss_reason(facts, now, rules)
        if why is None:
            continue
        report.attempt(
            Item("dagster run", run.run_id, "ended", f"Dagster run {run.run_id} ({run.job_name}): {why}"),
            partial(end_lost_run, instance, run.run_id, why),
        )


def _free_slots(_: Database, instance: dg.DagsterInstance, report: ReapReport, rules: Rules) -> None:
    storage = instance.event_log_storage
    if not storage.supports_global_concurrency_limits:
        return
    holders = {run_id for pool in storage.get_concurrency_keys() for run_id in _holders(instance, pool)}
    if not holders:
        return
    records = instance.get_run_records(dg.RunsFilter(run_ids=sorted(holders)))
    known = {record.dagster_run.run_id: record for record in records}
    ended_before = (clock.now() - _SLOT_GRACE).timestamp()
    for run_id in sorted(holders):
        record = known.get(run_id)
        if record is not None and not (
            record.dagster_run.is_finished and (record.end_time or 0) <= ended_before
        ):
            continue
        what = "ended" if record is not None else "is not known any more"
        line = f"Dagster run {run_id} {what}; the slots of pools that it held are free"
        report.attempt(Item("dagster slot", run_id, "freed", line), partial(_free, instance, run_id))


def _holders(instance: dg.DagsterInstance, pool: str) -> set[str]:
    """The runs that hold a slot of a pool, or wait for one."""
    info = instance.event_log_storage.get_concurrency_info(pool)
    return info.active_run_ids | {step.run_id for step in info.pending_steps}


def _free(instance: dg.DagsterInstance, run_id: str) -> bool:
    instance.event_log_storage.free_concurrency_slots_for_run(run_id)
    return True


def _name_backfills(_: Database, instance: dg.DagsterInstance, report: ReapReport, rules: Rules) -> None:
    """Backfills that are open although all their runs ended long ago. They are only reported: the daemon
    ends them when it can load their code location, and a second writer would overwrite its changes."""
    for status in _UNFINISHED_BACKFILLS:
        for backfill in instance.get_backfills(status=status, limit=_MAX_BACKFILLS_READ):
            tag = {_BACKFILL_TAG: backfill.backfill_id}
            if instance.get_runs_count(dg.RunsFilter(tags=tag, statuses=UNFINISHED)):
                continue
            latest = instance.get_run_records(
                dg.RunsFilter(tags=tag), limit=1, order_by="update_timestamp", ascending=False
            )
            if not latest:
                continue
            quiet = clock.now() - latest[0].update_timestamp.astimezone(UTC)
            if quiet > _BACKFILL_GRACE:
                hours = quiet / timedelta(hours=1)
                line = (
                    f"Dagster backfill {backfill.backfill_id} is {status.value} although its last run ended "
                    f"{hours:.0f} h ago; look whether the daemon runs and loads its code location"
                )
                report.items.append(Item("dagster backfill", backfill.backfill_id, "stuck", line))
