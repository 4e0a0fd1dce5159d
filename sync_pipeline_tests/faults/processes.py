"""Worker processes that are caught at a place in the database, and what is to come of their job in the end.

Belongs here: starting them, stopping them there, and the check that nothing shows that it ever happened.
Where a process is caught is decided in the database: a trigger waits there for an advisory lock that the test
holds. Nothing in the program knows of it.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from sync_pipeline.database.pool import Connection, Database
from sync_pipeline.ledger import integrity_checks
from sync_pipeline_sandbox import svn_samples
from sync_pipeline_sandbox.gitlab import DEVELOPER, GitLab, GitRepository, serve
from sync_pipeline_tests.builders import register_project, register_source
from sync_pipeline_tests.conftest import database_of
from sync_pipeline_tests.faults.whole_state import differences, whole_state
from sync_pipeline_tests.faults.worker import Job
from sync_pipeline_tests.sync.conftest import START
from sync_pipeline_tests.warm import Process, Starter


@dataclass
class Subject:
    """What is synced: how it is registered, by which job, and the table whose rows come first."""

    register: Callable[[Connection], int]
    job_types: tuple[str, ...]
    settings: dict[str, Any]
    facts: str
    expected: dict[str, list[Any]] = field(default_factory=dict)

    def job(self, conn: Connection, **settings: Any) -> Job:
        """The job for this subject, registered in this database."""
        return Job(self.register(conn), self.job_types, self.settings | {"max_wait_seconds": 20.0} | settings)


@dataclass
class Subjects:
    """Subjects by name; the undisturbed run of each is done when it is first asked for."""

    known: dict[str, Subject]
    server_url: str
    template: str

    def __getitem__(self, name: str) -> Subject:
        subject = self.known[name]
        if not subject.expected:
            with (
                another_database(self.server_url, self.template) as url,
                Database(url) as database,
                database.connection() as conn,
            ):
                job = subject.job(conn)
                assert [r.error for r in job.run(database) if not r.succeeded] == []
                subject.expected = whole_state(conn)
        return subject


@contextlib.contextmanager
def another_database(server_url: str, template: str, prefix: str = "") -> Iterator[str]:
    """A migrated database beside the test's own; its name begins with ``prefix``."""
    name = (prefix or template.removesuffix("template")) + secrets.token_hex(6)
    create = sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY file_copy")
    with psycopg.connect(server_url, autocommit=True) as conn:
        conn.execute(create.format(sql.Identifier(name), sql.Identifier(template)))
    yield database_of(server_url, name)
    with psycopg.connect(server_url, autocommit=True) as conn:
        conn.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Subversion: 45 revisions."""
    path = tmp_path_factory.mktemp("workers") / "repository"
    svn_samples.create(path, svn_samples.growing(45, paths=3))
    return path


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """GitLab: seven branches, and six merge requests with reviews."""
    gitlab = GitLab()
    gitlab.clock.fixed = START
    group = gitlab.group("team1")
    user, other = gitlab.user("user1"), gitlab.user("user2")
    for one in (user, other):
        gitlab.add_member(group, one, DEVELOPER)
    git = GitRepository.create(tmp_path_factory.mktemp("workers") / "app1.git")
    project = gitlab.project("app1", group=group, repository=git)
    parent: list[str] = []
    for number in range(1, 7):
        parent = [git.commit("main", f"Change {number}\n", files={"a": f"{number}\n"}, parents=parent)]
        branch = f"topic-{number}"
        git.commit(branch, f"Topic {number}\n", files={f"t{number}": "1\n"}, parents=parent)
        gitlab.clock.fixed = gitlab.clock.now() + timedelta(minutes=7)
        opened = gitlab.open_merge_request(project, title=branch, source=branch, author=user)
        gitlab.comment(opened, other, f"Remark {number}")
        gitlab.comment(opened, user, "Done")
        gitlab.approve(opened, other)
    gitlab.clock.fixed = gitlab.clock.now() + timedelta(minutes=10)
    with serve(gitlab, prefix="/gitlab") as server:
        settings = {"gitlab_url": server.url, "gitlab_token": gitlab.token(user).secret, "gitlab_parallel": 2}
        yield server.url, project.id, settings


@pytest.fixture(scope="session")
def subjects(
    repository: Path, served: tuple[str, int, dict[str, Any]], server_url: str, template: str
) -> Subjects:
    """Everything that is synced here, with the state that an undisturbed run ends in."""
    url, project, settings = served
    origin = START - timedelta(days=30)

    def gitlab(conn: Connection) -> int:
        return register_project(conn, url, project, "team1/app1", origin=origin)

    small = settings | {"chunk_rows": 3}
    found = {
        "revisions": Subject(
            lambda conn: register_source(conn, repository),
            ("revisions",),
            {"chunk_revisions": 10},
            "svn_revisions",
        ),
        "commits": Subject(gitlab, ("commits",), small, "git_commits"),
        "merge requests": Subject(gitlab, ("merge_requests", "reviews"), small, "mrs"),
    }
    return Subjects(found, server_url, template)


# Catching a process ---------------------------------------------------------------------------------------


_FUSE = """
CREATE SEQUENCE scm.fuse_count;
CREATE FUNCTION scm.fuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF nextval('scm.fuse_count') = TG_ARGV[0]::bigint THEN
        PERFORM pg_advisory_xact_lock(4711);
    END IF;
    RETURN NEW;
END $$;
"""

# A trigger waits at its n-th call.
POINTS = {
    "claiming the job": "AFTER INSERT ON scm.sync_runs FOR EACH ROW EXECUTE FUNCTION scm.fuse(1)",
    "taking a lease": "AFTER UPDATE ON scm.sync_locks FOR EACH ROW WHEN (NEW.fence > OLD.fence)"
    " EXECUTE FUNCTION scm.fuse(2)",
    "writing rows": "AFTER INSERT ON scm.{facts} FOR EACH ROW EXECUTE FUNCTION scm.fuse(5)",
    "writing the ledger": "AFTER INSERT ON scm.sync_batches FOR EACH ROW EXECUTE FUNCTION scm.fuse(2)",
    "committing": "AFTER INSERT ON scm.sync_batches DEFERRABLE INITIALLY DEFERRED FOR EACH ROW"
    " EXECUTE FUNCTION scm.fuse(2)",
    "giving a lease back": "AFTER UPDATE ON scm.sync_locks FOR EACH ROW"
    " WHEN (NEW.holder IS NULL AND OLD.holder IS NOT NULL) EXECUTE FUNCTION scm.fuse(2)",
    "finishing": "AFTER UPDATE ON scm.sync_jobs FOR EACH ROW"
    " WHEN (OLD.status = 'running' AND NEW.status <> 'running') EXECUTE FUNCTION scm.fuse(1)",
    "copying": "BEFORE INSERT ON scm.svn_changed_paths FOR EACH ROW EXECUTE FUNCTION scm.fuse(2000)",
}

POINTS_OF_PROOF = {
    "naming differences": "AFTER INSERT ON scm.discrepancies FOR EACH ROW EXECUTE FUNCTION scm.fuse(2)",
    "writing the result": "AFTER INSERT ON scm.reconciliations FOR EACH ROW EXECUTE FUNCTION scm.fuse(1)",
    "healing a row": "AFTER UPDATE ON scm.{facts} FOR EACH ROW WHEN (NEW.version > OLD.version)"
    " EXECUTE FUNCTION scm.fuse(1)",
}

POINTS_OF_FIRST_READS = {
    "planning details": "AFTER INSERT ON scm.deferred_fetches FOR EACH ROW EXECUTE FUNCTION scm.fuse(150)",
    "reading planned details": "AFTER UPDATE ON scm.deferred_fetches FOR EACH ROW"
    " WHEN (NEW.resolved_at IS NOT NULL) EXECUTE FUNCTION scm.fuse(20)",
    "committing planned details": "AFTER UPDATE ON scm.deferred_fetches DEFERRABLE INITIALLY DEFERRED"
    " FOR EACH ROW WHEN (NEW.resolved_at IS NOT NULL) EXECUTE FUNCTION scm.fuse(20)",
    "storing the third page": "AFTER INSERT ON scm.git_commits FOR EACH ROW EXECUTE FUNCTION scm.fuse(230)",
    "ending the list": "AFTER UPDATE ON scm.ref_walks FOR EACH ROW WHEN (NEW.tip = '')"
    " EXECUTE FUNCTION scm.fuse(2)",
    "walking for holes": "AFTER INSERT ON scm.ref_walks FOR EACH ROW WHEN (NEW.tip <> '')"
    " EXECUTE FUNCTION scm.fuse(1)",
    "proving": "AFTER UPDATE ON scm.ref_walks FOR EACH ROW WHEN (NEW.completed_at IS NOT NULL)"
    " EXECUTE FUNCTION scm.fuse(1)",
}


@dataclass
class Worker:
    """A worker process, and the place in the database where it is caught."""

    process: Process
    conn: psycopg.Connection[Any]
    backend: int = 0

    def caught(self) -> Worker:
        """Wait until it is at the point."""
        query = (
            "SELECT pid FROM pg_locks JOIN pg_database ON oid = database AND datname = current_database()"
            " WHERE locktype = 'advisory' AND objid = 4711 AND NOT granted"
        )
        self.backend = self._until(lambda: self._value(query))
        return self

    def kill(self) -> Worker:
        """``kill -9``."""
        self.process.kill()
        self.process.wait()
        return self

    def stop(self) -> Worker:
        """SIGSTOP."""
        self.process.send_signal(signal.SIGSTOP)
        return self

    def go_on(self) -> dict[str, Any]:
        """SIGCONT; what it says in the end."""
        self.process.send_signal(signal.SIGCONT)
        return self.result()[0]

    def result(self) -> list[dict[str, Any]]:
        """What it says in the end."""
        out, err = self.process.communicate(timeout=60)
        assert "Traceback" not in err, err
        return [json.loads(line) for line in out.splitlines()]

    def let_the_server_go_on(self, *, until_gone: bool = False) -> None:
        """What waited at the point goes on; optionally until the server knows that nobody listens."""
        self.conn.execute("SELECT pg_advisory_unlock_all()")
        if until_gone:
            query = "SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM pg_stat_activity WHERE pid = %s)"
            self._until(lambda: self._value(query, self.backend))

    def overdue(self) -> None:
        """Wait until claim and lease are over for as long as they are."""
        query = (
            "SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM scm.sync_jobs WHERE status = 'running'"
            " AND claim_expires_at + interval '1 second' > clock_timestamp())"
        )
        self._until(lambda: self._value(query))

    def _value(self, query: str, *values: Any) -> Any:
        row = self.conn.execute(query, values).fetchone()
        return None if row is None else row[0]

    def _until(self, ask: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            if (found := ask()) is not None:
                return found
            assert self.process.poll() is None or self.backend, self.process.communicate()
            time.sleep(0.01)
        raise AssertionError("it did not come to that")


Start = Callable[..., Worker]


@contextlib.contextmanager
def catching(database_url: str, warm: Starter) -> Iterator[Start]:
    """``start(job, point=..., facts=..., path=...)``: a worker process that will be caught at the point. Ends
    all of them."""
    with psycopg.connect(database_url, autocommit=True) as conn, contextlib.ExitStack() as ends:
        conn.execute(_FUSE)

        def begin(job: Job, point: str = "", facts: str = "", path: Path | None = None) -> Worker:
            if point:
                place = (POINTS | POINTS_OF_PROOF | POINTS_OF_FIRST_READS)[point]
                kind = "CONSTRAINT TRIGGER" if "DEFERRABLE" in place else "TRIGGER"
                conn.execute(f"CREATE {kind} fuse {place.format(facts=facts)}")
                conn.execute("SELECT pg_advisory_lock(4711)")
            process = warm.start(
                "sync_pipeline_tests.faults.worker",
                database_url,
                json.dumps(asdict(job)),
                env=os.environ | ({"PATH": f"{path}{os.pathsep}{os.environ['PATH']}"} if path else {}),
                cwd=Path(__file__).parents[2],
            )
            ends.callback(process.close)
            return Worker(process, conn)

        yield begin


def check(database: Database, job: Job, subject: Subject, *, times: int = 2) -> None:
    """A repeat succeeds, and everything is as if nothing had happened; a further one changes nothing."""
    for number in range(times):
        reports = job.run(database)
        assert [(r.error_code, r.error) for r in reports if not r.succeeded] == []
        with database.connection() as conn:
            assert differences(subject.expected, whole_state(conn)) == []
            assert integrity_checks.failures(conn) == {}
            assert conn.execute("SELECT 1 FROM scm.sync_runs WHERE status = 'running'").fetchall() == []
        assert number == 0 or sum(report.counts.changed for report in reports) == 0


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Path]:
    """A folder for PATH with an ``svn`` that waits before its third log until ``go`` exists; ``reached`` is
    there once it does."""
    folder = tmp_path / "gate"
    folder.mkdir()
    (folder / "svn").write_text(
        "#!/bin/sh\n"
        f'if [ "$1" = log ]; then echo >> {folder}/logs\n'
        f"if [ $(wc -l < {folder}/logs) = 3 ]; then touch {folder}/reached\n"
        f"while [ ! -e {folder}/go ]; do sleep 0.02; done; fi; fi\n"
        f'exec {shutil.which("svn")} "$@"\n'
    )
    (folder / "svn").chmod(0o755)
    yield folder
    (folder / "go").touch()


def reached(gate: Path) -> None:
    deadline = time.monotonic() + 120
    while not (gate / "reached").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
