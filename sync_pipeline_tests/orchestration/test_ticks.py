"""What all ticks have in common: a database that is away skips them, a heartbeat says that they live, and the
schedules that read something again."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime

import dagster as dg
import psycopg
import pytest
import sqlalchemy.exc

from sync_pipeline.core.catalog import copy_of
from sync_pipeline.ledger import heartbeats, pools
from sync_pipeline.orchestration.instance import quiet_dagster
from sync_pipeline.orchestration.ticks import skips_outages
from sync_pipeline_tests.builders import register
from sync_pipeline_tests.orchestration.conftest import Site

SENSORS = ("scheduler", "reaper", "changes_local")
SCHEDULES = ("rediscovery", "reconcile", "retention", "full_sync", "repair_recent")


TickResult = dg.RunRequest | dg.SkipReason | dg.SensorResult


@pytest.fixture(scope="module")
def on_disk() -> Iterator[dg.DagsterInstance]:
    """A schedule opens its instance itself, so it has to be on disk."""
    with dg.instance_for_test() as instance:
        yield instance


def ticks(site: Site, on_disk: dg.DagsterInstance, *names: str) -> dict[str, TickResult]:
    """One tick of each of these sensors and schedules."""
    location = site.definitions().get_repository_def()
    found: dict[str, TickResult] = {name: site.tick(name) for name in names if name in SENSORS}
    with (
        quiet_dagster(),
        dg.build_schedule_context(
            instance=on_disk,
            resources=dict(location.get_top_level_resources()),
            scheduled_execution_time=datetime.now(UTC),
        ) as context,
    ):
        for name in names:
            if name in SCHEDULES:
                answer = location.get_schedule_def(name)(context)
                assert isinstance(answer, TickResult)
                found[name] = answer
    return found


def test_a_database_that_is_away_skips_every_tick_with_a_reason(
    site: Site, on_disk: dg.DagsterInstance
) -> None:
    with site.database.connection() as conn:
        register(conn)
    before = site.settings
    site.settings = before.model_copy(update={"database_url": "postgresql://x@127.0.0.1:1/scm"})
    for name, found in ticks(site, on_disk, *SENSORS, *SCHEDULES).items():
        assert isinstance(found, dg.SkipReason), name
        assert "127.0.0.1:1/scm does not answer" in (found.skip_message or ""), name
    # Nothing has to be set right afterwards.
    site.settings = before
    ticks(site, on_disk, *SENSORS, *SCHEDULES)
    with site.database.connection() as conn:
        beats = {one.name: one for one in heartbeats.read(conn)}
        assert set(beats) == {*SENSORS, *SCHEDULES}
        assert all(one.every is not None and not one.outcome.startswith("failed") for one in beats.values())
        assert heartbeats.silent(conn) == []
        conn.execute("UPDATE scm.heartbeats SET beat_at = beat_at - interval '16 minutes'")
        assert [one.name for one in heartbeats.silent(conn)] == [
            "changes_local",
            "reaper",
            "rediscovery",
            "scheduler",
        ]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (psycopg.OperationalError("the connection is lost\nmore"), "went away: the connection is lost"),
        (psycopg.errors.AdminShutdown("terminating connection"), "terminating connection"),
        (sqlalchemy.exc.OperationalError("SELECT 1", {}, OSError()), "Dagster's database does not answer"),
    ],
)
def test_a_database_that_goes_away_in_the_middle_skips_too(error: Exception, message: str) -> None:
    @skips_outages
    def body() -> None:
        raise error

    found = body()
    assert isinstance(found, dg.SkipReason)
    assert (found.skip_message or "").endswith(message)


def test_a_defect_of_ours_fails_the_tick() -> None:
    @skips_outages
    def body() -> None:
        raise psycopg.errors.UndefinedColumn("no such column")

    with pytest.raises(psycopg.errors.UndefinedColumn):
        body()


def test_a_pool_says_at_each_tick_that_it_lives_and_has_heartbeats_of_its_own(site: Site) -> None:
    site.settings = site.settings.model_copy(
        update={"worker_pool": "office", "worker_tenant_allowlist": ("acme",)}
    )
    site.tick("scheduler")
    with site.database.connection() as conn:
        [pool] = pools.alive(conn)
        assert (pool.name, pool.tenants) == ("office", ["acme"])
        assert [one.name for one in heartbeats.read(conn)] == ["scheduler@office"]


def test_a_check_of_the_fleet_tells_what_is_silent_and_what_nobody_takes(site: Site) -> None:
    def checked() -> tuple[bool, str, str]:
        done = site.definitions().resolve_job_def("reconcile")
        with quiet_dagster():
            result = done.execute_in_process(instance=site.instance)
        found = {one.check_name: one for one in result.get_asset_check_evaluations()}
        assert set(found) == {"attendance", "servers", "held_back", "code_location"}
        evaluation = found["attendance"]
        metadata = {name: str(value.value) for name, value in evaluation.metadata.items()}
        return evaluation.passed, metadata["silent"], metadata["unserved"]

    with site.database.connection() as conn:
        register(conn)
    site.tick("scheduler")
    assert checked() == (True, "nothing", "nothing")
    with site.database.connection() as conn:
        conn.execute("UPDATE scm.heartbeats SET beat_at = beat_at - interval '1 hour'")
        pools.seen(conn, "default", instances=("elsewhere",), tenants=(), job_types=())
    passed, silent, unserved = checked()
    assert (passed, unserved) == (False, "svn:file:///srv/paint revisions")
    assert re.fullmatch(r"scheduler for 6\d min", silent)


def test_a_schedule_starts_a_run_where_something_is_to_be_read_again(
    site: Site, on_disk: dg.DagsterInstance
) -> None:
    def tick() -> TickResult:
        return ticks(site, on_disk, "full_sync")["full_sync"]

    with site.database.connection() as conn:
        register(conn)
    assert isinstance(tick(), dg.SkipReason)
    site.execute(
        "UPDATE scm.sync_watermarks SET covered_revs = '{[1,1501)}', head_rev = 1500, access = 'ok',"
        " visited_at = now(), verified_at = now()"
    )
    assert isinstance(tick(), dg.RunRequest)
    assert site.run("full_sync").success
    jobs = site.rows("SELECT revs::text, actor, priority FROM scm.sync_jobs ORDER BY revs")
    assert [(job["revs"], job["actor"], job["priority"]) for job in jobs] == [
        ("[1,1001)", "full_sync", 800),
        ("[1001,1501)", "full_sync", 800),
    ]
    found = tick()
    assert isinstance(found, dg.SkipReason)
    assert found.skip_message is not None
    assert found.skip_message.startswith(
        "nothing is to be read again; (repository, job type) left out: 1 with"
    )
    # The scheduler starts them like everything else.
    assert {request.tags["scm/mode"] for request in site.schedule()} == {"backfill"}
    schedule = site.definitions().get_repository_def().get_schedule_def("full_sync")
    assert (schedule.cron_schedule, schedule.default_status) == (
        "0 2 * * *",
        dg.DefaultScheduleStatus.RUNNING,
    )


def location_check(site: Site) -> dg.AssetCheckEvaluation | None:
    """What the next tick of the scheduler reports of the check ``code_location``."""
    found = site.tick("scheduler")
    assert isinstance(found, dg.SensorResult)
    events = [one for one in found.asset_events if isinstance(one, dg.AssetCheckEvaluation)]
    return next((one for one in events if one.check_name == "code_location"), None)


def test_a_damaged_snapshot_is_red_within_a_tick_with_its_remedy(site: Site) -> None:
    file = site.settings.catalog_file
    green = location_check(site)
    assert green is not None, "the page never shows a check as not evaluated"
    assert green.passed
    assert location_check(site) is None, "once"
    for place in (file, copy_of(file)):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("{ broken")
    red = location_check(site)
    assert red is not None
    assert not red.passed
    assert red.metadata["problem 1"].value == (
        f"the catalog snapshot {file} is damaged; run: scm-sync catalog export"
    )
    for place in (file, copy_of(file)):
        place.unlink()
    green = location_check(site)
    assert green is not None
    assert green.passed


def test_settings_that_a_new_run_cannot_load_are_red_within_a_tick(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCM_SENSOR_INTERVAL_SECONDS", "often")
    red = location_check(site)
    assert red is not None
    assert not red.passed
    assert "SCM_SENSOR_INTERVAL_SECONDS" in str(red.metadata["problem 1"].value)
