"""Sensors, tick by tick, on a real database and a real Dagster instance."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest

from sync_pipeline.core import catalog
from sync_pipeline.core.model import (
    BEGINNING,
    JobRequest,
    JobType,
    Mode,
    RevisionWindow,
    TimeWindow,
    Trigger,
)
from sync_pipeline.ledger import heartbeats, jobs, planning, repos, watermarks
from sync_pipeline.orchestration.partitions import known_blocks
from sync_pipeline.registry.registration import add_repository
from sync_pipeline.sync.readers import svn_reader
from sync_pipeline_sandbox import svn_samples
from sync_pipeline_tests.builders import register, register_project
from sync_pipeline_tests.orchestration.conftest import Forge, Site, midnight


def registered(site: Site, *slugs: str, head: int = 10) -> list[int]:
    with site.database.connection() as conn:
        return [register(conn, slug, head=head) for slug in slugs]


def history(site: Site, repo_id: int, *firsts: int) -> None:
    with site.database.connection() as conn:
        for first in firsts:
            window = RevisionWindow(first, first + 1000)
            request = JobRequest(
                repo_id, JobType.REVISIONS, Mode.BACKFILL, Trigger.REGISTRATION, "a", "b", window=window
            )
            jobs.enqueue(conn, request)


def midnight_window(day: str) -> TimeWindow:
    since = datetime.fromisoformat(day).replace(tzinfo=UTC)
    return TimeWindow(since, since + timedelta(days=1))


VISITED = """
UPDATE scm.sync_watermarks
   SET visited_at = now() - make_interval(secs => %(age)s), covered_revs = '{[1,11)}', verified_at = now()
"""


def test_what_is_due_goes_into_one_run_for_all_and_is_not_started_again_meanwhile(site: Site) -> None:
    registered(site, "paint", "glue")
    [request] = site.schedule()
    assert sorted(key.path[1] for key in request.asset_selection or ()) == ["glue", "paint"]
    assert request.partition_key == known_blocks(site.instance)[-1]
    assert request.tags["scm/mode"] == "incremental"
    assert request.asset_check_keys == []
    site.launch(request, dg.DagsterRunStatus.STARTED)
    assert site.schedule() == []


@pytest.mark.parametrize("slugs", [("paint",), ("paint", "glue")])
def test_a_run_shows_three_tags_at_most_and_its_repository_where_it_is_for_one(
    site: Site, slugs: tuple[str, ...]
) -> None:
    registered(site, *slugs)
    [request] = site.schedule()
    shown = {
        tag: value for tag, value in request.tags.items() if not tag.startswith(("dagster/", ".dagster/"))
    }
    named = {"repo": "paint"} if len(slugs) == 1 else {}
    assert shown == {"scm/mode": "incremental", "scm/reason": "never_visited", **named}


def test_a_run_that_died_before_it_claimed_is_started_again(site: Site) -> None:
    registered(site, "paint")
    [first] = site.schedule()
    site.launch(first, dg.DagsterRunStatus.FAILURE)
    [second] = site.schedule()
    assert second.asset_selection == first.asset_selection


def test_the_run_key_changes_with_the_attempt(site: Site) -> None:
    registered(site, "paint")
    [first] = site.schedule()
    site.execute("UPDATE scm.sync_jobs SET status = 'failed', attempts = attempts + 1")
    [second] = site.schedule()
    assert first.run_key != second.run_key
    assert len(first.run_key or "") == 32


def test_nothing_new_starts_nothing_and_a_hint_does(site: Site) -> None:
    [repo_id] = registered(site, "paint")
    site.execute(VISITED, age=1)
    assert site.schedule() == []
    with site.database.connection() as conn:
        planning.record_hint(conn, repo_id, head_rev=11)
    assert len(site.schedule()) == 1


def test_history_is_grouped_by_ranges_of_ten_blocks(site: Site) -> None:
    [repo_id] = registered(site, "paint", head=15_000)
    site.execute(VISITED, age=1)
    history(site, repo_id, 1, 2001, 12_001)
    found = [
        (
            request.tags["dagster/asset_partition_range_start"],
            request.tags["dagster/asset_partition_range_end"],
        )
        for request in site.schedule()
    ]
    assert found == [
        ("0000000001-0000001000", "0000002001-0000003000"),
        ("0000012001-0000013000", "0000012001-0000013000"),
    ]


def test_a_deep_queue_holds_the_scheduler_back(site: Site) -> None:
    registered(site, "paint")
    [request] = site.schedule()
    for _ in range(3):
        site.launch(request, dg.DagsterRunStatus.NOT_STARTED)
    [repo_id] = registered(site, "glue")
    assert site.schedule() == []
    with site.database.connection() as conn:
        assert "held back" in heartbeats.read(conn)[0].outcome
    assert repo_id


def test_two_schedulers_are_harmless(site: Site) -> None:
    registered(site, "paint")
    with site.database.connection() as conn, conn.transaction():
        assert planning.try_lock_scheduler(conn)
        assert site.schedule() == []
    assert len(site.schedule()) == 1


def test_a_changed_verdict_is_reported_once(site: Site) -> None:
    registered(site, "paint")
    first = site.tick("scheduler")
    assert isinstance(first, dg.SensorResult)
    of_fleet = {"attendance", "servers", "held_back", "code_location"}
    passed = {
        one.check_name: one.passed for one in first.asset_events if isinstance(one, dg.AssetCheckEvaluation)
    }
    assert passed == {"health": False, **dict.fromkeys(of_fleet, True)}
    second = site.tick("scheduler")
    assert isinstance(second, dg.SensorResult)
    assert list(second.asset_events) == []
    site.execute(VISITED, age=1)
    third = site.tick("scheduler")
    assert isinstance(third, dg.SensorResult)
    assert [event.passed for event in third.asset_events if isinstance(event, dg.AssetCheckEvaluation)] == [
        True
    ]


def test_a_gap_fails_until_a_job_will_fill_it(site: Site) -> None:
    [repo_id] = registered(site, "paint", head=1500)
    site.execute(
        "UPDATE scm.sync_watermarks SET origin_rev = 1001, covered_revs = '{[1001,1501)}',"
        " verified_at = now(), visited_at = now()"
    )
    found = site.tick("scheduler")
    assert isinstance(found, dg.SensorResult)
    assert [one.metadata["reasons"].value for one in found.asset_events if "reasons" in one.metadata] == [
        "gap"
    ]
    history(site, repo_id, 1)
    found = site.tick("scheduler")
    assert isinstance(found, dg.SensorResult)
    [verdict] = found.asset_events
    assert verdict.metadata["reasons"].value == "incomplete"
    assert isinstance(verdict, dg.AssetCheckEvaluation)
    assert verdict.severity is dg.AssetCheckSeverity.WARN


def test_changes_are_hints_that_rotate_and_survive_a_broken_repository(site: Site, tmp_path: Path) -> None:
    names = ["one", "two", "three"]
    site.settings = site.settings.model_copy(update={"changes_per_tick": 2, "changes_max_seconds": 30.0})
    for name in names:
        url = svn_samples.large(tmp_path / name, 1, 1)
        spec = catalog.parse_spec(f"svn:{url}")
        add_repository(
            site.database,
            site.settings,
            spec,
            actor="test",
            reader_factory=lambda url: svn_reader(site.settings, url),
        )
    (tmp_path / "one").rename(tmp_path / "moved")
    first = site.tick("changes_local")
    assert isinstance(first, dg.SkipReason)
    assert first.skip_message == "looked at 2 of 3, 1 failed"
    site.tick("changes_local")
    with site.database.connection() as conn:
        hints = conn.execute("SELECT head_rev, error_code FROM scm.change_hints ORDER BY repo_id").fetchall()
    assert [hint["head_rev"] for hint in hints] == [None, 1, 1]
    assert hints[0]["error_code"] is not None
    assert site.instance.get_runs() == []


def test_a_cursor_of_another_kind_starts_from_the_beginning(site: Site) -> None:
    registered(site, "paint")
    site.settings = site.settings.model_copy(update={"changes_max_seconds": 5.0})
    site.cursors["changes_local"] = "not json"
    assert isinstance(site.tick("changes_local"), dg.SkipReason)


def test_a_tick_that_fails_leaves_a_heartbeat_that_says_so(site: Site) -> None:
    registered(site, "paint")
    site.execute("ALTER TABLE scm.change_hints RENAME TO elsewhere")
    with pytest.raises(Exception, match="change_hints"):
        site.tick("scheduler")
    with site.database.connection() as conn:
        assert heartbeats.read(conn)[0].outcome.startswith("failed")


# GitLab -----------------------------------------------------------------------------------------------------


def projects(site: Site, *numbers: int) -> list[int]:
    site.settings = site.settings.model_copy(update={"gitlab_url": "https://gitlab.example"})
    origin = datetime.now(UTC) - timedelta(days=30)
    with site.database.connection() as conn:
        return [
            register_project(conn, "https://gitlab.example", n, f"acme/p{n}", origin=origin) for n in numbers
        ]


def test_what_is_due_of_gitlab_is_one_run_per_family_carried_by_today(site: Site, noon: datetime) -> None:
    projects(site, 7, 8)
    commits, pair = site.schedule()
    assert (commits.job_name, pair.job_name) == ("sync_commits", "sync_merge_requests")
    today = noon.date().isoformat()
    assert {commits.partition_key, pair.partition_key} == {today}
    assert sorted("/".join(key.path[1:]) for key in pair.asset_selection or ()) == [
        "project_7/merge_requests",
        "project_7/reviews",
        "project_8/merge_requests",
        "project_8/reviews",
    ]
    site.launch(pair, dg.DagsterRunStatus.STARTED)
    site.launch(commits, dg.DagsterRunStatus.STARTED)
    assert site.schedule() == []


def test_history_of_time_is_a_run_per_window_for_all_that_miss_it(site: Site) -> None:
    repo_ids = projects(site, 7, 8)
    site.execute("UPDATE scm.sync_watermarks SET visited_at = now()")
    year = TimeWindow(datetime(2025, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC))
    before = TimeWindow(BEGINNING, year.since)
    with site.database.connection() as conn:
        for window in (year, before):
            for repo_id in repo_ids:
                for job_type in (JobType.MERGE_REQUESTS, JobType.REVIEWS):
                    job = JobRequest(
                        repo_id, job_type, Mode.BACKFILL, Trigger.REGISTRATION, "a", "b", window=window
                    )
                    jobs.enqueue(conn, job)
    found = site.schedule()
    assert [request.tags["dagster/scm_windows"] for request in found] == [str(year), str(before)]
    assert [len(request.asset_selection or ()) for request in found] == [4, 4]
    for request in found:
        site.launch(request, dg.DagsterRunStatus.STARTED)
    assert site.schedule() == []


def test_completion_is_one_run_of_a_server_behind_all_others_and_takes_its_own_jobs(site: Site) -> None:
    repo_ids = projects(site, 7, 8)
    site.execute("UPDATE scm.sync_watermarks SET visited_at = now()")
    site.execute(
        "INSERT INTO scm.deferred_fetches (repo_id, job_type, natural_key, detail, last_error, is_planned)"
        " SELECT repo_id, job_type, '1', 'versions', 'later', TRUE FROM scm.sync_watermarks"
        " WHERE job_type <> 'commits'"
    )
    [request] = site.schedule()
    assert len(request.asset_selection or ()) == 4
    assert (request.tags["scm/mode"], request.tags["dagster/priority"]) == ("repair", "-20")
    assert request.partition_key is not None
    assert "dagster/scm_windows" not in request.tags
    site.launch(request, dg.DagsterRunStatus.STARTED)
    assert site.schedule() == []
    with site.database.connection() as conn:
        taken = planning.waiting_requests(
            conn,
            repo_ids=repo_ids,
            mode=Mode.REPAIR,
            window=midnight_window(request.partition_key),
            dispatch=request.tags["dagster/scm_dispatch"],
        )
    assert [(one.only_deferred, one.window) for one in taken] == [(True, None)] * 4


def test_a_server_that_is_not_configured_starts_nothing_and_says_so(site: Site) -> None:
    projects(site, 7)
    site.settings = site.settings.model_copy(update={"gitlab_url": ""})
    found = site.tick("scheduler")
    assert isinstance(found, dg.SensorResult)
    assert not found.run_requests
    results = [one for one in found.asset_events if "reasons" in one.metadata]
    assert {one.metadata["reasons"].value for one in results} == {
        "credential, gap, never_synced",
        "credential, incomplete, never_synced",
    }


def test_a_host_may_be_both_kinds_of_server(site: Site) -> None:
    projects(site, 7)
    registered(site, "paint")
    site.execute("UPDATE scm.repos SET instance_slug = 'both'")
    site.settings = site.settings.model_copy(update={"gitlab_url": "", "changes_max_seconds": 5.0})
    found = site.tick("changes_both")
    assert isinstance(found, dg.SkipReason)
    assert found.skip_message is not None
    assert found.skip_message.startswith("not asked: no GitLab is configured")
    assert found.skip_message.endswith("looked at 1 of 1, 1 failed")


def test_history_longer_than_the_limit_is_read_in_pieces_until_nothing_is_missing(forge: Forge) -> None:
    site, now = forge.site, datetime.now(UTC)
    site.settings = site.settings.model_copy(update={"scheduler_max_backfill_window_hours": 240.0})
    repo_id = forge.large_project("app", 6, now - timedelta(days=90))
    whole = TimeWindow(midnight(now - timedelta(days=75)), midnight(now - timedelta(days=50)))
    with site.database.connection() as conn:
        repos.begin_history(conn, (now - timedelta(days=90)).date(), site.settings.gitlab.history_floor)
        job_id = jobs.enqueue(
            conn,
            JobRequest(
                repo_id,
                JobType.MERGE_REQUESTS,
                Mode.BACKFILL,
                Trigger.REGISTRATION,
                "a",
                "b",
                window=whole,
            ),
        )
    read = []
    while wanted := [one for one in site.schedule() if one.tags["scm/mode"] == "backfill"]:
        [start] = wanted
        done = site.start(start)
        assert done.success, done.error
        [report] = done.reports
        read.append(report.window)
    assert read == [
        TimeWindow(midnight(now - timedelta(days=older)), midnight(now - timedelta(days=newer)))
        for older, newer in ((60, 50), (70, 60), (75, 70))
    ]
    with site.database.connection() as conn:
        assert watermarks.missing(conn, repo_id, JobType.MERGE_REQUESTS, whole) == ()
        # The oldest part has a job of its own; the job itself kept the newest one.
        assert jobs.report(conn, job_id).window == read[0]
