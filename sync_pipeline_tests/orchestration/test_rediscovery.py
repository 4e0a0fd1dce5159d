"""Rediscovery: when the schedule starts a run, and what Dagster loads afterwards."""

from __future__ import annotations

from datetime import UTC, date, datetime

import dagster as dg
import pytest

from sync_pipeline.core import catalog
from sync_pipeline.orchestration.instance import quiet_dagster
from sync_pipeline.registry.registration import export_catalog
from sync_pipeline_sandbox.gitlab import faults
from sync_pipeline_tests.orchestration.conftest import Forge
from sync_pipeline_tests.orchestration.test_changes import root

NAME = "rediscovery"


@pytest.fixture
def rooted(forge: Forge) -> Forge:
    """A group whose only project is registered, with the snapshot written."""
    forge.gitlab.project("app", group=forge.group)
    root(forge, "gitlab:group:team1")
    export_catalog(forge.site.database, forge.site.settings)
    return forge


def evaluate(forge: Forge) -> dg.RunRequest | dg.SkipReason:
    defs = forge.site.definitions()
    location = defs.get_repository_def()
    with (
        quiet_dagster(),
        # A schedule opens its instance itself, so it has to be on disk.
        dg.instance_for_test() as instance,
        dg.build_schedule_context(
            instance=instance,
            resources=dict(location.get_top_level_resources()),
            scheduled_execution_time=datetime.now(UTC),
        ) as context,
    ):
        found = location.get_schedule_def(NAME)(context)
    assert isinstance(found, dg.RunRequest | dg.SkipReason)
    return found


def run(forge: Forge) -> dg.ExecuteInProcessResult:
    with quiet_dagster():
        return (
            forge.site.definitions()
            .resolve_job_def(NAME)
            .execute_in_process(
                instance=forge.site.instance,
                raise_on_error=False,
                run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
            )
        )


def due(forge: Forge) -> None:
    """Let the time of a root come."""
    forge.site.execute("UPDATE scm.discovery_roots SET visited_at = now() - interval '2 hours'")


def snapshot(forge: Forge) -> catalog.CatalogSnapshot:
    return catalog.read_snapshot(forge.site.settings.catalog_file)


def test_a_due_root_starts_one_run_and_the_new_project_is_loaded(rooted: Forge) -> None:
    assert isinstance(evaluate(rooted), dg.SkipReason)
    due(rooted)
    assert isinstance(evaluate(rooted), dg.RunRequest)
    rooted.gitlab.project("news", group=rooted.group)
    assert run(rooted).success
    assert [r.project_path for r in snapshot(rooted).repositories] == ["team1/app", "team1/news"]
    assert isinstance(evaluate(rooted), dg.SkipReason)


def test_a_renamed_project_keeps_its_assets(rooted: Forge) -> None:
    [before] = snapshot(rooted).repositories
    [project] = rooted.gitlab.projects.values()
    rooted.gitlab.rename_project(project, "renamed")
    due(rooted)
    assert run(rooted).success
    [after] = snapshot(rooted).repositories
    assert (after.repo_id, after.slug, after.url) == (before.repo_id, before.slug, before.url)
    assert after.project_path == "team1/renamed"


def test_an_older_fact_moves_the_days_without_any_root_being_due(rooted: Forge) -> None:
    rooted.git_project("old", "2011-02-03")
    export_catalog(rooted.site.database, rooted.site.settings)
    assert isinstance(evaluate(rooted), dg.SkipReason)
    assert rooted.site.run("sync_commits").success
    assert isinstance(evaluate(rooted), dg.RunRequest)
    assert run(rooted).success
    assert snapshot(rooted).history_start == date(2011, 2, 3)
    assert isinstance(evaluate(rooted), dg.SkipReason)


def test_a_root_that_cannot_be_listed_fails_the_run_by_name(rooted: Forge) -> None:
    due(rooted)
    rooted.gitlab.faults.add(r"/groups/", faults.json_answer(403, {"message": "403 Forbidden"}), times=None)
    done = run(rooted)
    assert not done.success
    [failure] = [event.step_failure_data for event in done.all_events if event.is_step_failure]
    assert failure.user_failure_data is not None
    assert "team1" in (failure.user_failure_data.description or "")
    assert failure.error is not None
    assert failure.error.stack == []
    [row] = rooted.site.rows("SELECT error_code, lifecycle FROM scm.discovery_roots")
    assert (row["error_code"], row["lifecycle"]) == ("denied", "active")
    assert [r.lifecycle for r in snapshot(rooted).repositories] == ["active"]


def test_a_refused_token_is_left_alone(rooted: Forge) -> None:
    [token] = rooted.gitlab.tokens.values()
    rooted.gitlab.revoke(token)
    due(rooted)
    assert not run(rooted).success
    due(rooted)
    assert isinstance(evaluate(rooted), dg.SkipReason)
