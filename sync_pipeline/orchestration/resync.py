"""The schedules ``full_sync`` and ``repair_recent``: when something is read again by itself.

Belongs here: the times, and the Dagster jobs that write the ledger. What is queued is decided in
:mod:`sync_pipeline.policy.resync` and started by the scheduler within its caps, so a schedule that is off,
late or there twice does no harm.
"""

# Dagster looks at the annotations of ops and schedules itself, so they cannot be postponed here.

from dataclasses import dataclass

import dagster as dg

from sync_pipeline.model import Trigger
from sync_pipeline.operations.resync import Queued, Resync, queue
from sync_pipeline.orchestration.failures import refusing
from sync_pipeline.orchestration.processes import sign
from sync_pipeline.orchestration.schedules import schedule_of
from sync_pipeline.resources import PostgresResource
from sync_pipeline.settings import Settings
from sync_pipeline.store.database import Database


@dataclass(frozen=True)
class _When:
    cron: str
    every: float
    description: str


_WHEN = {
    Resync.FULL_SYNC: _When("0 2 * * *", 86_400.0, "Queue the last days (SVN: blocks) to be read again."),
    Resync.REPAIR_RECENT: _When("37 * * * *", 3600.0, "Queue the recent window again after an outage."),
}


def rereading_jobs() -> dict[Resync, dg.JobDefinition]:
    """The jobs that queue; each writes the ledger and reads no source."""
    return {what: _job(what) for what in Resync}


def rereading_schedules(jobs: dict[Resync, dg.JobDefinition]) -> list[dg.ScheduleDefinition]:
    """The schedules that start ``jobs`` where there is something to queue."""
    return [_schedule(what, job) for what, job in jobs.items()]


def _job(what: Resync) -> dg.JobDefinition:
    @dg.op(name=f"queue_{what}", description=_WHEN[what].description)
    def queue_again(
        context: dg.OpExecutionContext, settings: dg.ResourceParam[Settings], postgres: PostgresResource
    ) -> None:
        sign(context.instance, context.run)
        with refusing(), postgres.database(max_size=1) as database:
            context.log.info(_queue(database, settings, what, execute=True).summary())

    @dg.job(name=str(what), description=_WHEN[what].description, executor_def=dg.in_process_executor)
    def rereading() -> None:
        queue_again()

    return rereading


def _schedule(what: Resync, job: dg.JobDefinition) -> dg.ScheduleDefinition:
    def look(database: Database, settings: Settings) -> tuple[bool, str]:
        found = _queue(database, settings, what, execute=False)
        return bool(found.pieces), found.summary()

    when = _WHEN[what]
    return schedule_of(job, cron=when.cron, every=when.every, description=when.description, look=look)


def _queue(database: Database, settings: Settings, what: Resync, *, execute: bool) -> Queued:
    return queue(database, settings, what, execute=execute, actor=str(what), trigger=Trigger.SENSOR)
