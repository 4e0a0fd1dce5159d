"""The database is stopped, crashes, is full or is put back to yesterday: a repeat of the job ends in exactly
the state of an undisturbed run.

Belongs here: what happens to the database. What happens to the worker is in
:mod:`sync_pipeline_tests.faults.test_workers`.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import LiteralString

import psutil
import psycopg
import pytest
from psycopg import sql

from sync_pipeline.admin.verification import verify
from sync_pipeline.core.errors import ConfigurationError
from sync_pipeline.core.model import JobRequest, JobStatus, JobType, Mode
from sync_pipeline.database import migrations
from sync_pipeline.database.pool import Connection, Database
from sync_pipeline.ledger import integrity_checks, jobs, leases
from sync_pipeline.orchestration.partitions import ensure_blocks, known_blocks
from sync_pipeline.registry import registration
from sync_pipeline.runtime import environment
from sync_pipeline.sync.engine import Syncer
from sync_pipeline_sandbox import svn_samples
from sync_pipeline_tests.builders import register, register_source, request
from sync_pipeline_tests.conftest import ENVIRONMENT, database_of
from sync_pipeline_tests.faults import processes
from sync_pipeline_tests.faults.processes import Subject, Subjects, another_database, catching, check, reached
from sync_pipeline_tests.faults.whole_state import differences, whole_state
from sync_pipeline_tests.orchestration import conftest
from sync_pipeline_tests.orchestration.conftest import Site
from sync_pipeline_tests.sync.conftest import Forge
from sync_pipeline_tests.warm import Starter

site = conftest.site
gate, repository, served, subjects = (
    processes.gate,
    processes.repository,
    processes.served,
    processes.subjects,
)


@pytest.fixture(scope="module")
def own_server(run_folder: Path) -> Iterator[Path]:
    """The state folder of a server that a test may stop; its database ``scm`` is migrated."""
    state = run_folder / f"own-{os.getpid()}"
    migrations.migrate(environment.ensure_server(state), ENVIRONMENT)
    yield state
    environment.remove_server(state)


@pytest.fixture
def own_database(own_server: Path) -> Iterator[str]:
    """A migrated database of that server."""
    url = environment.ensure_server(own_server)
    with another_database(database_of(url, "postgres"), "scm", "own_") as database:
        yield database
        environment.ensure_server(own_server)


def crash(state: Path) -> None:
    """What a loss of power leaves: nothing was written that was not written before, and it has to recover."""
    (pid_file,) = state.rglob("postmaster.pid")
    server = psutil.Process(int(pid_file.read_text().splitlines()[0]))
    server.send_signal(signal.SIGQUIT)
    psutil.wait_procs([server], timeout=120)


# Stopped --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "how"),
    [
        pytest.param("revisions", crash, id="crashed (revisions)"),
        pytest.param("merge requests", environment.stop_server, id="stopped (merge requests)"),
    ],
)
def test_a_database_that_is_restarted_in_the_middle_costs_the_batch_in_flight(
    subjects: Subjects,
    own_server: Path,
    own_database: str,
    warm: Starter,
    what: str,
    how: Callable[[Path], None],
) -> None:
    subject = subjects[what]
    with Database(own_database) as database, catching(own_database, warm) as start:
        with database.connection() as conn:
            job = subject.job(conn)
        worker = start(job, "writing the ledger", subject.facts).caught()
        how(own_server)
        environment.ensure_server(own_server)
        result = worker.result()
        # Of two jobs that are read together one may get on alone.
        failed = [document for document in result if document["status"] != "completed"]
        assert {(document["status"], document["code"]) for document in failed} == {
            ("failed", "database_down")
        }
        assert all("\n" not in document["error"] for document in failed)
        check(database, job, subject)


def test_a_database_that_stays_away_is_one_line_and_nothing_is_lost(
    subjects: Subjects, own_server: Path, own_database: str, warm: Starter
) -> None:
    subject = subjects["revisions"]
    with catching(own_database, warm) as start:
        with Database(own_database, timeout=2.0) as database:
            with database.connection() as conn:
                job = subject.job(conn)
            worker = start(job, "writing rows", subject.facts).caught()
            environment.stop_server(own_server)
            (result,) = worker.result()
            assert (result["status"], result["code"]) == ("failed", "database_down"), result
            with pytest.raises(ConfigurationError, match="does not answer"):
                job.run(database)
        environment.ensure_server(own_server)
    with Database(own_database) as database:
        check(database, job, subject)


# Full -----------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(own_server: Path) -> Iterator[Path]:
    """A disk of 1 MiB that the server may write to."""
    place = own_server.parent / f"disk-{os.getpid()}"
    place.mkdir()
    (data,) = (path.parent for path in own_server.rglob("PG_VERSION") if (path.parent / "global").is_dir())
    owner = data.stat()
    options = f"size=1m,mode=0700,uid={owner.st_uid},gid={owner.st_gid}"
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
    if os.geteuid() or subprocess.run(command, capture_output=True).returncode:
        place.rmdir()
        pytest.skip("mounting a small disk is not allowed here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)
    place.rmdir()


def test_a_full_disk_of_the_database_fails_the_job_and_loses_nothing(
    own_database: str, small_disk: Path, tmp_path: Path
) -> None:
    """The same error raised by a trigger, where mounting is not allowed, is in ``sync/test_engine.py``."""
    source = tmp_path / "repository"
    svn_samples.large(source, 60, 400)
    subject = Subject(
        lambda conn: register_source(conn, source), ("revisions",), {"chunk_revisions": 5}, "svn_revisions"
    )
    with Database(own_database) as database, database.connection() as conn:
        job = subject.job(conn)
        conn.execute(sql.SQL("CREATE TABLESPACE small LOCATION {}").format(str(small_disk)))
        try:
            conn.execute("ALTER TABLE scm.svn_changed_paths SET TABLESPACE small")
            (report,) = job.run(database)
            assert (report.job_status, report.error_code) == (JobStatus.FAILED, "database_full"), report
            assert "No space left on device" in (report.error or "")
            assert 0 < report.counts.inserted < 60
            assert conn.execute("SELECT 1 FROM scm.quarantine").fetchall() == []
            assert integrity_checks.failures(conn) == {}
            subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
            assert [r.error for r in job.run(database)] == [None]
            found = whole_state(conn)
            conn.execute("ALTER TABLE scm.svn_changed_paths SET TABLESPACE pg_default")
            with (
                another_database(database_of(own_database, "postgres"), "scm", "own_") as fresh,
                Database(fresh) as other,
                other.connection() as there,
            ):
                assert [r.error for r in subject.job(there).run(other)] == [None]
                assert differences(whole_state(there), found) == []
        finally:
            conn.execute("ALTER TABLE scm.svn_changed_paths SET TABLESPACE pg_default")
            conn.execute("DROP TABLESPACE small")


# Put back -------------------------------------------------------------------------------------------------


class Yesterday:
    """A copy of a database, and the way back to it. ``name`` is the copy's."""

    def __init__(self, url: str) -> None:
        self._server = database_of(url, "postgres")
        self._original = str(psycopg.conninfo.conninfo_to_dict(url)["dbname"])
        self.name = f"{self._original}_saved"
        # Nobody may be connected to what is copied.
        with psycopg.connect(self._server, autocommit=True) as conn:
            ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
            conn.execute(ended, [self._original])
        self._run("CREATE DATABASE {} TEMPLATE {} STRATEGY file_copy", self.name, self._original)

    def restore(self) -> None:
        """Put it back, whoever works in it."""
        self._run("DROP DATABASE {} WITH (FORCE)", self._original)
        self._run("ALTER DATABASE {} RENAME TO {}", self.name, self._original)

    def _run(self, statement: LiteralString, *names: str) -> None:
        with psycopg.connect(self._server, autocommit=True) as conn:
            conn.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))


def left_running(conn: Connection, *requests: JobRequest) -> None:
    """Jobs in the middle of their work, as a dump has them: a day later claims and leases have run out."""
    for wanted in requests:
        leases.ensure(conn, wanted.repo_id, wanted.job_type)
        claim = jobs.claim(
            conn,
            jobs.enqueue(conn, wanted),
            worker="yesterday:1",
            process="",
            length=-86_400,
            dagster_run_id=None,
        )
        assert claim is not None
        lease = leases.acquire(
            conn,
            repo_id=wanted.repo_id,
            job_type=wanted.job_type,
            waiter=claim.token,
            who="yesterday:1",
            priority=0,
            length=-86_400,
        )
        assert lease is not None


def test_after_yesterdays_database_is_restored_svn_converges(
    database_url: str, server_url: str, tmp_path: Path, gate: Path, warm: Starter
) -> None:
    """The watermark goes back with the rows; and a worker that went on meanwhile can write nothing more."""
    place = tmp_path / "repository"
    svn_samples.create(place, svn_samples.growing(30, paths=3))
    subject = Subject(
        lambda conn: register_source(conn, place),
        ("revisions",),
        {"chunk_revisions": 10, "sweep_interval_seconds": 0.001},
        "svn_revisions",
    )
    with Database(database_url) as database, database.connection() as conn:
        job = subject.job(conn)
        assert job.run(database)[0].succeeded
    saved = Yesterday(database_url)
    for number in range(25):
        url = f"{place.as_uri()}/trunk/later-{number}"
        subprocess.run(["svn", "mkdir", "-q", "-m", f"Later {number}", url], check=True)
    (place / "message").write_text("Edited later")
    edit = ["svnadmin", "setrevprop", "-r", "7", str(place), "svn:log", str(place / "message")]
    subprocess.run(edit, check=True)
    undisturbed = another_database(server_url, saved.name, f"{saved.name}_")
    with undisturbed as url, Database(url) as database, database.connection() as conn:
        assert job.run(database)[0].counts.changed == 26
        subject.expected = whole_state(conn)
    with catching(database_url, warm) as start:
        worker = start(job, path=gate)
        reached(gate)
        saved.restore()
        (gate / "go").touch()
        (result,) = worker.result()
    assert (result["status"], result["code"], result["inserted"]) == ("failed", "claim_lost", 10), result
    assert "was that restored?" in result["error"]
    with Database(database_url) as database, database.connection() as conn:
        assert conn.execute("SELECT max(rev_num) AS newest FROM scm.svn_revisions").fetchone() == {
            "newest": 30
        }
        check(database, job, subject)


def test_after_yesterdays_database_is_restored_gitlab_converges(forge: Forge, database_url: str) -> None:
    """Merge requests that changed before the dump, after it, and both; and a job of each type ran in it."""
    git, gitlab, project = forge.git, forge.gitlab, forge.project
    first = git.commit("main", "Base\n", files={"a": "1\n"})
    for branch in ("topic", "rewritten", "settled", "merged"):
        git.commit(branch, f"{branch}\n", files={branch: "1\n"}, parents=[first])
    git.commit("dropped", "Dropped\n", files={"d": "1\n"}, parents=[first])
    git.tag("v1", first)
    opened, pushed, settled, merged = (
        gitlab.open_merge_request(project, title=branch, source=branch, author=forge.user)
        for branch in ("topic", "rewritten", "settled", "merged")
    )
    note = gitlab.comment(opened, forge.other, "First")
    spared = gitlab.comment(merged, forge.other, "To be deleted")
    gitlab.approve(opened, forge.other)
    gitlab.approve(pushed, forge.other)
    forge.tick()
    gitlab.comment(settled, forge.other, "Before the dump")
    forge.tick()

    def sync() -> None:
        assert forge.commits().succeeded
        assert [r.error for r in forge.both() if not r.succeeded] == []

    sync()
    types = (JobType.COMMITS, JobType.MERGE_REQUESTS, JobType.REVIEWS)
    left_running(forge.conn, *(forge.request(job_type) for job_type in types))
    forge.conn.close()
    saved = Yesterday(database_url)
    git.commit("topic", "More\n", files={"b": "2\n"}, parents=[str(git.resolve("refs/heads/topic"))])
    before = git.resolve("refs/heads/rewritten")
    git.set_ref("refs/heads/rewritten", git.commit("spare", "New\n", files={"c": "2\n"}, parents=[first]))
    assert before != git.resolve("refs/heads/rewritten")
    gitlab.pushed(project, "rewritten", before, git.resolve("refs/heads/rewritten"), author=forge.user)
    gitlab.reset_approvals(pushed)
    gitlab.delete_branch(project, "dropped")
    git.tag("v1", str(git.resolve("refs/heads/spare")))
    gitlab.edit_note(opened, note, "First, edited")
    gitlab.unapprove(opened, forge.other)
    gitlab.comment(opened, forge.user, "Second")
    gitlab.delete_note(merged, spared)
    forge.tick()
    gitlab.merge(merged, forge.user)
    born = gitlab.open_merge_request(project, title="Born later", source="spare", author=forge.other)
    gitlab.comment(born, forge.user, "Welcome")
    forge.tick()
    sync()
    with Database(database_url) as database, database.connection() as conn:
        expected = whole_state(conn)
    saved.restore()
    sync()
    with Database(database_url) as database, database.connection() as conn:
        assert differences(expected, whole_state(conn)) == []
        assert integrity_checks.failures(conn) == {}
        reaped = "SELECT DISTINCT attempts, status FROM scm.sync_jobs WHERE attempts > 1"
        assert conn.execute(reaped).fetchall() == [{"attempts": 2, "status": "completed"}]


def test_after_a_restore_the_scheduler_takes_up_what_ran_and_dagster_gets_what_it_lacks(
    site: Site, tmp_path: Path
) -> None:
    """The partitions of revisions are behind with the database, and the catalog snapshot is ahead of it."""
    place = tmp_path / "repository"
    svn_samples.large(place, 999, 1)
    syncer = Syncer(site.database, site.settings)
    with site.database.connection() as conn:
        repo = register_source(conn, place, origin=901)
        live, history = request(repo), request(repo, Mode.BACKFILL, window=(1, 901), priority=900)
        assert syncer.run(live).succeeded
        left_running(conn, live, history)
        conn.execute("UPDATE scm.sync_watermarks SET visited_at = visited_at - interval '1 day'")
    ensure_blocks(site.instance, site.database, 999)
    saved = Yesterday(site.settings.database_url)
    for name in ("later", "latest"):
        subprocess.run(["svn", "mkdir", "-q", "-m", name, f"{place.as_uri()}/{name}"], check=True)
    assert [syncer.run(one).error for one in (live, history)] == [None, None]
    with site.database.connection() as conn:
        expected = whole_state(conn)
        register(conn, "born_later")
    registration.export_catalog(site.database, site.settings)
    saved.restore()
    converge(site)
    with site.database.connection() as conn:
        assert differences(expected, whole_state(conn)) == []
    assert len(known_blocks(site.instance)) == 2
    assert site.run("rediscovery").success
    assert [proof for proof in verify(site.database, site.settings)["proofs"] if not proof["passed"]] == []


def converge(site: Site) -> None:
    """Ticks of the scheduler, and what they start, until nothing is due."""
    for _ in range(5):
        if not (requests := site.schedule()):
            return
        assert [ran.error for ran in map(site.start, requests) if not ran.success] == []
    raise AssertionError("there is always something due")
