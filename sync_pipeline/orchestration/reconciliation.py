"""Reconciliation: the fleet-wide asset that compares what is stored with its sources, and its schedule.

Belongs here: its schedule, and the results that a run reports to Dagster. The tasks are decided in
:mod:`sync_pipeline.policy.reconcile_schedule` and run in :mod:`sync_pipeline.scheduling.reconcile_schedule`;
:mod:`sync_pipeline.orchestration.reconciliation_page` makes the metadata."""

# Dagster looks at the annotations of assets and schedules itself, so they cannot be postponed here.

import time
from collections.abc import Iterator, Sequence

import dagster as dg

from sync_pipeline.core.errors import ConfigurationError
from sync_pipeline.core.model import Kind, Repository
from sync_pipeline.database.pool import connections_for
from sync_pipeline.orchestration.asset_page import AssetPages
from sync_pipeline.orchestration.dagster_internals import UnresolvedAssetJobDefinition
from sync_pipeline.orchestration.failures import failed, refused
from sync_pipeline.orchestration.processes import sign
from sync_pipeline.orchestration.resources import GitLabResource, PostgresResource, WatermarkStore
from sync_pipeline.orchestration.schedules import fleet_job, schedule_of
from sync_pipeline.orchestration.specs import TABLE_NAME, fleet_key
from sync_pipeline.orchestration.step import materialize_days
from sync_pipeline.scheduling.reconcile_schedule import ReconcileRound, ReconcileSchedule
from sync_pipeline.settings import Settings

RECONCILE = "reconcile"

# A run ends before the next one is due, and before run monitoring ends it.
_LONGEST = 45 * 60.0
_SHARE_OF_RUN_TIME = 0.7
_HOUR = 3600.0


def reconciliation_key(settings: Settings) -> dg.AssetKey:
    """The key of the asset."""
    return fleet_key("reconciliation", settings)


def reconciliation_asset(
    repositories: Sequence[Repository], days: dg.DailyPartitionsDefinition, settings: Settings
) -> dg.AssetsDefinition:
    """The asset: each materialization is one run of comparisons over ``repositories``. ``days`` are the
    partitions of everything from GitLab."""
    key = reconciliation_key(settings)
    by_id = {repository.repo_id: repository for repository in repositories}

    @dg.multi_asset(
        name="reconciliation",
        specs=[
            dg.AssetSpec(
                key,
                group_name="fleet",
                kinds={"postgres"},
                description="Health of the installation: see its checks (docs/health.md). Its runs compare "
                "stored rows with the sources, a share at a time (docs/reconciliation.md). "
                "Jobs of the scheduler repair differences.",
                owners=settings.asset_owners,
                metadata={TABLE_NAME: "scm.reconciliations"},
            )
        ],
    )
    def reconciliation(
        context: dg.AssetExecutionContext,
        settings: dg.ResourceParam[Settings],
        postgres: PostgresResource,
        gitlab: GitLabResource,
    ) -> Iterator[dg.MaterializeResult]:  # type: ignore[type-arg]
        # Plots come with it, which a code location does not need to load.
        from sync_pipeline.orchestration.reconciliation_page import metadata_of

        sign(context.instance, context.run)
        try:
            with postgres.database(max_size=connections_for(settings.jobs.parallel_repositories)) as database:
                schedule = ReconcileSchedule(
                    database,
                    settings,
                    gitlab.readers(database),
                    by_id,
                    deadline=_deadline(context),
                    dagster_run_id=context.run.run_id,
                )
                watermarks, pages = WatermarkStore(database), AssetPages(database, settings)
                for outcome in schedule.run():
                    for report in outcome.visits:
                        if by_id[report.repo_id].kind is Kind.GITLAB:
                            # A visit shows the days that it finished, as live syncing does.
                            materialize_days(context, by_id[report.repo_id], report, days, watermarks, pages)
                off = "sweep_enabled is false; " if not settings.reconcile.enabled else ""
                context.log.info(off + summary(schedule.round))
                yield dg.MaterializeResult(
                    asset_key=key,
                    metadata=metadata_of(database, settings, schedule.round, by_id),
                )
        except ConfigurationError as error:
            raise refused(error) from None
        _fail_if_any(schedule.round, by_id)

    return reconciliation


def reconciliation_job(settings: Settings) -> UnresolvedAssetJobDefinition:
    """The job that materializes the asset; ``dagster job execute -j reconcile`` compares once."""
    return fleet_job(
        RECONCILE,
        reconciliation_key(settings),
        "Compare what is due with its sources, within the requests of this hour.",
    )


def reconciliation_schedule(job: UnresolvedAssetJobDefinition) -> dg.ScheduleDefinition:
    """The schedule that starts ``job`` every hour."""
    return schedule_of(
        job,
        cron="17 * * * *",
        every=_HOUR,
        description="Compares the newest part and the next share of all history with its sources.",
    )


def summary(ran: ReconcileRound) -> str:
    """A run in one line."""
    differences = sum(outcome.count(kind) for outcome in ran.outcomes for kind in _KINDS)
    unclear = sum(outcome.error is not None for outcome in ran.outcomes)
    return (
        f"{len(ran.outcomes)} turns, {sum(ran.sent.values())} requests in this hour; {differences} "
        f"differences, {ran.repairs} repairs queued, {unclear} turns inconclusive, {ran.waiting} wait"
    )


_KINDS = ("missing", "extra", "changed")


def _deadline(context: dg.AssetExecutionContext) -> float:
    limit = context.instance.run_monitoring_max_runtime_seconds
    return time.monotonic() + min(_LONGEST, _SHARE_OF_RUN_TIME * limit if limit else _LONGEST)


def _fail_if_any(ran: ReconcileRound, by_id: dict[int, Repository]) -> None:
    """Raise every defect of ours or of the installation. Failures of a source do not fail this run."""
    failures = [
        f"{by_id[outcome.task.repo_id].spec} {outcome.task.job_type}: {outcome.failure}"
        for outcome in ran.outcomes
        if outcome.failure is not None
    ]
    if failures:
        raise failed(failures)
