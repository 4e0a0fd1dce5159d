"""What people ask for in the Dagster UI reaches the ledger, whether or not Dagster can start it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.assets.graph.asset_graph_subset import AssetGraphSubset
from dagster._core.execution.backfill import BulkActionStatus, PartitionBackfill
from dagster._core.test_utils import create_run_for_test

from sync_pipeline.core import catalog
from sync_pipeline.core.model import JobStatus, JobType, Mode, RunStatus
from sync_pipeline.ledger import jobs
from sync_pipeline.orchestration.partitions import ensure_blocks
from sync_pipeline.orchestration.ui_requests import in_runs
from sync_pipeline_tests.builders import register
from sync_pipeline_tests.orchestration.conftest import Forge, Site

VISITED = "UPDATE scm.sync_watermarks SET visited_at = now(), verified_at = now()"
JOBS = """
SELECT revs::text, status, trigger, actor, reason, reread, dispatched_at IS NOT NULL AS dispatched
  FROM scm.sync_jobs WHERE trigger = 'ui' ORDER BY lower(revs)
"""
REQUESTS = """
SELECT request_id, kind, actor, job_count, skipped_count, status, ended_at IS NOT NULL AS ended
  FROM scm.dagster_requests
"""
BLOCKS = ("0000000001-0000001000", "0000001001-0000002000", "0000002001-0000003000")


@pytest.fixture
def paint(site: Site) -> int:
    """A repository of three blocks that was visited a moment ago."""
    with site.database.connection() as conn:
        repo_id = register(conn, "paint", head=2500)
    site.execute(VISITED)
    ensure_blocks(site.instance, site.database, 2500)
    return repo_id


KEY = dg.AssetKey(["local", "paint", "revisions"])


def launch(
    site: Site, *partitions: str, keys: Sequence[dg.AssetKey] = (KEY,), backfill_id: str = "abcdefgh"
) -> PartitionBackfill:
    """What the button Materialize does for some partitions of some assets."""
    asset_graph = site.definitions().get_repository_def().asset_graph
    subsets: dict[dg.AssetKey, Any] = {}
    for key in keys:
        definition = asset_graph.get(key).partitions_def
        assert definition is not None
        subsets[key] = definition.subset_with_partition_keys(partitions)
    backfill: PartitionBackfill = PartitionBackfill.from_asset_graph_subset(
        backfill_id=backfill_id,
        backfill_timestamp=datetime.now(UTC).timestamp(),
        tags={"user": "ann"},
        dynamic_partitions_store=site.instance,
        asset_graph_subset=AssetGraphSubset(subsets, set()),  # type: ignore[call-arg]
        title=None,
        description=None,
        run_config=None,
    )
    site.instance.add_backfill(backfill)
    return backfill


def becomes(site: Site, backfill: PartitionBackfill, status: BulkActionStatus) -> None:
    site.instance.update_backfill(backfill.with_status(status))  # type: ignore[no-untyped-call]


def rows(site: Site) -> list[dict[str, Any]]:
    return site.rows(JOBS)


def test_a_backfill_is_in_the_ledger_after_one_tick_and_left_to_dagster(site: Site, paint: int) -> None:
    launch(site, *BLOCKS[:2])
    assert site.schedule() == []
    assert rows(site) == [
        {
            "revs": revs,
            "status": "pending",
            "trigger": "ui",
            "actor": "ann",
            "reason": "backfill abcdefgh",
            "reread": False,
            "dispatched": True,
        }
        for revs in ("[1,1001)", "[1001,2001)")
    ]
    assert site.schedule() == []
    assert len(rows(site)) == 2
    assert site.rows("SELECT 1 FROM scm.job_events") == []


def test_a_backfill_that_dagster_fails_is_done_by_the_ledger(site: Site, paint: int) -> None:
    backfill = launch(site, *BLOCKS)
    site.schedule()
    becomes(site, backfill, BulkActionStatus.FAILED)
    [request] = site.schedule()
    assert request.tags["scm/mode"] == "backfill"
    assert not any(row["dispatched"] for row in rows(site))
    assert site.rows(REQUESTS) == [
        {
            "request_id": "abcdefgh",
            "kind": "backfill",
            "actor": "ann",
            "job_count": 3,
            "skipped_count": 0,
            "status": "FAILED",
            "ended": True,
        }
    ]


def test_a_backfill_that_failed_before_the_first_tick_is_done_all_the_same(site: Site, paint: int) -> None:
    becomes(site, launch(site, *BLOCKS), BulkActionStatus.FAILED)
    [request] = site.schedule()
    assert request.tags["dagster/asset_partition_range_end"] == BLOCKS[-1]


def test_a_canceled_backfill_takes_its_jobs_back(site: Site, paint: int) -> None:
    backfill = launch(site, *BLOCKS)
    site.schedule()
    becomes(site, backfill, BulkActionStatus.CANCELED)
    assert site.schedule() == []
    assert {(row["status"]) for row in rows(site)} == {"dead"}
    becomes(site, launch(site, *BLOCKS, backfill_id="later"), BulkActionStatus.CANCELED)
    site.schedule()
    assert len(rows(site)) == 3


def test_what_the_runs_of_a_backfill_did_is_not_done_again(site: Site, paint: int) -> None:
    backfill = launch(site, *BLOCKS)
    site.schedule()
    becomes(site, backfill, BulkActionStatus.COMPLETED_SUCCESS)
    assert site.schedule() == []
    assert {row["status"] for row in rows(site)} == {"dead"}
    codes = site.rows("SELECT DISTINCT last_error_code AS code FROM scm.sync_jobs WHERE trigger = 'ui'")
    assert codes == [{"code": "superseded"}]


def test_a_long_request_is_taken_over_in_several_ticks(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    with site.database.connection() as conn:
        ids = [register(conn, slug, head=900) for slug in ("paint", "glue")]
    site.execute(VISITED)
    ensure_blocks(site.instance, site.database, 900)
    keys = [dg.AssetKey(["local", slug, "revisions"]) for slug in ("paint", "glue")]
    launch(site, BLOCKS[0], keys=keys)
    monkeypatch.setattr("sync_pipeline.orchestration.ui_requests._SECONDS", -1.0)
    site.schedule()
    assert rows(site) == []
    monkeypatch.undo()
    site.schedule()
    assert len(rows(site)) == len(ids)


def test_a_run_of_a_person_that_failed_before_it_began_is_done_by_the_ledger(site: Site, paint: int) -> None:
    create_run_for_test(
        site.instance,
        job_name="sync_revisions",
        tags={"dagster/from_ui": "true", "dagster/partition": BLOCKS[1]},
        status=dg.DagsterRunStatus.FAILURE,
        asset_selection=frozenset([KEY]),
    )
    [request] = site.schedule()
    assert request.tags["dagster/asset_partition_range_start"] == BLOCKS[1]
    [row] = rows(site)
    assert row["reason"].startswith("materialized in the UI (run ")
    site.schedule()
    assert len(rows(site)) == 1


def stop(site: Site, status: dg.DagsterRunStatus) -> None:
    """The only job of the UI is at work in a run, which is interrupted and ends as ``status``."""
    run = create_run_for_test(site.instance, job_name="sync_revisions", status=status)
    with site.database.connection() as conn:
        [row] = conn.execute("SELECT job_id FROM scm.sync_jobs WHERE trigger = 'ui'").fetchall()
        claim = jobs.claim(conn, row["job_id"], worker="w", process="p", length=60, dagster_run_id=run.run_id)
        assert claim is not None
        jobs.finish(
            conn,
            claim,
            job_status=JobStatus.DEAD,
            run_status=RunStatus.INTERRUPTED,
            error_code="cancelled",
            error="stopped",
        )


@pytest.mark.parametrize(
    ("status", "again"), [(dg.DagsterRunStatus.FAILURE, True), (dg.DagsterRunStatus.CANCELED, False)]
)
def test_a_job_whose_run_no_person_ended_waits_again(
    site: Site, paint: int, status: dg.DagsterRunStatus, again: bool
) -> None:
    launch(site, BLOCKS[0])
    site.schedule()
    site.execute("UPDATE scm.sync_jobs SET max_attempts = 1 WHERE trigger = 'ui'")
    stop(site, status)
    site.schedule()
    assert [row["status"] for row in rows(site)] == ["pending" if again else "dead"]
    if again:
        with site.database.connection() as conn:
            [row] = conn.execute("SELECT job_id FROM scm.sync_jobs WHERE trigger = 'ui'").fetchall()
            assert jobs.claim(conn, row["job_id"], worker="w", process="p", length=60, dagster_run_id=None)


def test_a_job_that_a_person_took_back_after_its_run_failed_stays_so(site: Site, paint: int) -> None:
    backfill = launch(site, BLOCKS[0])
    site.schedule()
    stop(site, dg.DagsterRunStatus.FAILURE)
    becomes(site, backfill, BulkActionStatus.CANCELED)
    for _ in range(2):
        site.schedule()
        assert [row["status"] for row in rows(site)] == ["dead"]


def test_a_job_that_was_dropped_or_retired_after_its_run_failed_stays_so(site: Site, paint: int) -> None:
    launch(site, BLOCKS[0])
    site.schedule()
    stop(site, dg.DagsterRunStatus.FAILURE)
    site.schedule()
    with site.database.connection() as conn:
        assert jobs.cancel_pending(conn, paint, "retired by ann") == 1
    site.schedule()
    assert [row["status"] for row in rows(site)] == ["dead"]


def test_a_job_that_waits_already_is_not_woken_a_second_time(site: Site, paint: int) -> None:
    launch(site, BLOCKS[0])
    site.schedule()
    stop(site, dg.DagsterRunStatus.FAILURE)
    site.execute(
        "INSERT INTO scm.sync_jobs (repo_id, job_type, mode, revs, trigger, actor, reason, generation,"
        " code_version, created_at)"
        " SELECT repo_id, job_type, mode, revs, 'runner', 'ann', 'earlier', generation, '0',"
        " created_at - interval '1 hour' FROM scm.sync_jobs WHERE trigger = 'ui'"
    )
    site.schedule()
    assert [row["status"] for row in rows(site)] == ["dead"]


def test_a_request_that_cannot_be_read_holds_up_neither_the_others_nor_the_plan(
    site: Site, paint: int
) -> None:
    broken = launch(site, BLOCKS[0], backfill_id="broken")
    site.instance.update_backfill(
        broken._replace(asset_backfill_data=None, serialized_asset_backfill_data="{")
    )
    launch(site, BLOCKS[1], backfill_id="sound")
    site.execute("UPDATE scm.sync_watermarks SET visited_at = NULL")
    [request] = site.schedule()
    assert request.tags["scm/mode"] == "incremental"
    assert [row["reason"] for row in rows(site)] == ["backfill sound"]
    [beat] = site.rows("SELECT outcome FROM scm.heartbeats WHERE name = 'scheduler'")
    assert "1 requests in the UI failed" in beat["outcome"]


def test_a_long_request_is_taken_over_although_dagster_gave_it_up(
    site: Site, paint: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    becomes(site, launch(site, *BLOCKS), BulkActionStatus.FAILED)
    with monkeypatch.context() as patch:
        patch.setattr("sync_pipeline.orchestration.ui_requests._SECONDS", -1.0)
        site.schedule()
    assert rows(site) == []
    site.schedule()
    assert len(rows(site)) == len(BLOCKS)


def test_the_jobs_of_a_backfill_are_those_that_its_runs_make(forge: Forge) -> None:
    """A run of the same backfill joins the jobs, also where days are merged into windows."""
    site = forge.site
    repo_id = forge.git_project("app", "2024-05-06T12:00:00", "2024-05-08T12:00:00")
    site.execute(VISITED)
    commits = forge.key(repo_id, JobType.COMMITS)
    days = [f"2026-01-{day:02d}" for day in (5, 6, 7, 12)]
    site.execute("UPDATE scm.repos SET created_at = '2026-01-20'")
    launch(site, *days, keys=[commits], backfill_id="days")
    site.schedule()
    of_ui = "SELECT period::text FROM scm.sync_jobs WHERE trigger = 'ui' ORDER BY period"
    asked = site.rows(of_ui)
    assert len(asked) == 2
    tags = {"dagster/backfill": "days", "dagster/from_ui": "true", "user": "ann"}
    for first, last in ((days[0], days[2]), (days[3], days[3])):
        ran = site.run(
            "sync_commits",
            tags | {"dagster/asset_partition_range_start": first, "dagster/asset_partition_range_end": last},
            selection=[commits],
        )
        assert ran.success, ran.error
    assert site.rows(of_ui) == asked
    done = site.rows("SELECT DISTINCT status FROM scm.sync_jobs WHERE trigger = 'ui'")
    assert done == [{"status": "completed"}]
    # A run that comes after the ledger did the work reads nothing again.
    tags |= {"dagster/asset_partition_range_start": days[0], "dagster/asset_partition_range_end": days[2]}
    [report] = site.run("sync_commits", tags, selection=[commits]).reports
    assert report.counts.read == 0
    assert report.mode is Mode.BACKFILL


@pytest.mark.parametrize(
    ("blocks", "size", "expected"),
    [((1, 2, 3), 2, [2, 1]), ((1, 3, 4), 10, [1, 2]), ((3, 1, 2), 3, [3]), ((), 10, [])],
)
def test_partitions_are_cut_into_runs_as_dagster_does(
    blocks: Sequence[int], size: int, expected: list[int]
) -> None:
    windows = [catalog.block_of(number * 1000) for number in blocks]
    assert [len(part) for part in in_runs(windows, size)] == expected
