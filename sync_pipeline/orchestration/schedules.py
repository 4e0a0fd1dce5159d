"""What the schedules have in common: one run of their job at a time, a heartbeat, and a reason for each tick
that starts nothing.

Belongs here: the tick of a schedule, and how a fleet-wide asset becomes a job. Does not belong here: what a
job does, and when: that is with each of them. The names are fixed: people and CI call the jobs by them, and
Dagster keeps the switch of a schedule by its name.
"""

# Dagster looks at the annotations of schedules itself, so they cannot be postponed here.

from collections.abc import Callable

import dagster as dg

from sync_pipeline.orchestration.dagster_internals import UnresolvedAssetJobDefinition
from sync_pipeline.orchestration.ticks import UNFINISHED, heartbeat, skips_outages
from sync_pipeline.resources import PostgresResource
from sync_pipeline.settings import Settings
from sync_pipeline.store.database import Database

Look = Callable[[Database, Settings], tuple[bool, str]]
"""Tells whether there is something to do, and that in one line."""


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
    look: Look = lambda database, settings: (True, "started a run"),
) -> dg.ScheduleDefinition:
    """The schedule that starts ``job``, whose name it has, at the times of ``cron`` in UTC: never two runs at
    once, and only where ``look`` finds something to do. ``every`` is the seconds between two ticks."""
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
            heartbeat(database, settings, name, every=every) as say,
        ):
            if context.instance.get_runs_count(dg.RunsFilter(job_name=name, statuses=UNFINISHED)):
                starts, summary = False, "a run is at work"
            else:
                starts, summary = look(database, settings)
            say(summary)
        return dg.RunRequest() if starts else dg.SkipReason(summary)

    return tick
