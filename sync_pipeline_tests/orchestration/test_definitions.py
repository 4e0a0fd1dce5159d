"""What a code location has: names that must not change, and a shape that stays cheap to load."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path

import dagster as dg
import pytest

from sync_pipeline.core.catalog import CatalogSnapshot, write_snapshot
from sync_pipeline.core.errors import ConfigurationError
from sync_pipeline.core.model import JobType, Kind, Lifecycle, Repository
from sync_pipeline.orchestration.assets import ASSETS_WITH_COLUMNS
from sync_pipeline.orchestration.build import build_defs
from sync_pipeline.orchestration.run_spec import POOLS_VARIABLE
from sync_pipeline.settings import Settings

PAINT = Repository(
    repo_id=1,
    kind=Kind.SVN,
    instance="local",
    instance_slug="local",
    tenant="acme",
    slug="paint_1",
    url="file:///srv/paint",
    lifecycle=Lifecycle.ACTIVE,
    created_at=datetime(2026, 1, 1, tzinfo=UTC),
    svn_uuid="u",
    svn_root="file:///srv/paint",
)
GLUE = replace(PAINT, repo_id=2, slug="glue_2", url="file:///srv/glue", lifecycle=Lifecycle.RETIRED)
FAR = replace(PAINT, repo_id=3, slug="far_3", url="https://svn.example/far", instance_slug="svn_example")
APP = Repository(
    repo_id=4,
    kind=Kind.GITLAB,
    instance="gitlab.example",
    instance_slug="gitlab_example",
    tenant="acme",
    slug="acme_app_7",
    url="https://gitlab.example/git/projects/7",
    lifecycle=Lifecycle.ACTIVE,
    created_at=datetime(2026, 3, 1, tzinfo=UTC),
    project_id=7,
    project_path="acme/app",
)
LIB = replace(APP, repo_id=5, slug="acme_lib_8", project_id=8, url="https://gitlab.example/git/projects/8")
BOTH = replace(PAINT, repo_id=6, slug="both_6", instance="gitlab.example", instance_slug="gitlab_example")

FAMILIES = ("commits", "merge_requests")
SCHEDULES = {"rediscovery", "reconcile", "retention", "full_sync", "repair_recent"}
JOBS = {"sync_commits", "sync_merge_requests", "sync_releases", "sync_revisions", *SCHEDULES}


def location(
    *repositories: Repository, only: str = "", history_start: date | None = None
) -> dg.RepositoryDefinition:
    snapshot = CatalogSnapshot(repositories, history_start=history_start)
    return build_defs(settings=Settings(), snapshot=snapshot, only=only).get_repository_def()


def steps(found: dg.RepositoryDefinition) -> dict[str, dg.AssetsDefinition]:
    """The multi-assets by name."""
    return {assets.op.name: assets for assets in found.assets_defs_by_key.values()}


def test_names_by_which_dagster_keeps_history_are_these() -> None:
    found = location(PAINT, GLUE, FAR, APP, BOTH)
    assert sorted(key.to_user_string() for key in found.assets_defs_by_key) == [
        "fleet/reconciliation",
        "fleet/retention",
        "gitlab_example/acme_app_7/commits",
        "gitlab_example/acme_app_7/merge_requests",
        "gitlab_example/acme_app_7/reviews",
        "gitlab_example/both_6/revisions",
        "local/glue_2/revisions",
        "local/paint_1/revisions",
        "svn_example/far_3/revisions",
    ]
    assert {job.name for job in found.get_all_jobs()} == {*JOBS, "__ASSET_JOB"}
    assert {schedule.name for schedule in found.schedule_defs} == SCHEDULES
    assert {sensor.name for sensor in found.sensor_defs} == {
        "scheduler",
        "reaper",
        "changes_gitlab_example",
        "changes_local",
        "changes_svn_example",
    }
    assert {key.name for key in found.asset_graph.asset_check_keys} == {
        "health",
        "attendance",
        "servers",
        "held_back",
        "code_location",
    }
    assert set(steps(found)) == {
        "gitlab_example_commits",
        "gitlab_example_merge_requests",
        "gitlab_example_revisions",
        "local_revisions",
        "old_records",
        "reconciliation",
        "svn_example_revisions",
    }


def test_a_server_called_sync_loads_beside_the_jobs() -> None:
    # Its ops would be called as the jobs sync_commits, sync_merge_requests and sync_revisions.
    app, paint = replace(APP, instance_slug="sync"), replace(PAINT, instance_slug="sync")
    found = location(app, paint)
    found.load_all_definitions()
    assert set(steps(found)).isdisjoint(JOBS)
    assert {"sync/acme_app_7/commits", "sync/paint_1/revisions"} <= {
        key.to_user_string() for key in found.assets_defs_by_key
    }


def test_an_empty_location_loads_and_keeps_its_names() -> None:
    found = location()
    assert {job.name for job in found.get_all_jobs()} == {*JOBS, "__ASSET_JOB"}
    assert {schedule.name for schedule in found.schedule_defs} == SCHEDULES
    assert {sensor.name for sensor in found.sensor_defs} == {"scheduler", "reaper"}


def test_everything_from_gitlab_shares_days_that_begin_with_the_oldest_fact() -> None:
    by_registration = location(APP, LIB)
    assert {steps(by_registration)[f"gitlab_example_{name}"].partitions_def for name in FAMILIES} == {
        dg.DailyPartitionsDefinition("2026-01-30", timezone="UTC", end_offset=1)
    }
    for start, first in ((date(2009, 5, 4), "2009-05-04"), (date(2026, 2, 20), "2026-01-30")):
        found = location(APP, LIB, history_start=start)
        assert {steps(found)[f"gitlab_example_{name}"].partitions_def for name in FAMILIES} == {
            dg.DailyPartitionsDefinition(first, timezone="UTC", end_offset=1)
        }
    merge_requests = steps(by_registration)["gitlab_example_merge_requests"]
    assert merge_requests.can_subset
    assert merge_requests.backfill_policy == dg.BackfillPolicy.multi_run(100)


def test_an_asset_says_what_it_holds_and_links_to_its_source() -> None:
    spec = next(
        s for s in steps(location(APP))["gitlab_example_merge_requests"].specs if "reviews" in s.key.path
    )
    assert spec.metadata["url"] == dg.MetadataValue.url("https://gitlab.example/git/acme/app")
    assert (spec.metadata["dagster/table_name"], spec.metadata["repository"]) == (
        "scm.review_events",
        "gitlab:7",
    )
    columns = spec.metadata["dagster/column_schema"].value.columns
    assert ("reviewer_username", "text", True) in [(c.name, c.type, c.constraints.nullable) for c in columns]
    assert all(column.description for column in columns)
    assert spec.kinds == {"gitlab", "postgres"}
    assert (spec.description or "").startswith("acme/app: events in the reviews")


def specs(*repositories: Repository, **names: str) -> dict[str, dg.AssetSpec]:
    """The specs of a location by key, where servers have these names by kind."""
    servers = {"gitlab": "https://gitlab.example/git", "svn": "file:///"}
    tables = {kind: ({"url": servers[kind], "name": name},) for kind, name in names.items()}
    settings = Settings.model_validate(tables)
    found = build_defs(
        settings=settings, snapshot=CatalogSnapshot(repositories), only=""
    ).get_repository_def()
    return {spec.key.to_user_string(): spec for assets in steps(found).values() for spec in assets.specs}


def test_a_later_name_and_path_change_labels_and_no_key() -> None:
    before = specs(PAINT, APP)
    after = specs(PAINT, replace(APP, project_path="tools/app"), gitlab="main", svn="files")
    assert before.keys() == after.keys()
    key = "gitlab_example/acme_app_7/commits"
    assert (before[key].group_name, after[key].group_name) == ("gitlab_example", "main")
    assert (after[key].description or "").startswith("tools/app: commits of every branch and tag, ")
    assert "Server main, `gitlab.example`." in (after[key].description or "")
    assert after["local/paint_1/revisions"].group_name == "files"
    assert (after["local/paint_1/revisions"].description or "").startswith("paint: revisions")


def test_a_name_that_another_server_has_in_its_keys_is_no_label() -> None:
    other = replace(PAINT, instance="svn.example", instance_slug="main", svn_root="svn://svn.example/paint")
    found = specs(other, APP, gitlab="main")
    assert {spec.group_name for spec in found.values() if spec.key.path[0] != "fleet"} == {
        "main",
        "gitlab_example",
    }


@pytest.mark.parametrize("alias", ["sync", "default", "scheduler", "old", "context", "0"])
def test_no_alias_collides_with_a_name_of_ours_or_of_dagster(alias: str) -> None:
    found = location(
        replace(APP, instance_slug=alias), replace(PAINT, repo_id=9, instance_slug=f"{alias}_svn")
    )
    assert dg.AssetKey([alias, "acme_app_7", "commits"]) in found.assets_defs_by_key
    assert found.get_job("sync_commits").graph.nodes


def test_every_asset_is_partitioned_pooled_and_never_retried_by_dagster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(POOLS_VARIABLE, "1")
    assets = steps(location(PAINT, GLUE))["local_revisions"]
    assert assets.partitions_def == dg.DynamicPartitionsDefinition(name="svn_blocks")
    assert assets.backfill_policy == dg.BackfillPolicy.multi_run(10)
    assert assets.op.pool == "local"
    assert assets.op.retry_policy is None
    assert all(spec.skippable and spec.group_name == "local" for spec in assets.specs)


def test_a_run_that_somebody_starts_directly_takes_no_slot_that_a_kill_would_keep() -> None:
    assert steps(location(PAINT))["local_revisions"].op.pool is None


def test_a_thousand_repositories_are_one_step() -> None:
    many = [replace(PAINT, repo_id=n, slug=f"r_{n}", url=f"file:///srv/{n}") for n in range(1, 1001)]
    found = location(*many)
    assert set(steps(found)) == {"local_revisions", "old_records", "reconciliation"}
    assert len(found.get_job("sync_revisions").graph.nodes) == 1
    projects = [
        replace(APP, repo_id=n, slug=f"p_{n}", project_id=n, url=f"https://gitlab.example/projects/{n}")
        for n in range(1, 1001)
    ]
    found = location(*projects)
    assert len(found.assets_defs_by_key) == 3002
    assert len(steps(found)) == 4
    assert len(found.get_job("sync_merge_requests").graph.nodes) == 1


def test_assets_belong_to_the_team_of_their_tenant_or_to_the_owners_of_the_settings() -> None:
    def owners(settings: Settings, *key: str) -> list[str]:
        defs = build_defs(settings=settings, snapshot=CatalogSnapshot((PAINT, APP)))
        return list(defs.get_repository_def().asset_graph.get(dg.AssetKey(key)).owners)

    assert owners(Settings(), "local", "paint_1", "revisions") == ["team:acme"]
    assert owners(Settings(), "fleet", "reconciliation") == []
    ours = Settings(asset_owners=("team:platform", "ann@example.com"))
    for key in (("gitlab_example", "acme_app_7", "reviews"), ("fleet", "retention")):
        assert owners(ours, *key) == ["team:platform", "ann@example.com"]


def test_columns_are_one_object_for_all_assets_and_left_out_of_a_large_location() -> None:
    def columns(number: int) -> list[object]:
        projects = [
            replace(APP, repo_id=n, slug=f"p_{n}", project_id=n, url=f"https://gitlab.example/projects/{n}")
            for n in range(1, number + 1)
        ]
        assets = steps(location(*projects))["gitlab_example_commits"]
        return [spec.metadata.get("dagster/column_schema") for spec in assets.specs]

    found = columns(ASSETS_WITH_COLUMNS // 3)
    assert found[0] is not None
    assert all(one is found[0] for one in found)
    assert set(columns(ASSETS_WITH_COLUMNS // 3 + 1)) == {None}


def test_only_narrows_the_location_and_an_unknown_one_is_refused() -> None:
    found = location(PAINT, FAR, only="svn:https://svn.example/far")
    assert [key.path[1] for key in found.assets_defs_by_key] == ["far_3", "reconciliation", "retention"]
    with pytest.raises(ConfigurationError, match="catalog export"):
        location(PAINT, only="svn:file:///srv/none")


def test_no_secret_is_part_of_what_the_page_shows() -> None:
    settings = Settings(database_url="postgresql://u:hunter2@h/d", svn_password="hunter2")
    defs = build_defs(settings=settings, snapshot=CatalogSnapshot((PAINT,)))
    shown = repr([r.get_config_field().default_value_as_json_str for r in defs_resources(defs)])
    assert "hunter2" not in shown


def defs_resources(defs: dg.Definitions) -> list[dg.ResourceDefinition]:
    found = defs.get_repository_def().get_top_level_resources().values()
    return [r for r in found if r.get_config_field().default_provided]


def test_loading_needs_neither_database_nor_network_nor_source(tmp_path: Path) -> None:
    write_snapshot(tmp_path / "catalog.json", [PAINT], head_rev=1, written_at=datetime.now(UTC))
    program = """
import socket, subprocess, sys
import dagster, plumbum  # both ask a program for the machine's architecture
def refuse(*_, **__): raise SystemExit("it went outside")
socket.socket.connect = socket.getaddrinfo = subprocess.Popen = refuse
import psycopg
psycopg.Connection.connect = refuse
from sync_pipeline.definitions import defs
print(len(defs.get_repository_def().assets_defs_by_key), "matplotlib" in sys.modules)
"""
    environment = {"SCM_STATE_DIR": str(tmp_path), "SCM_DATABASE_URL": "postgresql://nowhere.invalid/x"}
    done = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:sync_pipeline", "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.strip() == "3 False", done.stderr
    assert "Warning" not in done.stderr


def test_a_job_without_anything_to_sync_fails_instead_of_looking_done() -> None:
    job = location(PAINT).get_job("sync_merge_requests")
    result = job.execute_in_process(instance=dg.DagsterInstance.ephemeral(), raise_on_error=False)
    assert not result.success
    (failed,) = [event for event in result.all_events if event.is_step_failure]
    failure = failed.step_failure_data.user_failure_data
    assert failure is not None
    assert "no repository of this code location has GitLab merge requests" in str(failure.description)


def test_a_location_has_what_its_pool_takes() -> None:
    office = Settings(
        worker_pool="office",
        worker_instance_allowlist=("gitlab.example",),
        worker_job_type_allowlist=(JobType.COMMITS, JobType.REVIEWS),
    )
    everything = CatalogSnapshot((PAINT, FAR, APP, LIB))
    found = build_defs(settings=office, snapshot=everything, only="").get_repository_def()
    assert sorted(key.to_user_string() for key in found.assets_defs_by_key) == [
        "fleet/office/reconciliation",
        "fleet/office/retention",
        "gitlab_example/acme_app_7/commits",
        "gitlab_example/acme_app_7/reviews",
        "gitlab_example/acme_lib_8/commits",
        "gitlab_example/acme_lib_8/reviews",
    ]
    assert {sensor.name for sensor in found.sensor_defs} == {"scheduler", "reaper", "changes_gitlab_example"}
    assert {job.name for job in found.get_all_jobs()} == {*JOBS, "__ASSET_JOB"}
    # What somebody named is read whatever the pool takes.
    named = build_defs(settings=office, snapshot=everything, only="svn:file:///srv/paint")
    assert dg.AssetKey(["local", "paint_1", "revisions"]) in named.get_repository_def().assets_defs_by_key
