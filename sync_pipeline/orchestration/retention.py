"""Unattended retention: the fleet-wide asset, its schedule, and the deletion of Dagster's own records.

Belongs here: runs and ticks of Dagster, and the metadata of a pass. Our own tables are cleaned in
:mod:`sync_pipeline.admin.retention`.

Dagster deletes the events of a run with it, and with them what it knows of the partitions that the run
materialized. So a run stays as long as it holds the latest materialization of a partition. Sensors ask the
ledger and not Dagster what was done, so a run that is gone is not started again.
"""

# Dagster looks at the annotations of assets and schedules itself, so they cannot be postponed here.

from collections.abc import Iterator, Mapping
from datetime import timedelta

import dagster as dg

from sync_pipeline.admin.retention import AT_ONCE, RETENTION, Kind, RetentionReport, Until, retain
from sync_pipeline.core import clock
from sync_pipeline.database.pool import Database
from sync_pipeline.orchestration.dagster_internals import BULK_ACTION_TERMINAL_STATUSES
from sync_pipeline.orchestration.failures import StepFailure, refusing
from sync_pipeline.orchestration.processes import sign
from sync_pipeline.orchestration.resources import PostgresResource
from sync_pipeline.orchestration.schedules import fleet_job, schedule_of
from sync_pipeline.orchestration.specs import fleet_key
from sync_pipeline.orchestration.storage import records_problem
from sync_pipeline.settings import Settings

_BACKFILL_TAG = "dagster/backfill"
_MATERIALIZED = dg.DagsterEventType.ASSET_MATERIALIZATION
_FINISHED = [dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED]
_MAX_EVENTS_READ = 1000
_TICKS_COUNTED = 100_000
# It goes on next week, and ends before run monitoring ends it.
_LONGEST = 45 * 60.0
_WEEK = 7 * 86_400.0


def retention_key(settings: Settings) -> dg.AssetKey:
    """The key of the asset."""
    return fleet_key("retention", settings)


def retention_asset(settings: Settings) -> dg.AssetsDefinition:
    """The asset: each materialization is one pass."""
    key = retention_key(settings)

    @dg.multi_asset(
        name="old_records",  # not that of the job, which Dagster would refuse
        specs=[
            dg.AssetSpec(
                key,
                group_name="fleet",
                kinds={"postgres"},
                owners=settings.asset_owners,
                description="Records of finished work that are older than they are kept are deleted "
                "(docs/retention.md).",
            )
        ],
    )
    def retention(
        context: dg.AssetExecutionContext,
        settings: dg.ResourceParam[Settings],
        postgres: PostgresResource,
    ) -> Iterator[dg.MaterializeResult]:  # type: ignore[type-arg]
        sign(context.instance, context.run)
        with refusing(), postgres.database(max_size=2) as database:
            until = Until(seconds=_LONGEST)
            report = retain_all(database, settings, context.instance, execute=True, until=until)
        context.log.info(report.summary())
        yield dg.MaterializeResult(
            asset_key=key,
            metadata={
                "summary": report.summary(),
                **{f"deleted {kind.name}": kind.deleted for kind in report.kinds},
                "complete": not report.stopped,
            },
        )
        if report.errors:
            raise StepFailure("; ".join(report.errors[:5]))

    return retention


def retention_schedule(settings: Settings) -> dg.ScheduleDefinition:
    """The schedule that starts the job of the asset on Sundays at 03:00 UTC."""
    description = "Deletes records of finished work that are older than they are kept."
    job = fleet_job(RETENTION, retention_key(settings), description)
    return schedule_of(job, cron="0 3 * * 0", every=_WEEK, description=description)


def retain_all(
    database: Database,
    settings: Settings,
    instance: dg.DagsterInstance,
    *,
    execute: bool,
    until: Until | None = None,
) -> RetentionReport:
    """One pass over our own tables and then over Dagster's; without ``execute`` it only counts. Raises
    ConfigurationError as :func:`retain` does."""
    until = until or Until()
    report = retain(database, settings, execute=execute, until=until)
    runs = Kind("Dagster runs", settings.retention.dagster_runs_days)
    ticks = Kind("Dagster ticks", settings.retention.dagster_ticks_days)
    report.kinds += [runs, ticks]
    try:
        _runs(instance, report, runs, until)
        _ticks(instance, report, ticks, until)
    except Exception as error:
        report.errors.append(records_problem(error))
    return report


def _runs(instance: dg.DagsterInstance, report: RetentionReport, kind: Kind, until: Until) -> None:
    if not kind.days:
        return
    old = dg.RunsFilter(statuses=_FINISHED, updated_before=clock.now() - timedelta(days=kind.days))
    open_backfills: dict[str, bool] = {}
    last: str | None = None  # the place to go on at, a run that stays
    while records := instance.get_run_records(old, limit=AT_ONCE, cursor=last, ascending=True):
        for record in records:
            if until.over():
                report.stopped = True
                return
            run = record.dagster_run
            if _is_of_open_backfill(instance, run, open_backfills) or _holds_a_partition(instance, record):
                kind.kept += 1
                last = run.run_id
                continue
            kind.found += 1
            if report.execute:
                instance.delete_run(run.run_id)
                kind.deleted += 1
            else:
                last = run.run_id


def _is_of_open_backfill(instance: dg.DagsterInstance, run: dg.DagsterRun, known: dict[str, bool]) -> bool:
    """Whether the daemon still looks at the runs of this one's backfill."""
    backfill_id = run.tags.get(_BACKFILL_TAG)
    if backfill_id is None:
        return False
    if backfill_id not in known:
        backfill = instance.get_backfill(backfill_id)
        known[backfill_id] = backfill is not None and backfill.status not in BULK_ACTION_TERMINAL_STATUSES
    return known[backfill_id]


def _holds_a_partition(instance: dg.DagsterInstance, record: dg.RunRecord) -> bool:
    """Whether the latest materialization of a partition is of this run, or that of an asset without them."""
    run_id, cursor, has_more = record.dagster_run.run_id, None, True
    while has_more:
        page = instance.get_records_for_run(run_id, cursor, _MATERIALIZED, _MAX_EVENTS_READ)
        stored: dict[dg.AssetKey, dict[str | None, int]] = {}
        for one in page.records:
            event = one.event_log_entry.asset_materialization
            if event is not None:
                stored.setdefault(event.asset_key, {})[event.partition] = one.storage_id
        if any(_has_latest(instance, key, numbers) for key, numbers in stored.items()):
            return True
        cursor, has_more = page.cursor, page.has_more
    return False


def _has_latest(instance: dg.DagsterInstance, key: dg.AssetKey, numbers: Mapping[str | None, int]) -> bool:
    """Whether one of these materializations, by partition, is the latest of its partition."""
    partitions = {partition for partition in numbers if partition is not None}
    latest: dict[str | None, int] = {}
    if partitions:
        latest.update(instance.get_latest_storage_id_by_partition(key, _MATERIALIZED, partitions))
    if None in numbers:
        for one in instance.fetch_materializations(key, limit=1).records:
            latest[None] = one.storage_id
    return any(latest.get(partition) == number for partition, number in numbers.items())


def _ticks(instance: dg.DagsterInstance, report: RetentionReport, kind: Kind, until: Until) -> None:
    if not kind.days or instance.schedule_storage is None:
        return
    before = (clock.now() - timedelta(days=kind.days)).timestamp()
    for state in instance.all_instigator_state():
        if until.over():
            report.stopped = True
            return
        origin = state.instigator_origin_id, state.selector_id
        number = len(instance.get_ticks(*origin, before=before, limit=_TICKS_COUNTED))
        kind.found += number
        if report.execute and number:
            instance.purge_ticks(*origin, before=before)
            kind.deleted += number
