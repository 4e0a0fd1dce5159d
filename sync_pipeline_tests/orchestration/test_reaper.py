"""What is left over in Dagster, tick by tick of the reaper's sensor."""

from __future__ import annotations

import time
from datetime import timedelta
from uuid import uuid4

import dagster as dg
import pytest
from dagster._core.execution.backfill import BulkActionStatus, PartitionBackfill
from dagster._core.test_utils import create_run_for_test

from sync_pipeline.core.job_types import Family
from sync_pipeline.core.model import JobStatus
from sync_pipeline.ledger import heartbeats, jobs
from sync_pipeline.orchestration import reaper
from sync_pipeline.orchestration.processes import Process, process_of, signature
from sync_pipeline.orchestration.run_spec import PROCESS_TAG
from sync_pipeline.sync.worker import process_identity
from sync_pipeline_tests.builders import register, request
from sync_pipeline_tests.orchestration.conftest import Site

DEAD_PROCESS = f"{process_identity().rsplit(' ', 2)[0]} 999999999 1.00"
ELSEWHERE = "other-boot/pid:[1] 1 1.00"
STARTED, CANCELING = dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING


def run(site: Site, status: dg.DagsterRunStatus, identity: str | None = None, run_id: str = "") -> str:
    """A run that Dagster believes to be in this state, signed by this process; returns its id."""
    run_id = run_id or str(uuid4())
    tags = {} if identity is None else {PROCESS_TAG: f"{run_id} {identity}"}
    create_run_for_test(site.instance, run_id=run_id, job_name="any", tags=tags, status=status)
    return run_id


def statuses(site: Site) -> dict[str, str]:
    return {run.run_id: run.status.value for run in site.instance.get_runs()}


def test_a_run_ends_when_its_process_is_gone_and_only_then(site: Site) -> None:
    gone, stopping = run(site, STARTED, DEAD_PROCESS), run(site, CANCELING, DEAD_PROCESS)
    left = {run(site, STARTED, identity) for identity in (process_identity(), ELSEWHERE, None)}
    again = str(uuid4())
    # Started again from the page of the first one, whose tags it got.
    tags = {PROCESS_TAG: f"{gone} {DEAD_PROCESS}"}
    create_run_for_test(site.instance, run_id=again, job_name="any", tags=tags, status=STARTED)

    found = site.tick("reaper")
    assert isinstance(found, dg.SkipReason)
    assert found.skip_message == "2 Dagster runs"
    assert statuses(site) == {gone: "FAILURE", stopping: "CANCELED"} | dict.fromkeys(
        [*left, again], "STARTED"
    )
    [event] = site.instance.all_logs(gone, of_type=dg.DagsterEventType.RUN_FAILURE)
    assert event.message == "the process of this run is gone"
    with site.database.connection() as conn:
        [beat] = heartbeats.read(conn)
    assert (beat.name, beat.outcome) == ("reaper", "2 Dagster runs")
    again_found = site.tick("reaper")
    assert isinstance(again_found, dg.SkipReason)
    assert again_found.skip_message == "nothing was lost"


def test_a_run_whose_claim_was_taken_from_it_ends_after_the_grace(site: Site) -> None:
    """Its process may well be there, and stopped."""
    run_id = run(site, STARTED, process_identity())
    with site.database.connection() as conn:
        job_id = jobs.enqueue(conn, request(register(conn)))
        jobs.claim(conn, job_id, worker="w1", process="p", length=300, dagster_run_id=run_id)
        site.tick("reaper")
        assert statuses(site) == {run_id: "STARTED"}
        conn.execute("UPDATE scm.sync_jobs SET claim_expires_at = clock_timestamp() - interval '1 hour'")
        site.tick("reaper")
        assert jobs.state(conn, job_id).status is JobStatus.FAILED
        assert statuses(site) == {run_id: "STARTED"}
        conn.execute(
            "UPDATE scm.sync_runs SET finished_at = finished_at - interval '61 seconds',"
            " started_at = started_at - interval '2 hours'"
        )
        site.tick("reaper")
        assert statuses(site) == {run_id: "FAILURE"}


def test_a_run_is_signed_by_the_process_that_carries_it_out_and_names_its_repository(site: Site) -> None:
    with site.database.connection() as conn:
        register(conn)
    site.run(Family.REVISIONS.job_name)
    [run_of_assets] = site.instance.get_runs()
    assert run_of_assets.tags[PROCESS_TAG] == signature(run_of_assets.run_id)
    assert process_of(run_of_assets) is Process.LIVES
    assert run_of_assets.tags["repo"] == "paint"


def test_a_run_that_an_earlier_version_signed_is_recognized() -> None:
    tags = {"scm/process": signature("this")}
    assert process_of(dg.DagsterRun("sync_revisions", run_id="this", tags=tags)) is Process.LIVES


def test_slots_of_runs_that_ended_are_freed_and_no_others(
    stored: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = stored
    storage = site.instance.event_log_storage
    storage.set_concurrency_slots("local", 3)
    working, ended, forgotten = run(site, STARTED), run(site, STARTED), str(uuid4())
    for run_id in (working, ended, forgotten):
        assert storage.claim_concurrency_slot("local", run_id, "step").is_claimed
    [record] = [run for run in site.instance.get_runs() if run.run_id == ended]
    site.instance.report_run_failed(record)
    site.tick("reaper")
    assert storage.get_concurrency_info("local").active_run_ids == {working, ended}
    monkeypatch.setattr(reaper, "_SLOT_GRACE", timedelta(0))
    site.tick("reaper")
    assert storage.get_concurrency_info("local").active_run_ids == {working}


def test_a_backfill_that_is_left_open_is_named_and_left_alone(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.instance.add_backfill(
        PartitionBackfill(
            backfill_id="abc",
            status=BulkActionStatus.CANCELING,
            from_failure=False,
            tags={},
            backfill_timestamp=time.time(),
            asset_selection=[dg.AssetKey("a")],
        )
    )
    create_run_for_test(
        site.instance, job_name="any", tags={"dagster/backfill": "abc"}, status=dg.DagsterRunStatus.FAILURE
    )
    found = site.tick("reaper")
    assert isinstance(found, dg.SkipReason)
    assert found.skip_message == "nothing was lost"
    monkeypatch.setattr(reaper, "_BACKFILL_GRACE", timedelta(0))
    found = site.tick("reaper")
    assert isinstance(found, dg.SkipReason)
    assert found.skip_message == "1 Dagster backfill stuck"
    backfill = site.instance.get_backfill("abc")
    assert backfill is not None
    assert backfill.status is BulkActionStatus.CANCELING


def test_a_tick_without_a_database_is_skipped_with_the_reason(site: Site) -> None:
    site_without = Site(
        site.database,
        site.instance,
        site.settings.model_copy(update={"database_url": "postgresql://me@127.0.0.1:1/scm"}),
    )
    found = site_without.tick("reaper")
    assert isinstance(found, dg.SkipReason)
    assert "127.0.0.1:1/scm does not answer" in (found.skip_message or "")
