"""What a person does to jobs: only what he means, with who and why, and never to what changed meanwhile."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date
from uuid import UUID, uuid4

import pytest
from pydantic import SecretStr

from sync_pipeline import cli
from sync_pipeline.admin.jobs import DROP, RELEASE, RESET, Action, handle, listing, show
from sync_pipeline.core.documents.ledger import JobAction
from sync_pipeline.core.errors import ClaimLost, ConfigurationError
from sync_pipeline.core.model import JobStatus, JobType, Mode, RunStatus
from sync_pipeline.database.pool import Connection, Database
from sync_pipeline.ledger import jobs, leases, status
from sync_pipeline.ledger.job_actions import By, Filters
from sync_pipeline.settings import Settings
from sync_pipeline.sync import configuration
from sync_pipeline.sync.engine import Syncer
from sync_pipeline_tests.builders import register, register_source, request
from sync_pipeline_tests.svn_fixtures import SvnRepository

BY = By("ada", "the server is back")


@pytest.fixture
def ledger(database: Database) -> dict[str, UUID]:
    """A job of each status, in windows of one repository; the waiting one has the lowest priority."""
    with database.connection() as conn:
        repo = register(conn, head=5000)
        found = {}
        for number, name in enumerate(("waiting", "failed", "dead", "running")):
            window = (1 + 1000 * number, 1001 + 1000 * number)
            found[name] = jobs.enqueue(conn, request(repo, Mode.BACKFILL, window=window))
        for name, status in (("failed", JobStatus.FAILED), ("dead", JobStatus.DEAD)):
            end(conn, claimed(conn, found[name]), status)
        claimed(conn, found["running"])
    return found


def test_the_list_says_why_a_running_job_was_started(
    database: Database,
    ledger: dict[str, UUID],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("SCM_DATABASE_URL", database.url)
    monkeypatch.setenv("SCM_ENVIRONMENT", "test")
    assert cli.run(["admin", "jobs", "list", "--status", "running"]) == 0
    row = capsys.readouterr().out.splitlines()[1].split("\t")
    reason = request(1, Mode.BACKFILL, window=(1, 2)).reason
    assert reason
    assert row[0] == str(ledger["running"])
    assert row[-1].startswith(f"{reason}; host:7, claimed until ")


def claimed(conn: Connection, job: UUID) -> jobs.Claim:
    claim = jobs.claim(conn, job, worker="host:7", process="p", length=600, dagster_run_id=None)
    assert claim is not None
    return claim


def end(conn: Connection, claim: jobs.Claim, status: JobStatus) -> None:
    failed = {"error_code": "timeout", "error": "no answer", "backoff": 3600.0}
    jobs.finish(conn, claim, job_status=status, run_status=RunStatus.FAILED, **failed)  # type: ignore[arg-type]


def do(database: Database, action: Action, *ids: UUID, dry_run: bool = False, **filters: object) -> JobAction:
    chosen = Filters(job_ids=list(ids) or None, **filters)  # type: ignore[arg-type]
    return handle(database, action, chosen, BY, attempts=3, dry_run=dry_run)


def test_what_needs_a_person_or_waits_is_listed_with_its_reason(
    database: Database, ledger: dict[str, UUID]
) -> None:
    found = listing(database, Filters(), 3)
    assert [one["status"] for one in found["jobs"]] == ["running", "dead", "failed"]
    assert (found["counts"], found["more"]) == ({"running": 1, "dead": 1, "failed": 1, "pending": 1}, 1)
    assert found["jobs"][0]["worker"] == "host:7"
    assert found["jobs"][1]["error"] == "no answer"
    assert listing(database, Filters(worker="host:7"), 9)["counts"] == {"running": 1}
    assert listing(database, Filters(older=60), 9)["counts"] == {}
    with pytest.raises(ConfigurationError, match="no repository is of nowhere"):
        listing(database, Filters(instance="nowhere"), 9)


def test_a_dead_job_is_tried_again_at_once_and_as_often_as_a_new_one(
    database: Database, ledger: dict[str, UUID]
) -> None:
    assert do(database, RESET, dry_run=True)["done"] == 2
    assert listing(database, Filters(), 9)["counts"]["dead"] == 1
    done = do(database, RESET)
    assert {one["job_id"] for one in done["jobs"]} == {ledger["dead"], ledger["failed"]}
    one = show(database, ledger["dead"])
    assert (one["status"], one["not_before"], one["finished_at"]) == ("pending", None, None)
    assert (one["attempts"], one["max_attempts"]) == (1, 4)
    assert [(e["action"], e["actor"], e["reason"]) for e in one["events"]] == [("reset", BY.actor, BY.reason)]
    assert [attempt["error"] for attempt in one["history"]] == ["no answer"]
    with database.connection() as conn:
        assert claimed(conn, ledger["dead"]).attempt == 2


def test_a_dead_job_whose_window_is_somebody_elses_or_done_is_left(
    database: Database, ledger: dict[str, UUID]
) -> None:
    with database.connection() as conn:
        again = jobs.enqueue(conn, request(1, Mode.BACKFILL, window=(2001, 3001)))
        left = do(database, RESET, ledger["dead"])
        assert (left["done"], left["left"]) == (0, 1)
        assert "another job" in (left["jobs"][0]["why_not"] or "")
        conn.execute(
            "UPDATE scm.sync_jobs SET status = 'completed', finished_at = now() WHERE job_id = %s", [again]
        )
    # Done by a later job: nobody has to look at it any more.
    assert "dead" not in listing(database, Filters(), 9)["counts"]
    assert listing(database, Filters(everything=True), 9)["counts"]["dead"] == 1


def test_of_dead_jobs_of_one_window_only_the_latest_needs_a_person(
    database: Database, ledger: dict[str, UUID]
) -> None:
    """Each probe of a repository that the token may not read ends in a dead job."""
    with database.connection() as conn:
        again = jobs.enqueue(conn, request(1, Mode.BACKFILL, window=(2001, 3001)))
        query = "UPDATE scm.sync_jobs SET status = 'dead', last_error_code = %s, finished_at = now()"
        query += " WHERE job_id = %s"
        conn.execute(query, ["denied", again])
        counted = status.jobs(conn, None)
        # A later one that was given up says nothing about it.
        last = jobs.enqueue(conn, request(1, Mode.BACKFILL, window=(2001, 3001)))
        conn.execute(query, ["cancelled", last])
    assert [row["jobs"] for row in counted if row["status"] == "dead"] == [1]
    shown = [one["job_id"] for one in listing(database, Filters(), 9)["jobs"] if one["status"] == "dead"]
    assert shown == [again]
    assert listing(database, Filters(everything=True), 9)["counts"]["dead"] == 3


def test_a_job_is_only_handled_as_its_status_allows(database: Database, ledger: dict[str, UUID]) -> None:
    for action, name in ((RESET, "running"), (RESET, "waiting"), (DROP, "running"), (RELEASE, "dead")):
        left = do(database, action, ledger[name])
        assert (left["done"], left["left"]) == (0, 1)
        assert action.name in (left["jobs"][0]["why_not"] or "")
    for action in (RESET, DROP, RELEASE):
        with pytest.raises(ConfigurationError, match="there is no job"):
            do(database, action, uuid4())
        with pytest.raises(ConfigurationError, match="--reason is empty"):
            handle(database, action, Filters(), By("ada", " "), attempts=3)


def test_waiting_work_is_given_up_with_a_word_about_what_stays_missing(
    database: Database, ledger: dict[str, UUID]
) -> None:
    done = do(database, DROP, mode=Mode.BACKFILL, job_type=JobType.REVISIONS)
    assert (done["done"], done["missing"]) == (2, 2)
    one = show(database, ledger["waiting"])
    assert (one["status"], one["error_code"]) == ("dead", "cancelled")
    assert one["error"] == "dropped by ada: the server is back"
    # Given up on purpose: nobody is asked to look at it.
    assert listing(database, Filters(), 9)["counts"] == {"running": 1, "dead": 1}


def test_a_job_is_taken_from_a_live_worker_whose_writes_are_refused_from_then_on(
    database: Database, ledger: dict[str, UUID]
) -> None:
    with database.connection() as conn, database.connection() as other:
        job = jobs.enqueue(conn, request(1, Mode.INCREMENTAL))
        conn.execute("UPDATE scm.sync_jobs SET max_attempts = 1 WHERE job_id = %s", [job])
        claim = claimed(conn, job)
        leases.ensure(conn, 1, JobType.REVISIONS)
        assert do(database, RELEASE, worker="host:7")["done"] == 2
        with pytest.raises(ClaimLost, match="it was taken from it and is pending"), conn.transaction():
            jobs.guard(conn, claim)
        one = show(database, job)
        assert (one["status"], one["error"]) == ("pending", "released by ada: the server is back")
        assert one["history"][0]["status"] == "failed"
        # It was its last attempt, and there is one more.
        assert claimed(other, job).attempt == 2


def test_a_job_keeps_the_settings_that_it_ran_with_and_no_secret(
    database: Database, svn_repository: Callable[..., SvnRepository]
) -> None:
    with database.connection() as conn:
        repo = register_source(conn, svn_repository().path)
    made_with = Settings(chunk_revisions=7, history_floor=date(2001, 2, 3))
    ran_with = Settings(
        chunk_revisions=9,
        cb_enabled=False,
        svn_password=SecretStr("hunter2"),
        gitlab_url="https://git.test",
        gitlab_token=SecretStr("hunter2"),
        database_url="postgresql://ada:hunter2@db/x",
    )
    job_request = request(repo, Mode.BACKFILL, window=(1, 3))
    with database.connection() as conn:
        job = jobs.enqueue(conn, job_request, config_hash=configuration.keep(conn, made_with))
        kept = show(database, job)["configuration"]
        assert kept is not None
        assert kept["changed"] is not None
        assert kept["changed"].items() >= {"chunk_revisions": 7, "history_floor": "2001-02-03"}.items()
        assert "lease_seconds" not in kept["changed"]
        # Whoever claims it may have other settings, and those are what it ran with.
        assert Syncer(database, ran_with).run(job_request).job_id == job
        Syncer(database, ran_with).run(request(repo))
    found = show(database, job)["configuration"]
    assert found is not None
    assert found["changed"] is not None
    assert found["settings"] is not None
    assert found["changed"].items() >= {"chunk_revisions": 9, "cb_enabled": False}.items()
    assert found["settings"]["lease_seconds"] == 60.0
    assert "hunter2" not in json.dumps(show(database, job), default=str)
    with database.connection() as conn:
        rows = conn.execute("SELECT config_hash, settings::text AS text FROM scm.configurations").fetchall()
        assert len(rows) == 2, "each configuration is kept once"
        assert not any("hunter2" in row["text"] or "git.test" in row["text"] for row in rows)
        # A job of an earlier version has the hash alone, or none.
        conn.execute("UPDATE scm.sync_jobs SET config_hash = 'old' WHERE job_id = %s", (job,))
        assert show(database, job)["configuration"] == {"hash": "old", "settings": None, "changed": None}
        conn.execute("UPDATE scm.sync_jobs SET config_hash = '' WHERE job_id = %s", (job,))
        assert show(database, job)["configuration"] is None
