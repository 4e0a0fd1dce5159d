"""Where each batch was read: position, keys, requests, and the times that a replay reads again."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from uuid import UUID

from sync_pipeline.core.model import JobReport, JobRequest, JobType, Mode, TimeWindow, Trigger
from sync_pipeline.database.pool import Database
from sync_pipeline.ledger import runs
from sync_pipeline.ledger.runs import BatchRow
from sync_pipeline.settings import Settings
from sync_pipeline.sync.engine import Syncer
from sync_pipeline_tests.builders import register_source
from sync_pipeline_tests.svn_fixtures import large_repository
from sync_pipeline_tests.sync.conftest import Forge

SECOND = timedelta(seconds=1)


def batches(database: Database, report: JobReport) -> list[BatchRow]:
    assert report.succeeded, report.error
    assert isinstance(report.run_id, UUID)
    with database.connection() as conn:
        found = runs.batches(conn, [report.run_id])
    assert sum(one.calls or 0 for one in found) <= report.calls
    return found


def test_a_batch_of_revisions_names_its_range_with_the_first_and_last_that_came(
    database: Database, tmp_path: Path
) -> None:
    repository = large_repository(tmp_path / "repository", 7)
    with database.connection() as conn:
        repo_id = register_source(conn, repository.url)
    syncer = Syncer(database, Settings(chunk_revisions=3))
    request = JobRequest(repo_id, JobType.REVISIONS, Mode.INCREMENTAL, Trigger.SENSOR, "t", "t")
    found = batches(database, syncer.run(request))
    assert [(one.position, one.first_key, one.last_key) for one in found[:3]] == [
        ("svn log r1..r3", "1", "3"),
        ("svn log r4..r6", "4", "6"),
        ("svn log r7..r7", "7", "7"),
    ]
    assert [one.read for one in found] == [(one.window,) for one in found]
    assert [one.covered for one in found[:3]] == [one.window for one in found[:3]]
    # The first one has the look at the repository as well.
    assert [one.calls for one in found[1:3]] == [1, 1]
    assert found[0].calls is not None
    assert found[0].calls > 1
    assert all(one.seconds is not None and one.seconds > 0 for one in found)


def test_a_page_of_commits_names_its_tip_and_the_time_of_its_commits(forge: Forge) -> None:
    forge.git.commit("main", "One\n", files={"a": "1\n"})
    forge.git.commit("main", "Two\n", files={"a": "2\n"})
    tip = forge.git.resolve("refs/heads/main")
    assert tip is not None
    forge.tick()
    report = forge.commits()
    found = batches(forge.database, report)
    (page,) = [one for one in found if one.first_key is not None]
    assert page.position == f"page 1 of the commits of {tip[:12]}"
    assert (page.first_key, page.counts.read, page.calls) == (tip, 2, 1)
    times = [row["ts"] for row in forge.rows("SELECT ts FROM scm.git_commits WHERE repo_id = %(repo)s")]
    assert page.read == (TimeWindow(min(times), max(times) + SECOND),)
    assert found[0].position == "list of 1 branches and tags"
    assert sum(one.calls or 0 for one in found) == report.calls


def test_a_page_of_merge_requests_names_its_numbers_and_the_times_of_the_list(forge: Forge) -> None:
    forge.git.commit("main", "Base\n", files={"a": "1\n"})
    opened = [
        forge.gitlab.open_merge_request(forge.project, title=name, source="topic", author=forge.user)
        for name in ("One", "Two", "Three")
    ]
    forge.gitlab.comment(opened[0], forge.other, "Looks good")
    forge.tick()
    for report in forge.both():
        page, *rest = batches(forge.database, report)
        assert page.position == "page of the list by time of update"
        assert {page.first_key, page.last_key} <= {"1", "2", "3"}
        assert page.covered is not None
        assert page.read == (page.covered,)
        assert page.calls is not None
        assert page.calls > 0
        assert [one.counts.read for one in rest] == [0] * len(rest)


def test_merge_requests_that_came_one_by_one_are_found_where_they_were_last_updated(forge: Forge) -> None:
    forge.git.commit("main", "Base\n", files={"a": "1\n"})
    for name in ("One", "Two"):
        forge.gitlab.open_merge_request(forge.project, title=name, source="topic", author=forge.user)
        forge.tick(days=20)
    forge.both()
    forge.rows("UPDATE scm.mrs SET read_at = read_at - interval '3 days' RETURNING 1")
    forge.tick(days=2)
    report, _ = forge.both()
    (found,) = [one for one in batches(forge.database, report) if one.position == "merge requests by number"]
    query = "SELECT updated_at FROM scm.mrs WHERE repo_id = %(repo)s ORDER BY updated_at"
    times: list[datetime] = [row["updated_at"] for row in forge.rows(query)]
    assert found.read == tuple(TimeWindow(time, time + SECOND) for time in times)
    assert ({found.first_key, found.last_key}, found.covered) == ({"1", "2"}, None)


def test_no_key_and_no_position_is_long_or_holds_a_secret(forge: Forge) -> None:
    forge.git.commit("main", "Base\n", files={"a": "1\n"})
    forge.git.commit("b" * 200, "Long\n", files={"b": "1\n"})
    forge.gitlab.open_merge_request(forge.project, title="One", source="topic", author=forge.user)
    forge.tick()
    for report in (forge.commits(), *forge.both()):
        for one in batches(forge.database, report):
            for text in (one.position, one.first_key, one.last_key):
                assert len(text or "") <= 200
                assert "://" not in (text or "")
                assert forge.settings.gitlab.token.get_secret_value() not in (text or "")
