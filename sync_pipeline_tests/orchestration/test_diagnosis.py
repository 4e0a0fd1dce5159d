"""What the doctor finds of Dagster: on a new database, on a used one, and with limits changed by hand."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import dagster as dg
import psycopg
import pytest
from dagster._core.errors import DagsterLaunchFailedError
from dagster._core.events import EngineEventData
from dagster._core.test_utils import create_run_for_test
from dagster._daemon.types import DaemonHeartbeat
from dagster._utils.error import serializable_error_info_from_exc_info

from sync_pipeline.cli.reports import status_liveness
from sync_pipeline.database.pool import Database
from sync_pipeline.orchestration.diagnosis import dagster_checks
from sync_pipeline.orchestration.instance import dagster_environment, quiet_dagster
from sync_pipeline.reports.doctor import Finding, State
from sync_pipeline.reports.doctor.findings import DAGSTER_CHECKS
from sync_pipeline.reports.status import status
from sync_pipeline.runtime import environment
from sync_pipeline.settings import Settings, load_settings

OK, WARNING, FAILED, SKIPPED = State


@pytest.fixture
def settings(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Settings that name the test's database and a state folder of its own."""
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    (tmp_path / "state").mkdir()
    return load_settings(database_url=database_url, state_dir=tmp_path / "state", environment="test")


def examined(settings: Settings) -> dict[str, Finding]:
    found = dagster_checks(settings, settings.database_url)
    assert tuple(found) == DAGSTER_CHECKS
    assert all((one.remedy != "") == (one.state in (WARNING, FAILED)) for one in found.values())
    return found


def states(settings: Settings) -> list[State]:
    return [one.state for one in examined(settings).values()]


def test_looking_makes_no_tables(settings: Settings) -> None:
    assert states(settings) == [OK, OK, SKIPPED, SKIPPED, SKIPPED]
    with psycopg.connect(settings.database_url) as conn:
        row = conn.execute("SELECT to_regnamespace('dagster')").fetchone()
    assert row == (None,)


def test_a_database_of_dagsters_own_is_named_when_it_does_not_answer(settings: Settings) -> None:
    other = settings.model_copy(
        update={"dagster_database_url": "postgresql://me:hunter2@127.0.0.1:1/dagster"}
    )
    found = examined(other)
    assert found["dagster_storage"].state is FAILED
    assert "SCM_DAGSTER_DATABASE_URL" in found["dagster_storage"].remedy
    assert "hunter2" not in str(found)
    assert dagster_checks(settings, None)["dagster_storage"].state is SKIPPED


def test_daemon_versions_limits_and_home_of_an_instance_in_use(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with dagster_environment(settings), dg.DagsterInstance.get() as instance:
        needed = instance.get_required_daemon_types()
    assert states(settings) == [OK, OK, SKIPPED, OK, SKIPPED]

    def beat(ago: float, *kinds: str) -> None:
        with dagster_environment(settings), dg.DagsterInstance.get() as instance:
            for kind in kinds:
                instance.add_daemon_heartbeat(DaemonHeartbeat(time.time() - ago, kind, "1", None))

    beat(3600, *needed)
    assert examined(settings)["dagster_daemon"].seen == "none runs; the last one was alive 60 minutes ago"
    beat(5, *list(needed)[1:])
    assert examined(settings)["dagster_daemon"].seen == f"silent: {next(iter(needed))}"
    beat(5, *needed)
    assert examined(settings)["dagster_daemon"].state is OK

    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    assert examined(settings)["dagster_home"].state is WARNING
    monkeypatch.delenv("DAGSTER_HOME")

    own = environment.config_file("dagster.yaml").read_text()
    changed = own.replace("granularity: op", "granularity: run").replace("limit: 4", "limit: 8", 1)
    changed = changed.replace("enabled: true", "enabled: false", 1)
    file = tmp_path / "dagster.yaml"
    file.write_text(changed)
    monkeypatch.setattr(environment, "config_file", lambda name: file)
    limits = examined(settings)["dagster_concurrency"]
    assert limits.state is WARNING
    assert limits.seen == (
        "backfills may take more than half of the runs; pools do not limit ops; run monitoring is off"
    )

    with psycopg.connect(settings.database_url, autocommit=True) as conn:
        conn.execute("UPDATE dagster.alembic_version SET version_num = 'bf27ab4eb8b8'")
    assert "another version of Dagster" in examined(settings)["dagster_storage"].seen


def test_runs_that_failed_before_they_began_are_counted_and_say_why(settings: Settings) -> None:
    """A run that Dagster could not start has no row of ours, so only Dagster's tables know of it."""

    @dg.job
    def fine() -> None:
        pass

    def fail(instance: dg.DagsterInstance, error: Exception | None) -> None:
        run = create_run_for_test(instance, job_name="fine")
        if error is None:
            instance.report_run_failed(run, "Run timed out due to taking longer than 900 seconds to start.")
            return
        try:
            raise error
        except Exception:
            failure = serializable_error_info_from_exc_info(sys.exc_info())
        instance.report_engine_event("Caught an error", run, EngineEventData.engine_error(failure))
        instance.report_run_failed(run)

    with dagster_environment(settings), quiet_dagster(), dg.DagsterInstance.get() as instance:
        fine.execute_in_process(instance=instance)
        assert examined(settings)["dagster_runs"].seen == "each of the last 1 began"
        fail(instance, None)
        fine.execute_in_process(instance=instance)
        found = examined(settings)["dagster_runs"]
        assert found.state is WARNING
        assert found.seen == (
            "1 of the last 3 runs failed before they began: "
            "Run timed out due to taking longer than 900 seconds to start."
        )
        for _ in range(12):
            error = DagsterLaunchFailedError("Tried to start a run\x1b[31m on a server")  # type: ignore[no-untyped-call]
            fail(instance, error)
        fine.execute_in_process(instance=instance)
    found = examined(settings)["dagster_runs"]
    assert found.state is FAILED
    line = "11 of the last 12 runs failed before they began: "
    assert found.seen.startswith(line)
    assert found.seen.endswith("DagsterLaunchFailedError: Tried to start a run [31m on a server")
    with Database(settings.database_url or "") as database:
        document = status(database, settings)
    assert (document["run_starts"]["runs"], document["run_starts"]["failed"]) == (12, 11)
    assert line in "\n".join(status_liveness(document))
