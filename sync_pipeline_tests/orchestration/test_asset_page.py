"""What the pages of assets and runs show: the asset's numbers first, and failures that say what to do."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import dagster as dg

from sync_pipeline.core.model import Counts, JobReport, JobStatus, JobType, Mode, RevisionWindow, RunStatus
from sync_pipeline.database.pool import Connection, Database
from sync_pipeline.ledger import repos
from sync_pipeline.orchestration import run_spec
from sync_pipeline.orchestration.asset_page import AssetPages
from sync_pipeline.settings import Settings
from sync_pipeline_sandbox.gitlab import faults
from sync_pipeline_tests.builders import register
from sync_pipeline_tests.orchestration.conftest import Forge, Site

NUMBERS = ["dagster/row_count", "gaps", "lag_seconds", "last_change", "last_change_age_seconds"]
NUMBERS += ["planned_fetches", "requests"]
PAIR = "sync_merge_requests"
PAGE = Path(__file__).parents[2] / "docs" / "asset-pages.md"


def events(site: Site, kind: dg.DagsterEventType) -> list[dg.DagsterEvent]:
    """The events of the newest run of this kind."""
    [run] = site.instance.get_runs(limit=1)
    logs = site.instance.all_logs(run.run_id, of_type=kind)
    return [event for log in logs if (event := log.dagster_event) is not None]


def materialized(site: Site, job_type: JobType) -> list[Mapping[str, Any]]:
    """The metadata of the newest run's materializations of a job type."""
    found = events(site, dg.DagsterEventType.ASSET_MATERIALIZATION)
    mine = [e.step_materialization_data.materialization for e in found]
    return [
        {name: value.value for name, value in one.metadata.items()}
        for one in mine
        if one.asset_key.path[-1] == str(job_type)
    ]


def failure(site: Site) -> dg.DagsterEvent:
    """How the newest run failed."""
    [event] = events(site, dg.DagsterEventType.STEP_FAILURE)
    return event


def test_a_materialization_begins_with_the_numbers_of_the_asset(forge: Forge) -> None:
    now = datetime.now(UTC)
    forge.large_project("app", 8, now - timedelta(days=3))
    assert forge.site.run(PAIR).success
    *earlier, newest = materialized(forge.site, JobType.MERGE_REQUESTS)
    assert list(newest)[: len(NUMBERS)] == NUMBERS
    plotted = sorted(name for name, value in newest.items() if isinstance(value, int | float))
    assert plotted[: len(NUMBERS)] == NUMBERS, "the page sorts them by name"
    # Nothing reads what lies before the origin of this project.
    assert (newest["dagster/row_count"], newest["gaps"], newest["run/inserted"]) == (8, 1, 8)
    assert 0 < newest["lag_seconds"] < 3600
    assert newest["requests"] > 0
    assert newest["last_change"] <= now.timestamp() + 60
    assert newest["level"] in ("usable", "complete")
    assert {len(one) for one in earlier} == {5}, "the numbers are told once, with the newest day"
    assert [name for name in newest if f"`{name}`" not in PAGE.read_text()] == [], "explain it there"


def test_the_check_of_a_gitlab_asset_has_numbers(forge: Forge) -> None:
    forge.large_project("app", 2, datetime.now(UTC) - timedelta(days=3))
    assert forge.site.run(PAIR).success
    for event in events(forge.site, dg.DagsterEventType.ASSET_CHECK_EVALUATION):
        shown: dict[str, Any] = {
            name: value.value for name, value in event.asset_check_evaluation_data.metadata.items()
        }
        assert shown.pop("lag_seconds") < 3600
        assert "What to do: `scm-sync runner backfill" in str(event.asset_check_evaluation_data.description)
        assert shown["gaps"] == 1, "nothing reads what lies before the origin of this project"
        others = "queued_windows", "dead_windows", "quarantined_rows", "owed_details", "different_rows"
        assert [shown[name] for name in others] == [0] * len(others)


def test_a_source_writes_no_link_into_the_description_of_a_check(forge: Forge) -> None:
    bad = forge.large_project("bad", 2, datetime.now(UTC) - timedelta(days=3))
    forge.site.execute(
        "UPDATE scm.sync_watermarks SET access = 'denied', access_detail = '[x](http://evil) `![y](z)'"
    )
    found = forge.site.tick("scheduler")
    assert isinstance(found, dg.SensorResult)
    described = [
        str(one.description)
        for one in found.asset_events
        if isinstance(one, dg.AssetCheckEvaluation) and one.asset_key == forge.key(bad, JobType.COMMITS)
    ]
    assert [text for text in described if "- denied: `[x](http://evil) '![y](z)`. What to do: `if" in text]


def test_rows_are_counted_once_in_a_step_however_many_jobs_it_does(database: Database) -> None:
    with database.connection() as conn:
        repo_id = register(conn, head=30)
        store_revisions(conn, repo_id, 1, 10)
        repository = repos.get(conn, repo_id)
    pages = AssetPages(database, Settings())
    assert pages.metadata(repository, report(repo_id, inserted=10))["dagster/row_count"] == 10
    with database.connection() as conn:
        store_revisions(conn, repo_id, 11, 30)
    assert pages.metadata(repository, report(repo_id, inserted=5))["dagster/row_count"] == 15
    assert AssetPages(database, Settings()).metadata(repository, report(repo_id))["dagster/row_count"] == 30


def store_revisions(conn: Connection, repo_id: int, first: int, last: int) -> None:
    conn.execute(
        """
        INSERT INTO scm.svn_revisions (repo_id, rev_num, visibility, detail_level, path_count, content_hash,
                                       paths_hash, batch_id)
        SELECT %(repo_id)s, n, 'full', 2, 0, '', '', 1 FROM generate_series(%(first)s::int, %(last)s) AS n
        """,
        {"repo_id": repo_id, "first": first, "last": last},
    )


def report(repo_id: int, inserted: int = 0) -> JobReport:
    return JobReport(
        job_id=uuid4(),
        run_id=uuid4(),
        repo_id=repo_id,
        job_type=JobType.REVISIONS,
        mode=Mode.BACKFILL,
        window=RevisionWindow(1, 31),
        job_status=JobStatus.COMPLETED,
        run_status=RunStatus.COMPLETED,
        counts=Counts(read=inserted, inserted=inserted),
    )


def test_a_failed_step_says_what_to_do_and_shows_no_call_stack(forge: Forge) -> None:
    bad = forge.large_project("bad", 2, datetime.now(UTC) - timedelta(days=3))
    project = forge.project(bad)
    forge.gitlab.faults.add(
        rf"/projects/{project.id}\b", faults.json_answer(403, {"message": "403 Forbidden"}), times=None
    )
    assert not forge.site.run(PAIR).success
    data = failure(forge.site).step_failure_data
    shown = data.user_failure_data
    assert shown is not None
    assert f"gitlab:{project.id} merge_requests: " in (shown.description or "")
    command = f"scm-sync runner incremental --repo gitlab:{project.id}"
    assert (shown.description or "").endswith(command)
    assert str(shown.metadata["denied: what to do"].value).endswith(command)
    assert data.error is not None
    assert (data.error.stack, data.error.cause) == ([], None)
    assert data.error.message.strip() == shown.description


def test_a_run_with_wrong_tags_shows_its_line_and_no_call_stack(forge: Forge) -> None:
    forge.large_project("app", 2, datetime.now(UTC))
    assert not forge.site.run(PAIR, {run_spec.PARTITION_TAG: "2099-01-05"}).success
    data = failure(forge.site).step_failure_data
    assert data.error is not None
    assert "that day is in the future" in data.error.message
    assert data.error.stack == []
    assert "Stack" not in data.error_display_string
