"""Runs of the daily assets on a real GitLab over HTTP: what is asked for, read, materialized, refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import dagster as dg
import pytest

from sync_pipeline.core import clock
from sync_pipeline.core.model import BEGINNING, JobRequest, JobType, Mode, TimeWindow, Trigger
from sync_pipeline.ledger import jobs, watermarks
from sync_pipeline.orchestration import completed_partitions, run_spec
from sync_pipeline.orchestration.partitions import day_key, days_of, windows_text
from sync_pipeline_sandbox.gitlab import faults
from sync_pipeline_tests.orchestration.conftest import Forge, Ran, midnight

COMMITS, MRS, REVIEWS = JobType.COMMITS, JobType.MERGE_REQUESTS, JobType.REVIEWS
PAIR = "sync_merge_requests"
WINDOWS = "SELECT job_type, lower(period) AS since, upper(period) AS until, reread FROM scm.sync_jobs"
LISTS = r"/projects/\d+/merge_requests\?"


@pytest.fixture
def forge(forge: Forge, noon: datetime) -> Forge:
    """A GitLab whose clock stands still."""
    forge.gitlab.clock.fixed = noon
    return forge


def today() -> datetime:
    return midnight(clock.now())


def ago(days: int) -> str:
    return (today() - timedelta(days=days)).date().isoformat()


def days_to_today(first: int) -> list[str]:
    """The keys from so many days ago to today."""
    return [ago(number) for number in range(first, -1, -1)]


def days(first: int, last: int) -> dict[str, str]:
    """The tags of a range of days, both counted back from today."""
    return {run_spec.RANGE_START_TAG: ago(first), run_spec.RANGE_END_TAG: ago(last)}


def asked_for(forge: Forge, job_type: JobType) -> list[tuple[int, int, bool]]:
    """The windows of the jobs so far, as days back from today, and whether they were read again."""
    rows = forge.site.rows(f"{WINDOWS} WHERE job_type = %(j)s ORDER BY created_at", j=str(job_type))
    return [((today() - r["since"]).days, (today() - r["until"]).days, r["reread"]) for r in rows]


def lists(forge: Forge) -> int:
    """How often the list of merge requests was asked for since the last call."""
    return len([path for path in forge.asked("/merge_requests") if path.endswith("/merge_requests")])


def test_an_incremental_reads_both_once_and_materializes_up_to_now(forge: Forge) -> None:
    now = clock.now()
    repo_id = forge.large_project("app", 8, now - timedelta(days=3))
    forge.gitlab.clock.fixed = now - timedelta(minutes=10)
    found = forge.site.run(PAIR)
    assert found.success, found.error
    assert [report.job_type for report in found.reports] == [MRS, REVIEWS]
    assert lists(forge) == 2, "one list of what is there, and once a day one of what is dated later"
    # Live syncing begins at the origin; every day since is complete.
    assert found.days(MRS) == found.days(REVIEWS) == days_to_today(30)
    checks = forge.site.rows("SELECT job_type, passed FROM scm.health ORDER BY job_type")
    assert [row["job_type"] for row in checks] == ["merge_requests", "reviews"]

    again = forge.site.run(PAIR)
    assert (again.success, again.materialized) == (True, {}), "nothing new costs no event"

    forge.gitlab.clock.fixed = now - timedelta(minutes=5)
    forge.gitlab.edit(next(iter(forge.project(repo_id).merge_requests.values())), title="Edited")
    forge.gitlab.clock.fixed = now
    third = forge.site.run(PAIR)
    assert third.days(MRS) == [ago(0)], "a changed row shows today again"


def test_a_check_is_evaluated_again_after_the_scheduler_materialized_its_asset(forge: Forge) -> None:
    repo_id = forge.large_project("app", 8, clock.now() - timedelta(days=3))
    pair = [forge.key(repo_id, job_type) for job_type in (MRS, REVIEWS)]
    assert forge.site.run(PAIR).success

    def reported() -> list[dg.AssetKey]:
        found = forge.site.tick("scheduler")
        assert isinstance(found, dg.SensorResult)
        return [
            one.asset_key
            for one in found.asset_events
            if isinstance(one, dg.AssetCheckEvaluation) and one.asset_key in pair
        ]

    assert reported() == [], "the run reported them"
    done = forge.site.run(PAIR, days(3, 1), selection=pair, checks=False)
    assert done.days(MRS) == [ago(3), ago(2), ago(1)]
    assert sorted(reported()) == sorted(pair), "Dagster shows an older result as not evaluated"
    assert reported() == [], "once"


def test_neighbouring_days_are_one_question_and_every_one_is_materialized(forge: Forge) -> None:
    forge.large_project("app", 30, today() - timedelta(days=20))
    found = forge.site.run(PAIR, days(20, 11))
    assert found.success, found.error
    assert asked_for(forge, MRS) == asked_for(forge, REVIEWS) == [(20, 10, False)]
    assert lists(forge) == 2, "one list of the days, and one by number for what was planned"
    assert found.days(MRS) == found.days(REVIEWS) == [ago(n) for n in range(20, 10, -1)]

    # Ten covered days and five that are not: the ones are a wish to compare, of the others all is missing.
    forge.site.execute("UPDATE scm.mrs SET title = 'overwritten', content_hash = ''")
    found = forge.site.run(PAIR, days(20, 6))
    assert asked_for(forge, MRS)[1:] == [(20, 10, True), (10, 5, False)]
    assert found.days(MRS) == [ago(n) for n in range(20, 5, -1)]
    assert forge.site.rows("SELECT 1 FROM scm.mrs WHERE title = 'overwritten'") == []


def test_today_is_materialized_up_to_now_and_again_when_asked_for(forge: Forge) -> None:
    forge.large_project("app", 3, today() - timedelta(days=2))
    for again in (False, True):
        found = forge.site.run(PAIR, {run_spec.PARTITION_TAG: ago(0)})
        assert found.success, found.error
        assert found.days(MRS) == [ago(0)]
        assert asked_for(forge, MRS)[-1] == (0, -1, again)


def test_five_empty_years_cost_a_handful_of_requests(forge: Forge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completed_partitions, "NEWEST_DAYS", 20)
    repo_id = forge.git_project("app", "2019-01-01", "2026-01-01")
    window = TimeWindow(datetime(2020, 1, 1, tzinfo=UTC), datetime(2025, 1, 1, tzinfo=UTC))
    forge.site.run("sync_commits")
    forge.asked()
    tags = {
        run_spec.TRIGGER_TAG: "runner",
        run_spec.MODE_TAG: "backfill",
        run_spec.WINDOWS_TAG: windows_text([window]),
    }
    tags |= {run_spec.RANGE_START_TAG: "2024-12-31", run_spec.RANGE_END_TAG: "2024-12-31"}
    done = forge.site.run(PAIR, tags, selection=[forge.key(repo_id, MRS)])
    assert done.success, done.error
    assert [report.calls for report in done.reports] == [len(forge.asked())]
    assert done.reports[0].calls <= 5
    # All are covered; of so long a window the newest are shown.
    assert done.days(MRS) == [day_key(day) for day in days_of(window)][-20:]


def test_days_that_begin_earlier_arrive_with_the_oldest_fact(forge: Forge) -> None:
    forge.git_project("app", "2015-05-06", "2026-01-01")
    found = forge.site.run("sync_commits")
    assert found.success, found.error
    assert found.days(COMMITS) == days_to_today(30), "older days were no partitions when it began"
    definition = forge.site.definitions().get_repository_def().get_job("sync_commits").partitions_def
    assert definition == dg.DailyPartitionsDefinition("2015-05-06", timezone="UTC", end_offset=1)


def test_what_lies_in_front_of_all_days_is_read_and_has_no_partition(forge: Forge) -> None:
    repo_id = forge.large_project("app", 5, datetime(2016, 1, 1, tzinfo=UTC))
    window = TimeWindow(BEGINNING, today() - timedelta(days=60))
    carrier = forge.site.definitions().get_repository_def().get_job(PAIR).partitions_def
    assert isinstance(carrier, dg.DailyPartitionsDefinition)
    first = carrier.get_first_partition_key()
    assert first is not None
    found = forge.site.run(
        PAIR,
        {
            run_spec.TRIGGER_TAG: "runner",
            run_spec.MODE_TAG: "backfill",
            run_spec.WINDOWS_TAG: windows_text([window]),
            run_spec.RANGE_START_TAG: first,
            run_spec.RANGE_END_TAG: first,
        },
    )
    assert (found.success, found.materialized) == (True, {}), found.error
    assert found.reports[0].counts.inserted == 5
    with forge.site.database.connection() as conn:
        assert watermarks.missing(conn, repo_id, MRS, window) == ()


def test_history_of_both_is_read_once_from_the_ledger(forge: Forge) -> None:
    repo_id = forge.large_project("app", 9, today() - timedelta(days=90))
    other = forge.large_project("lib", 3, today() - timedelta(days=90))
    year = TimeWindow(today() - timedelta(days=100), today() - timedelta(days=30))
    with forge.site.database.connection() as conn:
        for project, job_types in ((repo_id, (MRS, REVIEWS)), (other, (MRS,))):
            for job_type in job_types:
                job = JobRequest(
                    project, job_type, Mode.BACKFILL, Trigger.REGISTRATION, "a", "b", window=year
                )
                jobs.enqueue(conn, job)
        conn.execute("UPDATE scm.sync_watermarks SET visited_at = now()")
    [request] = forge.site.schedule()
    assert request.tags[run_spec.WINDOWS_TAG] == str(year)
    assert {(key.path[-2], key.path[-1]) for key in request.asset_selection or ()} == {
        (forge.key(repo_id, MRS).path[1], "merge_requests"),
        (forge.key(repo_id, REVIEWS).path[1], "reviews"),
        (forge.key(other, MRS).path[1], "merge_requests"),
    }
    forge.asked()
    found = forge.site.start(request)
    assert found.success, found.error
    assert lists(forge) == 2, "one list for each project"
    assert {row["status"] for row in forge.site.rows("SELECT status FROM scm.sync_jobs")} == {"completed"}
    assert {report.mode for report in found.reports} == {Mode.BACKFILL}


def test_a_failure_in_the_middle_shows_what_succeeded_and_names_the_rest(forge: Forge) -> None:
    repo_id = forge.large_project("app", 150, today() - timedelta(days=25))
    project = forge.project(repo_id)
    updated = sorted(request.updated_at for request in project.merge_requests.values())
    assert updated[-1] < today()
    # The second page of the list is refused.
    forge.gitlab.faults.add(
        r"/merge_requests\?.*updated_after", faults.json_answer(403, {"message": "no"}), skip=1
    )
    found = forge.site.run(PAIR, days(25, 1), selection=[forge.key(repo_id, MRS)])
    assert not found.success
    assert f"gitlab:{project.id} merge_requests" in found.error
    finished = [key for key in days_to_today(25) if key < updated[99].date().isoformat()]
    assert finished
    assert found.days(MRS) == finished
    forge.gitlab.faults.rules.clear()
    found = forge.site.run(PAIR, days(25, 1), selection=[forge.key(repo_id, MRS)])
    assert found.success, found.error
    assert found.days(MRS) == days_to_today(25)[:-1]


def test_one_that_fails_hides_no_other(forge: Forge) -> None:
    good = forge.large_project("good", 2, today() - timedelta(days=3))
    bad = forge.large_project("bad", 2, today() - timedelta(days=3))
    pattern = rf"/projects/{forge.project(bad).id}\b"
    forge.gitlab.faults.add(pattern, faults.json_answer(403, {"message": "403 Forbidden"}), times=None)
    found = forge.site.run(PAIR, days(3, 2))
    assert not found.success
    assert [report.repo_id for report in found.reports if report.succeeded] == [good, good]
    assert found.error.count(f"gitlab:{forge.project(bad).id} ") == 2
    assert found.days(MRS) == [ago(3), ago(2)]


@pytest.mark.parametrize(
    ("tags", "line"),
    [
        ({run_spec.PARTITION_TAG: "2099-01-05"}, "that day is in the future"),
        ({run_spec.PARTITION_TAG: "1999-01-05"}, "there is no partition 1999-01-05; the first is"),
        (days(1, 2), "ends before it starts"),
        ({run_spec.MODE_TAG: "backfill", run_spec.WINDOWS_TAG: "2024-01-01..2099-01-01"}, "is no window"),
    ],
)
def test_a_wrong_partition_touches_nothing(forge: Forge, tags: dict[str, str], line: str) -> None:
    forge.large_project("app", 2, today())
    found = forge.site.run(PAIR, tags)
    assert not found.success
    assert line in found.error, found.error
    assert forge.asked() == []
    assert forge.site.rows("SELECT 1 FROM scm.sync_jobs") == []


def test_update_watermark_moves_the_origin_back_after_success(forge: Forge) -> None:
    repo_id = forge.large_project("app", 2, today() - timedelta(days=3))
    assert forge.site.run(PAIR).success
    window = TimeWindow(today() - timedelta(days=50), today() - timedelta(days=30))
    tags = {
        run_spec.TRIGGER_TAG: "runner",
        run_spec.MODE_TAG: "backfill",
        run_spec.WINDOWS_TAG: windows_text([window]),
        run_spec.RANGE_START_TAG: ago(30),
        run_spec.RANGE_END_TAG: ago(30),
        run_spec.UPDATE_WATERMARK_TAG: "true",
    }
    found = forge.site.run(PAIR, tags)
    assert found.success, found.error
    with forge.site.database.connection() as conn:
        for job_type in (MRS, REVIEWS):
            assert watermarks.get(conn, repo_id, job_type).origin == window.since


def test_a_refused_token_is_told_and_other_servers_go_on(forge: Forge) -> None:
    repo_id = forge.large_project("app", 2, today())
    [token] = [t for t in forge.gitlab.tokens.values() if not t.revoked]
    forge.gitlab.revoke(token)
    found: Ran = forge.site.run(PAIR)
    assert not found.success
    assert "create a new one with scope read_api" in found.error
    assert token.secret not in found.error
    results = forge.site.rows("SELECT reasons FROM scm.health WHERE repo_id = %(id)s", id=repo_id)
    assert all("credential" in row["reasons"] for row in results)
    assert len(results) == 2
