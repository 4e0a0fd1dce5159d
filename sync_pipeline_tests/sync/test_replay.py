"""A replay: exactly the windows of a run or batch are read again, and what is gone comes back."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from sync_pipeline.core.errors import ConfigurationError
from sync_pipeline.core.model import JobReport, JobRequest, JobType, Mode, RevisionWindow, Trigger
from sync_pipeline.database.pool import Database
from sync_pipeline.ledger import runs as store
from sync_pipeline.reports import runs
from sync_pipeline.settings import Settings
from sync_pipeline.sync.engine import Syncer
from sync_pipeline_tests.builders import register_source
from sync_pipeline_tests.svn_fixtures import large_repository
from sync_pipeline_tests.sync.conftest import Forge

MRS, REVIEWS = JobType.MERGE_REQUESTS, JobType.REVIEWS


def replayed(syncer: Syncer, replay: runs.Replay) -> list[JobReport]:
    """Read again what ``replay`` names, as its command does."""
    found = [
        syncer.run(
            JobRequest(
                replay.repository.repo_id,
                replay.job_type,
                Mode.REPAIR,
                Trigger.RUNNER,
                "ann",
                "test",
                window=window,
                reread=True,
            )
        )
        for window in replay.windows
    ]
    assert all(report.succeeded for report in found)
    return found


def plan(database: Database, report: JobReport | None = None, **named: Any) -> runs.Replay:
    """The replay of the run of ``report``, or of what is named."""
    return runs.plan_replay(
        database, actor="ann", reason="a look", **({"run_id": report.run_id} if report else named)
    )


@pytest.fixture
def svn(database: Database, tmp_path: Path) -> tuple[Syncer, int]:
    """Seven revisions, read in chunks of three."""
    repository = large_repository(tmp_path / "repository", 7)
    with database.connection() as conn:
        repo_id = register_source(conn, repository.url)
    return Syncer(database, Settings(chunk_revisions=3)), repo_id


def live(svn: tuple[Syncer, int]) -> JobReport:
    syncer, repo_id = svn
    report = syncer.run(JobRequest(repo_id, JobType.REVISIONS, Mode.INCREMENTAL, Trigger.SENSOR, "t", "t"))
    assert report.succeeded
    return report


def test_a_run_and_each_of_its_batches_name_their_revisions(
    database: Database, svn: tuple[Syncer, int]
) -> None:
    report = live(svn)
    assert report.run_id is not None
    assert plan(database, report).windows == (RevisionWindow(1, 8),)
    with database.connection() as conn:
        first, second, *_ = store.batches(conn, [report.run_id])
        conn.execute("DELETE FROM scm.svn_revisions WHERE rev_num IN (2, 5)")
    replay = plan(database, batch_id=second.batch_id)
    assert replay.windows == (RevisionWindow(4, 7),)
    assert (replay.actor, replay.reason) == ("ann", f"replay of batch {second.batch_id}: a look")
    (again,) = replayed(svn[0], replay)
    assert (again.counts.read, again.counts.inserted, again.counts.unchanged) == (3, 1, 2)
    (again,) = replayed(svn[0], plan(database, batch_id=first.batch_id))
    assert (again.counts.read, again.counts.inserted) == (3, 1)
    # A replay is a run like any other.
    assert plan(database, again).windows == (RevisionWindow(1, 4),)


def test_a_replay_moves_no_coverage_that_is_complete(database: Database, svn: tuple[Syncer, int]) -> None:
    report = live(svn)
    with database.connection() as conn:
        query = "SELECT count(*) AS n FROM scm.sync_watermark_events"
        before = conn.execute(query).fetchone()
        replayed(svn[0], plan(database, report))
        assert conn.execute(query).fetchone() == before


def test_commits_merge_requests_and_reviews_come_back_by_the_replay_of_their_run(forge: Forge) -> None:
    forge.git.commit("main", "Base\n", files={"a": "1\n"})
    opened = forge.gitlab.open_merge_request(forge.project, title="One", source="topic", author=forge.user)
    forge.gitlab.comment(opened, forge.other, "Looks good")
    forge.tick()
    reports = [forge.commits(), *forge.both()]
    before = forge.state()
    forge.conn.execute("DELETE FROM scm.review_events; DELETE FROM scm.mrs; DELETE FROM scm.git_commits")
    assert forge.state() != before
    for report in reports:
        replayed(forge.syncer, plan(forge.database, report))
    assert forge.state() == before


def test_merge_requests_that_were_read_one_by_one_are_read_again_and_no_others(forge: Forge) -> None:
    forge.git.commit("main", "Base\n", files={"a": "1\n"})
    for name in ("One", "Two", "Three"):
        forge.gitlab.open_merge_request(forge.project, title=name, source="topic", author=forge.user)
        forge.tick(days=20)
    forge.both()
    forge.conn.execute("UPDATE scm.mrs SET read_at = read_at - interval '3 days' WHERE iid <> 2")
    forge.tick(days=2)
    report, _ = forge.both()
    assert report.run_id is not None
    (found,) = [
        one
        for one in store.batches(forge.conn, [report.run_id])
        if one.position == "merge requests by number"
    ]
    again = replayed(forge.syncer, plan(forge.database, batch_id=found.batch_id))
    assert [one.counts.read for one in again] == [1, 1]
    query = "SELECT first_key FROM scm.sync_batches WHERE run_id = ANY (%(runs)s) AND rows_read > 0"
    read = forge.rows(query, runs=[one.run_id for one in again])
    assert {row["first_key"] for row in read} == {"1", "3"}


def refused(database: Database, line: str, **named: Any) -> None:
    with pytest.raises(ConfigurationError, match=line):
        plan(database, **named)


def test_what_cannot_be_read_again_is_refused_with_the_reason(
    database: Database, svn: tuple[Syncer, int]
) -> None:
    report = live(svn)
    unknown = uuid4()
    refused(database, f"there is no run {unknown}; see `scm-sync admin runs list`", run_id=unknown)
    refused(database, "there is no batch 99999", batch_id=99999)
    refused(database, "name a run, or a batch")
    refused(database, "one of the two", run_id=report.run_id, batch_id=1)
    with pytest.raises(ConfigurationError, match="--reason is empty"):
        runs.plan_replay(database, run_id=report.run_id, actor="ann", reason=" ")
    live(svn)  # has the sweep
    nothing = live(svn)
    refused(database, f"run {nothing.run_id} wrote nothing", run_id=nothing.run_id)
    with database.connection() as conn:
        dagster = UUID(int=7)
        conn.execute(
            "UPDATE scm.sync_runs SET dagster_run_id = %s WHERE run_id = %s", [str(dagster), report.run_id]
        )
        refused(database, f"is a run of Dagster; its runs of the ledger are: {report.run_id}", run_id=dagster)
        conn.execute("UPDATE scm.sync_runs SET mode = 'probe' WHERE run_id = %s", [report.run_id])
        refused(
            database,
            "compared and stored no facts; run: scm-sync reconcile --repo svn:",
            run_id=report.run_id,
        )
        conn.execute("UPDATE scm.sync_runs SET mode = 'incremental', status = 'running', finished_at = NULL")
        refused(database, f"run {report.run_id} is still at work", run_id=report.run_id)
        conn.execute("UPDATE scm.sync_runs SET status = 'completed', finished_at = now()")
        conn.execute("UPDATE scm.sync_batches SET position = NULL")
        refused(database, "is of an earlier version, which did not store where it read", run_id=report.run_id)
        (batch, *_) = store.batches(conn, [report.run_id] if report.run_id else [])
        conn.execute("DELETE FROM scm.sync_batches")
        conn.execute("DELETE FROM scm.sync_runs")
    refused(database, f"the records of run {report.run_id} are removed", run_id=report.run_id)
    refused(database, f"the records of batch {batch.batch_id} are removed", batch_id=batch.batch_id)


def test_a_list_of_refs_alone_names_the_run_to_replay(forge: Forge) -> None:
    forge.git.commit("main", "Base\n", files={"a": "1\n"})
    forge.tick()
    report = forge.commits()
    assert report.run_id is not None
    refs = store.batches(forge.conn, [report.run_id])[0]
    line = f"holds no rows that a window finds; run: scm-sync admin runs replay {report.run_id}"
    refused(forge.database, line, batch_id=refs.batch_id)
    shown = runs.show(forge.database, report.run_id, 1)
    assert (shown["batches"][0]["status"], shown["more"]) == ("empty", report.batches - 1)


def test_the_rows_of_a_run_are_usable_until_the_details_that_it_deferred_are_read(forge: Forge) -> None:
    forge.git.commit("main", "Base\n", files={"a": "1\n"})
    forge.tick()
    report = forge.commits()
    assert report.run_id is not None

    def level() -> str | None:
        assert report.run_id is not None
        return runs.show(forge.database, report.run_id, 1)["level"]

    assert level() == "complete"
    forge.conn.execute(
        "INSERT INTO scm.deferred_fetches (repo_id, job_type, natural_key, detail, last_error, is_planned,"
        " created_at) SELECT repo_id, job_type, '1', 'notes', '', TRUE, started_at FROM scm.sync_runs"
    )
    assert level() == "usable"
    forge.conn.execute("UPDATE scm.deferred_fetches SET resolved_at = now()")
    assert level() == "complete"
    forge.conn.execute("UPDATE scm.sync_runs SET status = 'running', finished_at = NULL")
    assert level() is None
