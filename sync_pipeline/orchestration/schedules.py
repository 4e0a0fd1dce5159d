"""The tick that all schedules share, and the schedules ``full_sync`` and ``repair_recent``.

A tick starts at most one run of its job at a time, writes a heartbeat, and gives a reason if it starts
nothing. ``full_sync`` and ``repair_recent`` queue rereads. The scheduler starts these within its caps, so a
schedule that is off, late or duplicated is harmless.

Belongs here: also how a fleet-wide asset becomes a job. Does not belong here: which windows are queued
(:mod:`sync_pipeline.policy.resync`). The names are fixed: people and CI call the jobs by them, and Dagster
keeps the switch of a schedule by its name.
"""

# Dagster looks at the annotations of ops and schedules itself, so they cannot be postponed here.

from collections.abc import Callable
from dataclasses import dataclass

import dagster as dg

from sync_pipeline.core.model import Trigger
from sync_pipeline.database.pool import Database
from sync_pipeline.orchestration.dagster_internals import UnresolvedAssetJobDefinition
from sync_pipeline.orchestration.failures import refusing
from sync_pipeline.orchestration.processes import sign
from sync_pipeline.orchestration.resources import PostgresResource
from sync_pipeline.orchestration.ticks import UNFINISHED, heartbeat, skips_outages
from sync_pipeline.scheduling.resync import Queued, Resync, queue
from sync_pipeline.settings import Settings

Check = Callable[[Database, Settings], tuple[bool, str]]
"""Returns whether there is something to do, and one line about it."""


def fleet_job(name: str, key: dg.AssetKey, description: str) -> UnresolvedAssetJobDefinition:
    """The job ``name`` that materializes a fleet-wide asset in one process."""
    return dg.define_asset_job(
        name,
        selection=dg.AssetSelection.assets(key),
        description=description,
        executor_def=dg.in_process_executor,
    )


def schedule_of(
    job: UnresolvedAssetJobDefinition | dg.JobDefinition,
    *,
    cron: str,
    every: float,
    description: str,
    check: Check = lambda database, settings: (True, "started a run"),
) -> dg.ScheduleDefinition:
    """The schedule that starts ``job``, with the same name, at the times of ``cron`` in UTC. It never starts
    two runs at once, and starts one only if ``check`` finds something to do. ``every`` is the seconds between
    two ticks.
    """
    name = job.name

    @dg.schedule(
        name=name,
        job=job,
        cron_schedule=cron,
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description=description,
    )
    @skips_outages
    def tick(
        context: dg.ScheduleEvaluationContext,
        settings: dg.ResourceParam[Settings],
        postgres: PostgresResource,
    ) -> dg.RunRequest | dg.SkipReason:
        with (
            postgres.database(max_size=1) as database,
            heartbeat(database, settings, name, every=every) as record_tick,
        ):
            if context.instance.get_runs_count(dg.RunsFilter(job_name=name, statuses=UNFINISHED)):
                starts, summary = False, "a run is at work"
            else:
                starts, summary = check(database, settings)
            record_tick(summary)
        return dg.RunRequest() if starts else dg.SkipReason(summary)

    return tick


# The schedules of resync --------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Timing:
    cron: str
    every: float
    description: str


_TIMINGS = {
    Resync.FULL_SYNC: _Timing("0 2 * * *", 86_400.0, "Queue the last days (SVN: blocks) to be read again."),
    Resync.REPAIR_RECENT: _Timing("37 * * * *", 3600.0, "Queue the recent window again after an outage."),
}


def resync_schedules() -> list[dg.ScheduleDefinition]:
    """The schedules and their jobs. A job writes the ledger and reads no source."""
    return [_schedule(what) for what in Resync]


def _job(what: Resync) -> dg.JobDefinition:
    @dg.op(name=f"queue_{what}", description=_TIMINGS[what].description)
    def queue_again(
        context: dg.OpExecutionContext, settings: dg.ResourceParam[Settings], postgres: PostgresResource
    ) -> None:
        sign(context.instance, context.run)
        with refusing(), postgres.database(max_size=1) as database:
            context.log.info(_queue(database, settings, what, execute=True).summary())

    @dg.job(name=str(what), description=_TIMINGS[what].description, executor_def=dg.in_process_executor)
    def resync() -> None:
        queue_again()

    return resync


def _schedule(what: Resync) -> dg.ScheduleDefinition:
    def check(database: Database, settings: Settings) -> tuple[bool, str]:
        found = _queue(database, settings, what, execute=False)
        return bool(found.pieces), found.summary()

    timing = _TIMINGS[what]
    return schedule_of(
        _job(what), cron=timing.cron, every=timing.every, description=timing.description, check=check
    )


def _queue(database: Database, settings: Settings, what: Resync, *, execute: bool) -> Queued:
    return queue(database, settings, what, execute=execute, actor=str(what), trigger=Trigger.SENSOR)
