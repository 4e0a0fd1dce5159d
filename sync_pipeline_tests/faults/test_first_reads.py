"""First reads that are killed: of merge requests, at the usable level and while planned details are read, and
of commits, in the list of all refs and in a walk for holes. A repeat loses no row. Nothing claims more than
was read."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg import sql

from sync_pipeline.database.pool import Connection, Database
from sync_pipeline.ledger import integrity_checks
from sync_pipeline_sandbox.gitlab import DEVELOPER, GitLab, GitRepository, serve
from sync_pipeline_sandbox.gitlab.generator import generate
from sync_pipeline_tests.builders import register_project
from sync_pipeline_tests.faults.processes import Start, Subject, Subjects, catching
from sync_pipeline_tests.faults.whole_state import whole_state
from sync_pipeline_tests.faults.worker import Job
from sync_pipeline_tests.sync.conftest import START
from sync_pipeline_tests.sync.test_commit_history import fast_import, line, unmerged
from sync_pipeline_tests.warm import Starter

_ORIGIN = datetime(2000, 1, 1, tzinfo=UTC)
# Columns that say how often a row was written on the way.
_ON_THE_WAY = {"version", "attempts"}
_TABLES = {
    "git_commits",
    "refs",
    "mrs",
    "mr_commits",
    "mr_versions",
    "mr_reviews",
    "mr_approvals",
    "mr_reviewers",
    "review_events",
    "sync_watermarks",
}
_OPEN = "SELECT natural_key, detail FROM scm.deferred_fetches WHERE resolved_at IS NULL"
_COVERED = "SELECT FROM scm.sync_watermarks WHERE NOT isempty(covered_time)"
_COMPLETE = """
SELECT m.iid FROM scm.mrs AS m
 WHERE NOT EXISTS (SELECT FROM scm.deferred_fetches AS d
                    WHERE d.natural_key = m.iid::text AND d.job_type = 'reviews' AND d.resolved_at IS NULL)
   AND EXISTS (SELECT FROM scm.review_events AS e WHERE e.mr_iid = m.iid AND e.time_precision = 'second')
"""
# A walk or a ref that claims a whole history, although a parent is not stored.
_FALSE_PROOF = """
SELECT c.commit_sha FROM scm.git_commits AS c JOIN scm.ref_walks AS w USING (walk_id)
 CROSS JOIN unnest(c.parents) AS p (sha)
 WHERE w.completed_at IS NOT NULL
   AND NOT EXISTS (SELECT FROM scm.git_commits AS o WHERE o.repo_id = c.repo_id AND o.commit_sha = p.sha)
"""


@pytest.fixture(scope="module")
def first_reads(
    tmp_path_factory: pytest.TempPathFactory, server_url: str, template: str
) -> Iterator[Subjects]:
    """GitLab with 60 merge requests in one project, and in others histories of many branches. In that of
    *holes* most commits of the list are of hidden refs."""
    gitlab = GitLab()
    gitlab.clock.fixed = START
    group = gitlab.group("team1")
    user = gitlab.user("user1")
    gitlab.add_member(group, user, DEVELOPER)
    large = generate(gitlab, group, merge_requests=45, notes=4, tie=5)
    folder = tmp_path_factory.mktemp("first_reads")
    projects = {"usable": large}
    for name, hidden in (("list", 0), ("holes", 900)):
        git = GitRepository.create(folder / f"{name}.git")
        on_main = line(git, 300)
        unmerged(git, on_main[::20], each=2)
        if hidden:
            fast_import(
                git, [(f"refs/keep/{n}", f"Hidden {n}", on_main[0], 10**7 + n) for n in range(hidden)]
            )
        projects[name] = gitlab.project(name, group=group, repository=git)
    gitlab.clock.fixed = gitlab.clock.now() + timedelta(minutes=10)
    with serve(gitlab, prefix="/gitlab") as server:
        settings: dict[str, Any] = {
            "gitlab_url": server.url,
            "gitlab_token": gitlab.token(user).secret,
            "gitlab_parallel": 2,
            "gitlab_postgres_rate_limit_rate": 1000.0,
            "chunk_rows": 50,
        }

        def of(name: str) -> Any:
            def made(conn: Connection) -> int:
                project = projects[name]
                return register_project(conn, server.url, project.id, project.full_path, origin=_ORIGIN)

            return made

        pair = ("merge_requests", "reviews")
        known = {
            "usable": Subject(of("usable"), pair, settings, "mrs"),
            "list": Subject(of("list"), ("commits",), settings, "git_commits"),
            "holes": Subject(of("holes"), ("commits",), settings, "git_commits"),
        }
        yield Subjects(known, server_url, template)


@pytest.fixture
def start(database_url: str, warm: Starter) -> Iterator[Start]:
    """See :func:`sync_pipeline_tests.faults.processes.catching`."""
    with catching(database_url, warm) as begin:
        yield begin


def facts(state: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """The rows of facts without the columns that count writes."""
    return {
        table: sorted(
            ({key: value for key, value in row.items() if key not in _ON_THE_WAY} for row in state[table]),
            key=str,
        )
        for table in _TABLES
    }


def claims_nothing(conn: Connection, what: str) -> None:
    """No merge request, walk or coverage claims more than what is stored."""
    assert conn.execute(_COMPLETE).fetchall() == []
    assert conn.execute(_FALSE_PROOF).fetchall() == []
    if what != "usable":
        assert conn.execute(_COVERED).fetchall() == []


def is_whole(database: Database, conn: Connection, job: Job, subject: Subject) -> None:
    """Repeats of the job end in the rows of an undisturbed one, and the last one changes nothing."""
    for _ in range(3):
        reports = job.run(database)
        assert [(r.error_code, r.error) for r in reports if not r.succeeded] == []
    assert sum(report.counts.changed for report in reports) == 0
    assert conn.execute(_OPEN).fetchall() == []
    assert integrity_checks.failures(conn) == {}
    assert facts(whole_state(conn)) == facts(subject.expected)


@pytest.mark.parametrize(
    ("what", "point"),
    [
        ("usable", "planning details"),
        ("usable", "reading planned details"),
        ("usable", "committing planned details"),
        ("list", "storing the third page"),
        ("list", "ending the list"),
        ("list", "proving"),
        ("holes", "walking for holes"),
        ("holes", "storing the third page"),
        ("holes", "proving"),
    ],
)
def test_a_first_read_that_is_killed_loses_no_row_and_claims_nothing(
    first_reads: Subjects, database: Database, start: Start, what: str, point: str
) -> None:
    subject = first_reads[what]
    with database.connection() as conn:
        job = subject.job(conn)
        worker = start(job, point, subject.facts).caught()
        worker.kill().let_the_server_go_on(until_gone=True)
        claims_nothing(conn, what)
        is_whole(database, conn, job, subject)


@pytest.mark.parametrize("what", ["usable", "list", "holes"])
def test_two_processes_that_read_a_project_at_once_read_it_once(
    first_reads: Subjects, database: Database, start: Start, what: str
) -> None:
    subject = first_reads[what]
    with database.connection() as conn:
        job = subject.job(conn)
        workers = [start(job), start(job)]
        results = [document for worker in workers for document in worker.result()]
        assert {document["status"] for document in results} == {"completed"}, results
        is_whole(database, conn, job, subject)


@pytest.mark.parametrize(
    ("what", "point"),
    [
        ("usable", "planning details"),
        ("usable", "committing planned details"),
        ("list", "storing the third page"),
        ("holes", "walking for holes"),
        ("holes", "proving"),
    ],
)
def test_a_database_that_goes_away_in_a_first_read_and_comes_back_costs_no_row(
    first_reads: Subjects, database: Database, server_url: str, start: Start, what: str, point: str
) -> None:
    subject = first_reads[what]
    with database.connection() as conn, psycopg.connect(server_url, autocommit=True) as server:
        job = subject.job(conn)
        name = sql.Identifier(conn.info.dbname)
        sessions = "SELECT pid FROM pg_stat_activity WHERE datname = %s"
        before = [row[0] for row in server.execute(sessions, [conn.info.dbname])]
        worker = start(job, point, subject.facts).caught()
        server.execute(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS false").format(name))
        try:
            server.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = %s AND pid <> ALL (%s)",
                [conn.info.dbname, before],
            )
            results = worker.result()
        finally:
            server.execute(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS true").format(name))
        assert {document["status"] for document in results} <= {"failed", "none", "running"}, results
        assert not any("\n" in str(document["error"]) for document in results)
        worker.let_the_server_go_on()
        claims_nothing(conn, what)
        is_whole(database, conn, job, subject)
