"""Runs and ticks of Dagster that are older than they are kept, on Dagster's own tables in PostgreSQL."""

from __future__ import annotations

import time

import dagster as dg
from dagster._core.definitions.run_request import InstigatorType
from dagster._core.events import StepMaterializationData
from dagster._core.execution.backfill import BulkActionStatus, PartitionBackfill
from dagster._core.remote_origin import (
    InProcessCodeLocationOrigin,
    RemoteInstigatorOrigin,
    RemoteRepositoryOrigin,
)
from dagster._core.scheduler.instigation import (
    InstigatorState,
    InstigatorStatus,
    SensorInstigatorData,
    TickData,
    TickStatus,
)
from dagster._core.test_utils import create_run_for_test
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin

from sync_pipeline.admin.retention import RETENTION, RetentionReport
from sync_pipeline.orchestration.retention import retain_all
from sync_pipeline_tests.builders import register
from sync_pipeline_tests.orchestration.conftest import Site

DAILY, WHOLE = dg.AssetKey("daily"), dg.AssetKey("whole")
SUCCESS = dg.DagsterRunStatus.SUCCESS
_AGED = "UPDATE dagster.runs SET update_timestamp = update_timestamp - interval '31 days'"


def made(site: Site, *assets: dg.AssetKey, partition: str | None = None) -> str:
    """A run that succeeded and materialized these assets; returns its id."""
    run = create_run_for_test(site.instance, job_name="any", status=SUCCESS)
    for key in assets:
        data = StepMaterializationData(dg.AssetMaterialization(key, partition=partition))
        event = dg.DagsterEvent(
            dg.DagsterEventType.ASSET_MATERIALIZATION.value, "any", event_specific_data=data
        )
        site.instance.report_dagster_event(event, run.run_id)
    return str(run.run_id)


def figures(report: RetentionReport, kind: str) -> tuple[int, int, int]:
    [one] = [one for one in report.kinds if one.name == kind]
    assert report.errors == []
    return one.found, one.deleted, one.kept


def test_a_run_goes_unless_it_holds_the_latest_of_a_partition_or_is_not_over(stored: Site) -> None:
    site = stored
    first, second, other = (
        made(site, DAILY, partition=day) for day in ("2026-01-02", "2026-01-02", "2026-01-03")
    )
    old, new = made(site, WHOLE), made(site, WHOLE)
    empty = made(site)
    works = create_run_for_test(site.instance, job_name="any", status=dg.DagsterRunStatus.STARTED).run_id
    for name, status in (("open", BulkActionStatus.REQUESTED), ("over", BulkActionStatus.COMPLETED_SUCCESS)):
        site.instance.add_backfill(
            PartitionBackfill(
                backfill_id=name,
                status=status,
                from_failure=False,
                tags={},
                backfill_timestamp=time.time(),
                asset_selection=[DAILY],
            )
        )
    of_open, of_over = (
        create_run_for_test(
            site.instance,
            job_name="any",
            tags={"dagster/backfill": name},
            status=dg.DagsterRunStatus.FAILURE,
        ).run_id
        for name in ("open", "over")
    )

    def retained(*, execute: bool) -> RetentionReport:
        return retain_all(site.database, site.settings, site.instance, execute=execute)

    assert figures(retained(execute=True), "Dagster runs") == (0, 0, 0)
    site.execute(_AGED)
    fresh = made(site)
    before = site.instance.get_materialized_partitions(DAILY)

    assert figures(retained(execute=False), "Dagster runs") == (4, 0, 4)
    assert len(site.instance.get_runs()) == 10
    assert figures(retained(execute=True), "Dagster runs") == (4, 4, 4)
    left = {run.run_id for run in site.instance.get_runs()}
    assert left == {second, other, new, works, of_open, fresh}
    assert not left & {first, old, empty, of_over}
    assert site.instance.get_materialized_partitions(DAILY) == before == {"2026-01-02", "2026-01-03"}
    assert site.rows("SELECT 1 FROM dagster.event_logs WHERE run_id = %(run)s", run=first) == []
    latest = site.instance.get_latest_materialization_event(WHOLE)
    assert latest is not None
    assert latest.run_id == new
    assert figures(retained(execute=True), "Dagster runs") == (0, 0, 4)


def test_old_ticks_go(stored: Site) -> None:
    site = stored
    place = RemoteInstigatorOrigin(
        RemoteRepositoryOrigin(
            InProcessCodeLocationOrigin(LoadableTargetOrigin(module_name="sync_pipeline.definitions")), "r"
        ),
        "scheduler",
    )
    site.instance.add_instigator_state(
        InstigatorState(place, InstigatorType.SENSOR, InstigatorStatus.RUNNING, SensorInstigatorData())
    )
    for days in (100, 91, 89, 0):
        site.instance.create_tick(
            TickData(
                instigator_origin_id=place.get_id(),
                instigator_name="scheduler",
                instigator_type=InstigatorType.SENSOR,
                status=TickStatus.SKIPPED,
                timestamp=time.time() - days * 86_400,
                selector_id=place.get_selector().get_id(),
            )
        )
    for execute, expected in ((False, (2, 0, 0)), (True, (2, 2, 0)), (True, (0, 0, 0))):
        report = retain_all(site.database, site.settings, site.instance, execute=execute)
        assert figures(report, "Dagster ticks") == expected


def test_what_is_gone_is_not_started_again(site: Site) -> None:
    """Run keys go with their runs; whether something is due is said by the ledger."""
    with site.database.connection() as conn:
        register(conn, head=10)
    [request] = site.schedule()
    site.launch(request, dg.DagsterRunStatus.SUCCESS)
    site.execute(
        "UPDATE scm.sync_jobs SET status = 'completed', finished_at = now();"
        "UPDATE scm.sync_watermarks SET visited_at = now(), covered_revs = '{[1,11)}', verified_at = now()"
    )
    settings = site.settings.model_copy(
        update={"retention_dagster_runs_days": 1e-9, "retention_jobs_days": 1e-9}
    )
    report = retain_all(site.database, settings, site.instance, execute=True)
    assert figures(report, "Dagster runs") == (1, 1, 0)
    assert site.instance.get_runs() == []
    assert site.schedule() == []


def test_a_run_of_the_job_tells_what_it_deleted(site: Site) -> None:
    with site.database.connection() as conn:
        register(conn)
    assert site.run(RETENTION).success
    event = site.instance.get_latest_materialization_event(dg.AssetKey(["fleet", "retention"]))
    assert event is not None
    assert event.asset_materialization is not None
    shown = {name: value.value for name, value in event.asset_materialization.metadata.items()}
    assert shown["summary"] == "nothing is older than it is kept"
    assert shown["complete"] is True
