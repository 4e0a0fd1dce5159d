"""The schedules ``full_sync`` and ``repair_recent``: when something is read again by itself.

Belongs here: the times, and the Dagster jobs that write the ledger. What is queued is decided in
:mod:`sync_pipeline.policy.rereading` and started by the scheduler within its caps, so a schedule that is off,
late or there twice does no harm. The names are fixed: Dagster keeps the switches by them.
"""

# Dagster looks at the annotations of ops and schedules itself, so they cannot be postponed here.

from dataclasses import dataclass

import dagster as dg

from sync_pipeline.model import Trigger
from sync_pipeline.operations.rereading import Queued, Rereading, queue
from sync_pipeline.orchestration.processes import sign
from sync_pipeline.orchestration.ticks import UNFINISHED, heartbeat, skips_outages
from sync_pipeline.resources import PostgresResource
from sync_pipeline.settings import Settings
from sync_pipeline.store.database import Database


@dataclass(frozen=True)
class _When:
    cron: str
    every: float
    description: str


_WHEN = {
    Rereading.FULL_SYNC: _When("0 2 * * *", 86_400.0, "Queue the last days (SVN: blocks) to be read again."),
    Rereading.REPAIR_RECENT: _When("37 * * * *", 3600.0, "Queue the recent window again after an outage."),
}


def rereading_jobs() -> dict[Rereading, dg.JobDefinition]:
    """The jobs that queue; each writes the ledger and reads no source."""
    return {what: _job(what) for what in Rereading}


def rereading_schedules(jobs: dict[Rereading, dg.JobDefinition]) -> list[dg.ScheduleDefinition]:
    """The schedules that start ``jobs`` where there is something to queue."""
    return [_schedule(what, job) for what, job in jobs.items()]


def _job(what: Rereading) -> dg.JobDefinition:
    @dg.op(name=f"queue_{what}", description=_WHEN[what].description)
    def queue_again(
        context: dg.OpExecutionContext, settings: dg.ResourceParam[Settings], postgres: PostgresResource
    ) -> None:
        sign(context.instance, context.run)
        with postgres.database(max_size=1) as database:
            context.log.info(_queue(database, settings, what, execute=True).said())

    @dg.job(name=str(what), description=_WHEN[what].description, executor_def=dg.in_process_executor)
    def rereading() -> None:
        queue_again()

    return rereading


def _schedule(what: Rereading, job: dg.JobDefinition) -> dg.ScheduleDefinition:
    when = _WHEN[what]

    @dg.schedule(
        name=str(what),
        job=job,
        cron_schedule=when.cron,
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description=when.description,
    )
    @skips_outages
    def rereading(
        context: dg.ScheduleEvaluationContext,
        settings: dg.ResourceParam[Settings],
        postgres: PostgresResource,
    ) -> dg.RunRequest | dg.SkipReason:
        with (
            postgres.database(max_size=1) as database,
            heartbeat(database, settings, str(what), every=when.every) as say,
        ):
            found = _queue(database, settings, what, execute=False)
            said = found.said()
            if found.pieces and context.instance.get_runs_count(
                dg.RunsFilter(job_name=str(what), statuses=UNFINISHED)
            ):
                found.pieces.clear()
                said = "a run is at work"
            say(said)
        return dg.RunRequest() if found.pieces else dg.SkipReason(said)

    return rereading


def _queue(database: Database, settings: Settings, what: Rereading, *, execute: bool) -> Queued:
    return queue(database, settings, what, execute=execute, actor=str(what), trigger=Trigger.SENSOR)
