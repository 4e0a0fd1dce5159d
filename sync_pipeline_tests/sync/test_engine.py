"""Jobs over real repositories: what ends up in the tables and in the ledger."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest

from sync_pipeline.core import catalog
from sync_pipeline.core.errors import (
    AccessDenied,
    Cancelled,
    ConfigurationError,
    SyncError,
    Transient,
    WindowTooHard,
)
from sync_pipeline.core.model import (
    Counts,
    DeferredFetch,
    Depth,
    JobReport,
    JobStatus,
    JobType,
    Mode,
    Page,
    QuarantinedRow,
    Repository,
    RevisionPage,
    RevisionWindow,
    RunStatus,
    Traffic,
    Trigger,
    Visit,
)
from sync_pipeline.database.pool import Connection, Database
from sync_pipeline.facts import quarantine
from sync_pipeline.ledger import integrity_checks, jobs, leases, repos, watermarks
from sync_pipeline.registry import registration
from sync_pipeline.settings import Settings
from sync_pipeline.sync.attempt import database_error
from sync_pipeline.sync.engine import Syncer
from sync_pipeline.sync.readers import Readers, svn_reader
from sync_pipeline_sandbox import svn_samples
from sync_pipeline_sandbox.dumps import DumpWriter
from sync_pipeline_tests.builders import register_source as add
from sync_pipeline_tests.builders import request
from sync_pipeline_tests.faults.whole_state import differences, whole_state
from sync_pipeline_tests.svn_fixtures import SvnRepository, create_repository

REVISIONS = JobType.REVISIONS
SMALL = Settings(chunk_revisions=10, max_wait_seconds=0.5)


@pytest.fixture(scope="session")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of 45 revisions; copy it before changing it."""
    path = tmp_path_factory.mktemp("grown") / "repository"
    svn_samples.create(path, svn_samples.growing(45, paths=3))
    return path


@pytest.fixture
def repo_path(grown: Path, tmp_path: Path) -> Path:
    path = tmp_path / "repository"
    shutil.copytree(grown, path)
    return path


def commit(path: Path, message: str = "one more") -> None:
    subprocess.run(
        ["svn", "mkdir", "-q", "-m", message, f"{path.as_uri()}/trunk/new-{os.urandom(4).hex()}"], check=True
    )


def facts_of(conn: Connection) -> list[dict[str, Any]]:
    """Every fact without the columns that tell when and by whom it was seen."""
    revisions = conn.execute(
        "SELECT rev_num, author_raw, ts, message, visibility, path_count, flags, meta_json, content_hash"
        " FROM scm.svn_revisions ORDER BY repo_id, rev_num"
    ).fetchall()
    paths = conn.execute(
        "SELECT rev_num, path_no, path, action, kind, copyfrom_path, copyfrom_rev, text_mods, prop_mods"
        " FROM scm.svn_changed_paths ORDER BY repo_id, rev_num, path_no"
    ).fetchall()
    return revisions + paths


def one(conn: Connection, query: str) -> Any:
    row = conn.execute(query).fetchone()
    assert row is not None
    return next(iter(row.values()))


class Hindered:
    """A real reader in front of which a test puts an obstacle."""

    def __init__(self, inner: Any, before_read: Callable[[RevisionWindow], None]) -> None:
        self._inner = inner
        self._before_read = before_read

    @property
    def traffic(self) -> Traffic:
        traffic: Traffic = self._inner.traffic
        return traffic

    def visit(self) -> Visit:
        visit: Visit = self._inner.visit()
        return visit

    def read(self, window: RevisionWindow) -> Iterator[RevisionPage]:
        self._before_read(window)
        yield from self._inner.read(window)

    def read_single(self, rev_num: int) -> RevisionPage:
        batch: RevisionPage = self._inner.read_single(rev_num)
        return batch

    def settle(self, natural_key: str, detail: str) -> RevisionPage:
        batch: RevisionPage = self._inner.settle(natural_key, detail)
        return batch


class Substitute(Readers):
    """Readers whose SVN readers are made in another way."""

    def __init__(self, make: Callable[[Repository, Callable[[], bool]], Any]) -> None:
        super().__init__(SMALL)
        self._make = make

    def svn(self, repo: Repository, cancelled: Callable[[], bool]) -> Any:
        return self._make(repo, cancelled)


def hindered(before_read: Callable[[RevisionWindow], None]) -> Substitute:
    make = Readers(SMALL).svn
    return Substitute(lambda repo, cancelled: Hindered(make(repo, cancelled), before_read))


def test_an_incremental_reads_everything_from_the_origin_and_then_nothing(
    database: Database, repo_path: Path
) -> None:
    syncer = Syncer(database, SMALL)
    with database.connection() as conn:
        repo = add(conn, repo_path)
        first = syncer.run(request(repo))
        assert first.succeeded
        assert first.counts == Counts(read=45, inserted=45)
        assert (first.watermark_before, first.watermark_after, first.head) == (None, 46, 45)
        assert first.batches == 5
        stored = facts_of(conn)
        again = syncer.run(request(repo))
        assert again.run_status is RunStatus.COMPLETED
        assert again.counts.changed == 0
        assert facts_of(conn) == stored
        assert watermarks.get(conn, repo, REVISIONS).verified_at is not None
        assert integrity_checks.failures(conn) == {}
        commit(repo_path, "späte Arbeit")
        third = syncer.run(request(repo))
        assert (third.counts.inserted, third.watermark_after) == (1, 47)
        assert one(conn, "SELECT message FROM scm.svn_revisions WHERE rev_num = 46") == "späte Arbeit"


def test_the_ledger_adds_up(database: Database, repo_path: Path) -> None:
    with database.connection() as conn:
        report = Syncer(database, SMALL).run(request(add(conn, repo_path)))
        run = conn.execute("SELECT * FROM scm.sync_runs").fetchone()
        assert run is not None
        batches = conn.execute("SELECT * FROM scm.sync_batches ORDER BY batch_no").fetchall()
        assert [b["batch_no"] for b in batches] == [1, 2, 3, 4, 5]
        assert sum(b["inserted"] for b in batches) == run["inserted"] == 45
        assert run["calls"] == report.calls > 0
        assert run["status"] == "completed"
        assert one(conn, "SELECT count(*) FROM scm.sync_watermark_events WHERE run_id IS NOT NULL") == 5
        assert one(conn, "SELECT count(*) FROM scm.sync_locks WHERE locked_by IS NOT NULL") == 0


def test_backfill_in_any_order_covers_and_leaves_the_watermark_to_the_origin(
    database: Database, repo_path: Path
) -> None:
    syncer = Syncer(database, SMALL)
    with database.connection() as conn:
        repo = add(conn, repo_path, origin=41)
        syncer.run(request(repo))
        for window in ((21, 41), (1, 11)):
            report = syncer.run(request(repo, Mode.BACKFILL, window=window))
            assert report.watermark_after == 46
        row = watermarks.get(conn, repo, REVISIONS)
        assert row.covered == (RevisionWindow(1, 11), RevisionWindow(21, 46))
        last = syncer.run(request(repo, Mode.BACKFILL, window=(1, 41)))
        assert last.counts == Counts(read=10, inserted=10)
        row = watermarks.get(conn, repo, REVISIONS)
        assert (row.covered, row.origin, row.watermark) == ((RevisionWindow(1, 46),), 41, 46)
        assert integrity_checks.failures(conn) == {}


def test_the_block_jobs_of_a_backfill_share_one_look_at_the_front_door(
    database: Database, repo_path: Path
) -> None:
    syncer = Syncer(database, SMALL)
    with database.connection() as conn:
        repo = add(conn, repo_path, origin=41)
        syncer.run(request(repo))
        calls = [
            syncer.run(request(repo, Mode.BACKFILL, window=window)).calls for window in ((1, 11), (11, 21))
        ]
        assert calls == [1, 1]


def test_a_window_beyond_head_is_cut_or_empty_and_says_so(database: Database, repo_path: Path) -> None:
    syncer = Syncer(database, SMALL)
    with database.connection() as conn:
        repo = add(conn, repo_path)
        cut = syncer.run(request(repo, Mode.BACKFILL, window=(1, 1001)))
        assert (cut.counts.inserted, cut.beyond_head) == (45, False)
        assert watermarks.get(conn, repo, REVISIONS).covered == (RevisionWindow(1, 46),)
        beyond = syncer.run(request(repo, Mode.BACKFILL, window=(1001, 2001)))
        assert (beyond.succeeded, beyond.beyond_head, beyond.run_status) == (True, True, RunStatus.NO_DATA)


def test_an_empty_repository_is_complete_and_healthy(database: Database, tmp_path: Path) -> None:
    svn_samples.create(tmp_path / "empty")
    with database.connection() as conn:
        repo = add(conn, tmp_path / "empty")
        report = Syncer(database, SMALL).run(request(repo))
        assert (report.succeeded, report.run_status) == (True, RunStatus.NO_DATA)
        row = watermarks.get(conn, repo, REVISIONS)
        assert (row.access, row.verified_at is not None) == ("empty", True)


def test_a_reread_of_covered_revisions_writes_no_fact(database: Database, repo_path: Path) -> None:
    syncer = Syncer(database, SMALL)
    with database.connection() as conn:
        repo = add(conn, repo_path)
        syncer.run(request(repo))
        skipped = syncer.run(request(repo, Mode.BACKFILL, window=(1, 46)))
        assert skipped.counts == Counts()
        reread = syncer.run(request(repo, Mode.BACKFILL, window=(1, 46), reread=True))
        assert reread.counts == Counts(read=45, unchanged=45)
        assert one(conn, "SELECT max(version) FROM scm.svn_revisions") == 1


def test_a_hard_window_is_halved_down_to_the_revision_that_is_hard(
    database: Database, repo_path: Path
) -> None:
    def obstacle(window: RevisionWindow) -> None:
        if window.first <= 17 < window.end:
            raise WindowTooHard("not parseable")

    with database.connection() as conn:
        repo = add(conn, repo_path)
        report = Syncer(database, SMALL, hindered(obstacle)).run(request(repo))
        assert report.succeeded
        assert report.counts.inserted == 45
        assert watermarks.get(conn, repo, REVISIONS).covered == (RevisionWindow(1, 46),)


def test_a_failed_chunk_is_a_gap_and_the_rest_goes_on(database: Database, repo_path: Path) -> None:
    broken = threading.Event()
    broken.set()

    def obstacle(window: RevisionWindow) -> None:
        if broken.is_set() and window.first == 11:
            raise Transient("the server answered 500", code="server_error")

    syncer = Syncer(database, SMALL, hindered(obstacle))
    with database.connection() as conn:
        repo = add(conn, repo_path)
        report = syncer.run(request(repo))
        assert (report.job_status, report.error_code) == (JobStatus.FAILED, "server_error")
        assert report.counts.inserted == 35
        row = watermarks.get(conn, repo, REVISIONS)
        assert row.covered == (RevisionWindow(1, 11), RevisionWindow(21, 46))
        assert (row.watermark, row.verified_at) == (11, None)
        assert one(conn, "SELECT not_before > now() + interval '80 seconds' FROM scm.sync_jobs")
        broken.clear()
        again = syncer.run(request(repo))
        assert again.job_id == report.job_id
        assert again.counts.inserted == 10
        assert watermarks.get(conn, repo, REVISIONS).watermark == 46


def test_a_server_that_hangs_is_not_asked_for_every_single_revision(
    database: Database, repo_path: Path
) -> None:
    asked: list[RevisionWindow] = []

    def obstacle(window: RevisionWindow) -> None:
        asked.append(window)
        raise WindowTooHard("svn did not finish", code="timeout")

    with database.connection() as conn:
        repo = add(conn, repo_path)
        settings = SMALL.model_copy(update={"chunk_revisions": 45})
        report = Syncer(database, settings, hindered(obstacle)).run(request(repo))
        assert (report.job_status, report.error_code) == (JobStatus.FAILED, "timeout")
        assert len(asked) == 5


@pytest.mark.parametrize("work", ["gaps", "retry", "heal", "sweep"])
def test_a_server_that_is_down_is_asked_once_however_much_there_is_to_read(
    database: Database, repo_path: Path, work: str
) -> None:
    asked: list[RevisionWindow] = []
    down = threading.Event()

    def obstacle(window: RevisionWindow) -> None:
        asked.append(window)
        # The first one compares fingerprints.
        if down.is_set() and len(asked) > 1:
            raise Transient("no route", code="connection")

    settings = SMALL.model_copy(update={"sweep_recent_revisions": 10, "sweep_interval_seconds": 0.001})
    syncer = Syncer(database, settings, hindered(obstacle))
    wanted: dict[str, Any] = {}
    with database.connection() as conn:
        repo = add(conn, repo_path)
        if work == "gaps":
            for first in range(1, 45, 4):
                assert syncer.run(request(repo, Mode.BACKFILL, window=(first, first + 2))).succeeded
        else:
            assert syncer.run(request(repo)).succeeded
        if work == "retry":
            rows = [QuarantinedRow(str(number), "unreadable", "", b"") for number in range(1, 45, 4)]
            quarantine.quarantine(conn, repo_id=repo, job_type=REVISIONS, batch_id=1, rows=rows)
            entries, _ = quarantine.entries(conn, repo_id=repo)
            wanted = {"quarantine": tuple(entry.quarantine_id for entry in entries)}
        if work == "heal":
            conn.execute("DELETE FROM scm.svn_revisions WHERE rev_num % 4 = 1")
            assert syncer.run(request(repo, Mode.PROBE, window=(1, 46), depth=Depth.DETAILS)).succeeded
            wanted = {"only_differences": True}
        asked.clear()
        down.set()
        again = request(repo) if not wanted else request(repo, Mode.REPAIR, window=(1, 46), **wanted)
        report = syncer.run(again)
        assert (report.run_status, report.error_code) == (RunStatus.FAILED, "connection")
        assert len(asked) == 2
        down.clear()
        assert syncer.run(again).succeeded
        assert one(conn, "SELECT count(*) FROM scm.svn_revisions WHERE deleted_at IS NULL") == 45


def test_a_server_that_hangs_at_every_question_is_asked_for_one_window(
    database: Database, repo_path: Path
) -> None:
    asked: list[RevisionWindow] = []

    def obstacle(window: RevisionWindow) -> None:
        asked.append(window)
        raise WindowTooHard("svn did not finish", code="timeout")

    class Silent(Hindered):
        def visit(self) -> Visit:
            if asked:
                raise Transient("the server does not answer", code="timeout")
            return super().visit()

    make = Readers(SMALL).svn
    readers = Substitute(lambda repo, stop: Silent(make(repo, stop), obstacle))
    with database.connection() as conn:
        repo = add(conn, repo_path)
        probe = request(repo, Mode.PROBE, window=(1, 46), depth=Depth.DETAILS)
        for wanted in (request(repo), probe):
            if wanted is probe:
                assert Syncer(database, SMALL).run(request(repo)).succeeded
            report = Syncer(database, SMALL, readers).run(wanted)
            assert (report.run_status, report.error_code) == (RunStatus.FAILED, "timeout")
            assert len(asked) == 1
            asked.clear()


def test_attempts_run_out_and_the_job_needs_a_person(database: Database, repo_path: Path) -> None:
    def obstacle(window: RevisionWindow) -> None:
        raise Transient("no route", code="connection")

    syncer = Syncer(database, SMALL, hindered(obstacle))
    with database.connection() as conn:
        repo = add(conn, repo_path)
        states = [syncer.run(request(repo)).job_status for _ in range(3)]
        assert states == [JobStatus.FAILED, JobStatus.FAILED, JobStatus.DEAD]


@pytest.mark.parametrize("code", ["database_busy", "database_down"])
@pytest.mark.parametrize("kind", [ConfigurationError, Transient])
def test_no_connection_to_our_database_costs_no_attempt_and_waits_a_moment(
    database: Database, repo_path: Path, code: str, kind: type[SyncError]
) -> None:
    def obstacle(window: RevisionWindow) -> None:
        raise kind("no connection", code=code)

    syncer = Syncer(database, SMALL, hindered(obstacle))
    with database.connection() as conn:
        repo = add(conn, repo_path)
        states = [syncer.run(request(repo)).job_status for _ in range(4)]
        assert states == [JobStatus.FAILED] * 4
        assert one(conn, "SELECT max_attempts - attempts FROM scm.sync_jobs") == 3
        assert one(conn, "SELECT not_before BETWEEN now() AND now() + interval '30 s' FROM scm.sync_jobs")
        assert Syncer(database, SMALL).run(request(repo)).watermark_after == 46


def test_a_pool_whose_connections_are_all_in_use_ends_no_job(
    database_url: str, database: Database, repo_path: Path
) -> None:
    with Database(database_url, max_size=4, timeout=0.5) as narrow, ExitStack() as others:
        taken: list[Connection] = []

        def obstacle(window: RevisionWindow) -> None:
            try:
                while True:
                    taken.append(others.enter_context(narrow.connection()))
            finally:
                others.close()

        with database.connection() as conn:
            repo = add(conn, repo_path)
            for _ in range(4):
                report = Syncer(narrow, SMALL, hindered(obstacle)).run(request(repo))
                assert (report.job_status, report.error_code) == (JobStatus.FAILED, "database_busy")
            assert taken
            assert Syncer(database, SMALL).run(request(repo)).watermark_after == 46


def test_a_statement_that_is_too_slow_costs_an_attempt() -> None:
    assert database_error(psycopg.errors.QueryCanceled()).code == "database_refused"
    assert database_error(psycopg.errors.AdminShutdown()).code == "database_down"


def test_a_defect_of_ours_costs_an_attempt_and_is_named(database: Database, repo_path: Path) -> None:
    def obstacle(window: RevisionWindow) -> None:
        raise ZeroDivisionError("by accident")

    with database.connection() as conn:
        repo = add(conn, repo_path)
        report = Syncer(database, SMALL, hindered(obstacle)).run(request(repo))
        assert (report.job_status, report.error_code) == (JobStatus.FAILED, "exception")
        assert report.error == "ZeroDivisionError: by accident"


def test_cancelling_stops_between_batches_and_a_repeat_reads_the_rest(
    database: Database, repo_path: Path
) -> None:
    cancel = threading.Event()

    def obstacle(window: RevisionWindow) -> None:
        if window.first == 21:
            cancel.set()

    with database.connection() as conn:
        repo = add(conn, repo_path)
        with pytest.raises(Cancelled):
            Syncer(database, SMALL, hindered(obstacle)).run(request(repo), cancel=cancel)
        assert watermarks.get(conn, repo, REVISIONS).covered == (RevisionWindow(1, 21),)
        assert one(conn, "SELECT status FROM scm.sync_runs") == "interrupted"
        assert one(conn, "SELECT count(*) FROM scm.sync_locks WHERE locked_by IS NOT NULL") == 0
        report = Syncer(database, SMALL).run(request(repo))
        assert report.counts.inserted == 25


def test_an_unattended_job_that_was_cancelled_waits_and_a_persons_job_stays_stopped(
    database: Database, repo_path: Path
) -> None:
    cancel = threading.Event()
    syncer = Syncer(database, SMALL, hindered(lambda window: cancel.set()))
    with database.connection() as conn:
        repo = add(conn, repo_path)
        for trigger, state in ((Trigger.SENSOR, "pending"), (Trigger.UI, "dead")):
            cancel.clear()
            window = (1, 11) if trigger is Trigger.SENSOR else (11, 21)
            with pytest.raises(Cancelled):
                syncer.run(request(repo, Mode.BACKFILL, window=window, trigger=trigger), cancel=cancel)
            last = "SELECT status FROM scm.sync_jobs ORDER BY created_at DESC LIMIT 1"
            assert one(conn, last) == state


def test_a_dead_workers_job_is_taken_over_and_its_late_write_is_refused(
    database: Database, repo_path: Path
) -> None:
    settings = SMALL.model_copy(update={"claim_seconds": 60.0, "max_wait_seconds": 20.0})
    reached, go_on = threading.Event(), threading.Event()
    late: list[JobReport] = []

    def obstacle(window: RevisionWindow) -> None:
        if window.first == 11:
            reached.set()
            assert go_on.wait(120)

    with database.connection() as conn:
        repo = add(conn, repo_path)
        stopped = Syncer(database, settings, hindered(obstacle))
        thread = threading.Thread(target=lambda: late.append(stopped.run(request(repo))))
        thread.start()
        assert reached.wait(120)
        # What a process that was stopped for longer than its claim and its lease looks like from outside.
        conn.execute("UPDATE scm.sync_jobs SET claim_expires_at = clock_timestamp() - interval '1 second'")
        conn.execute("UPDATE scm.sync_locks SET expires_at = clock_timestamp() - interval '1 second'")
        report = Syncer(database, settings).run(request(repo))
        assert report.succeeded
        assert report.counts.inserted == 35
        stored = facts_of(conn)
        go_on.set()
        thread.join(120)
        assert late[0].error_code in ("claim_lost", "lease_lost")
        assert "nothing of this batch was written" in (late[0].error or "")
        assert facts_of(conn) == stored
        assert one(conn, "SELECT count(*) FROM scm.sync_batches WHERE fence = 1") == 1
        assert one(conn, "SELECT status FROM scm.sync_jobs") == "completed"


def test_a_reread_that_meets_a_running_job_of_the_same_window_is_done_after_it(
    database: Database, repo_path: Path
) -> None:
    reached, go_on = threading.Event(), threading.Event()
    plain: list[JobReport] = []
    reread: list[JobReport] = []

    def obstacle(window: RevisionWindow) -> None:
        if window.first == 31:
            reached.set()
            assert go_on.wait(120)

    def read_again() -> None:
        asked = request(repo, Mode.BACKFILL, window=(1, 46), reread=True)
        reread.append(Syncer(database, SMALL.model_copy(update={"max_wait_seconds": 60.0})).run(asked))

    with database.connection() as conn:
        repo = add(conn, repo_path)
        Syncer(database, SMALL).run(request(repo, Mode.BACKFILL, window=(1, 31)))
        slow = Syncer(database, SMALL, hindered(obstacle))
        first = threading.Thread(
            target=lambda: plain.append(slow.run(request(repo, Mode.BACKFILL, window=(1, 46))))
        )
        first.start()
        assert reached.wait(120)
        second = threading.Thread(target=read_again)
        second.start()
        while not one(conn, "SELECT count(*) FROM scm.sync_jobs WHERE reread_requested"):
            assert second.is_alive()
        go_on.set()
        first.join(120)
        second.join(120)
        assert (plain[0].counts.read, reread[0].counts.read) == (15, 45)
        assert plain[0].job_id == reread[0].job_id
        assert one(conn, "SELECT status FROM scm.sync_jobs WHERE reread") == "completed"


def test_a_lease_that_was_taken_makes_the_chunk_be_read_again(database: Database, repo_path: Path) -> None:
    taken: list[int] = []

    with database.connection() as conn:
        repo = add(conn, repo_path)

        def obstacle(window: RevisionWindow) -> None:
            if window.first == 11 and not taken:
                taken.append(1)
                with database.connection() as other:
                    other.execute(
                        "UPDATE scm.sync_locks SET fence = fence + 1, locked_by = NULL, expires_at = NULL"
                    )

        report = Syncer(database, SMALL, hindered(obstacle)).run(request(repo))
        assert report.succeeded
        assert report.counts.inserted == 45


def test_a_held_lease_is_waited_for_and_then_its_holder_is_named(database: Database, repo_path: Path) -> None:
    with database.connection() as conn:
        repo = add(conn, repo_path)
        leases.ensure(conn, repo, REVISIONS)
        held = leases.acquire(
            conn,
            repo_id=repo,
            job_type=REVISIONS,
            waiter=UUID(int=1),
            who="other-host:99",
            priority=0,
            length=60,
        )
        assert held is not None
        report = Syncer(database, SMALL).run(request(repo))
        assert (report.error_code, report.job_status) == ("lease_held", JobStatus.PENDING)
        assert "other-host:99" in (report.error or "")
        leases.release(conn, held)
        assert Syncer(database, SMALL).run(request(repo)).succeeded


def test_a_job_of_somebody_alive_is_waited_for_and_its_holder_is_named(
    database: Database, repo_path: Path
) -> None:
    with database.connection() as conn:
        repo = add(conn, repo_path)
        job = jobs.enqueue(conn, request(repo))
        mine = jobs.claim(conn, job, worker="other-host:7", process="p", length=300, dagster_run_id=None)
        assert mine is not None
        report = Syncer(database, SMALL).run(request(repo))
        assert report.error_code == "lease_held"
        assert "other-host:7" in (report.error or "")
        assert jobs.state(conn, job).claimed_by == "other-host:7"


def test_the_job_and_the_lease_of_a_dead_process_are_taken_over_at_once(
    database: Database, repo_path: Path
) -> None:
    """What ``kill -9`` leaves behind: a live claim and a live lease of a process that is no more."""
    child = subprocess.run(
        [sys.executable, "-c", "from sync_pipeline.sync.worker import *; print(process_identity())"],
        check=True,
        capture_output=True,
        text=True,
    )
    with database.connection() as conn:
        repo = add(conn, repo_path)
        job = jobs.enqueue(conn, request(repo))
        dead = jobs.claim(
            conn, job, worker="here:1", process=child.stdout.strip(), length=300, dagster_run_id=None
        )
        assert dead is not None
        leases.ensure(conn, repo, REVISIONS)
        held = leases.acquire(
            conn, repo_id=repo, job_type=REVISIONS, waiter=dead.token, who="here:1", priority=0, length=300
        )
        assert held is not None
        report = Syncer(database, SMALL).run(request(repo))
        assert report.succeeded
        assert report.counts.inserted == 45
        assert not leases.renew(conn, held, 60)
        other = jobs.enqueue(conn, request(repo, Mode.BACKFILL, window=(1, 11)))
        lost = jobs.claim(
            conn, other, worker="here:1", process=child.stdout.strip(), length=300, dagster_run_id=None
        )
        assert lost is not None
        Syncer(database, SMALL).run(request(repo))
        assert jobs.state(conn, other).status is JobStatus.COMPLETED
        assert one(conn, "SELECT error_code FROM scm.sync_runs WHERE attempt = 1") == "worker_lost"


def test_two_at_once_on_one_repository_store_everything_once(database: Database, repo_path: Path) -> None:
    settings = SMALL.model_copy(update={"max_wait_seconds": 30.0})
    reports: list[JobReport] = []
    with database.connection() as conn:
        repo = add(conn, repo_path)

        def work(mode: Mode, window: tuple[int, int] | None) -> None:
            reports.append(Syncer(database, settings).run(request(repo, mode, window=window)))

        threads = [
            threading.Thread(target=work, args=arguments)
            for arguments in ((Mode.INCREMENTAL, None), (Mode.BACKFILL, (1, 46)), (Mode.INCREMENTAL, None))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(report.succeeded for report in reports)
        assert one(conn, "SELECT count(*) FROM scm.svn_revisions") == 45
        assert one(conn, "SELECT max(version) FROM scm.svn_revisions") == 1
        assert integrity_checks.failures(conn) == {}


def test_another_repository_at_the_same_place_stops_everything(
    database: Database, repo_path: Path, tmp_path: Path
) -> None:
    syncer = Syncer(database, SMALL)
    with database.connection() as conn:
        repo = add(conn, repo_path)
        syncer.run(request(repo))
        stored = facts_of(conn)
        shutil.move(repo_path, tmp_path / "original")
        svn_samples.create(repo_path, svn_samples.growing(60, paths=2))
        report = syncer.run(request(repo))
        assert (report.job_status, report.error_code) == (JobStatus.DEAD, "replaced")
        assert "another UUID" in (report.error or "")
        assert facts_of(conn) == stored
        assert watermarks.get(conn, repo, REVISIONS).access == "replaced"
        shutil.rmtree(repo_path)
        shutil.move(tmp_path / "original", repo_path)
        assert syncer.run(request(repo)).succeeded
        assert watermarks.get(conn, repo, REVISIONS).access == "ok"


def test_a_rolled_back_repository_is_noticed_before_and_after_it_grows_again(
    database: Database, repo_path: Path, grown: Path
) -> None:
    syncer = Syncer(database, SMALL)
    with database.connection() as conn:
        repo = add(conn, repo_path)
        commit(repo_path, "will be lost")
        syncer.run(request(repo))
        shutil.rmtree(repo_path)
        shutil.copytree(grown, repo_path)
        assert "rolled back" in (syncer.run(request(repo)).error or "")
        commit(repo_path, "takes the number of the lost one")
        commit(repo_path, "and one more")
        report = syncer.run(request(repo))
        assert "other paths under r46" in (report.error or "")
        assert one(conn, "SELECT message FROM scm.svn_revisions WHERE rev_num = 46") == "will be lost"


def same_uuid(path: Path, dump: bytes, uuid: str) -> SvnRepository:
    """Another history in the place of a repository, under its UUID."""
    shutil.rmtree(path)
    repository = create_repository(path).load(dump)
    (path / "db" / "uuid").write_text(f"{uuid}\n{uuid}\n")
    return repository


def one_file(first: int, end: int, message: str, year: int = 2020) -> DumpWriter:
    """Revisions that all change the same file, and a first one that adds it."""
    writer = DumpWriter().revision("add", "ann", "2020-01-01T00:00:00.000001Z").node("f", text="0")
    for number in range(first, end):
        writer.revision(f"{message} {number}", "ann", f"{year}-02-03T04:{number:02d}:00.000001Z")
        writer.node("f", "change", text=f"{message} {number}")
    return writer


def assert_nothing_is_written(database: Database, syncer: Syncer, repo: int, text: str) -> None:
    """A visit finds another repository, says so, and leaves everything as it was."""
    with database.connection() as conn:
        before = whole_state(conn)
        report = syncer.run(request(repo))
        assert (report.job_status, report.error_code) == (JobStatus.DEAD, "replaced"), report
        assert text in (report.error or "")
        assert watermarks.get(conn, repo, REVISIONS).access == "replaced"
        after = whole_state(conn)
        del before["sync_watermarks"], after["sync_watermarks"]
        assert differences(before, after) == []


@pytest.mark.parametrize("change", ["other paths, same dates", "same path", "same path, one revision"])
def test_a_history_rewritten_under_the_same_uuid_overwrites_nothing(
    database: Database, tmp_path: Path, change: str
) -> None:
    """What is loaded up to r10, and then other commits than those that were read."""
    repo_path = tmp_path / "r"
    stored = 11 if change == "same path, one revision" else 15
    uuid = create_repository(repo_path).load(one_file(2, stored + 1, "old").dump()).uuid
    syncer = Syncer(database, SMALL)
    with database.connection() as conn:
        repo = add(conn, repo_path)
        assert syncer.run(request(repo)).succeeded
        if change == "other paths, same dates":
            writer = one_file(2, 11, "old")
            for number in range(11, 21):
                writer.revision(f"new {number}", "ann", f"2020-02-03T04:{number:02d}:00.000001Z")
                writer.node(f"n{number}", text="x")
            same_uuid(repo_path, writer.dump(), uuid)
        elif change == "same path":
            writer = one_file(2, 11, "old")
            for number in range(11, 21):
                writer.revision(f"new {number}", "ann", f"2019-02-03T04:{number:02d}:00.000001Z")
                writer.node("f", "change", text=f"new {number}")
            same_uuid(repo_path, writer.dump(), uuid)
        else:
            repository = same_uuid(repo_path, one_file(2, 11, "old").dump(), uuid)
            for number in range(2):
                target = tmp_path / f"wc{number}"
                subprocess.run(["svn", "checkout", "-q", repository.url, target], check=True)
                (target / "f").write_text(f"new {number}")
                subprocess.run(["svn", "commit", "-q", "-m", f"new {number}", target], check=True)
    assert_nothing_is_written(database, syncer, repo, "r11")


def filtered(repo_path: Path, out: str = "secret") -> None:
    """The usual clean-up: everything below one folder is taken out of the history, which keeps every date
    and every number."""
    repository = SvnRepository(repo_path)
    uuid = repository.uuid
    done = subprocess.run(
        ["svndumpfilter", "exclude", out], input=repository.dump(), capture_output=True, check=True
    )
    same_uuid(repo_path, done.stdout, uuid)


def with_a_secret(end: int) -> bytes:
    """Revisions of which one in ten, the first of them r5, changes the folder ``secret`` too."""
    writer = DumpWriter().revision("dirs", "ann", "2020-01-01T00:00:00.000001Z").directory("open")
    writer.directory("secret")
    for number in range(2, end):
        writer.revision(f"m {number}", "ann", f"2020-02-03T04:{number:02d}:00.000001Z")
        writer.node(f"open/{number}", text="x")
        if number % 10 == 5:
            writer.node(f"secret/{number}", text="x")
    return writer.dump()


@pytest.mark.parametrize("found_by", ["visit", "sweep", "reread", "heal"])
def test_a_filtered_history_overwrites_nothing_however_it_is_found(
    database: Database, tmp_path: Path, found_by: str
) -> None:
    repo_path = tmp_path / "r"
    create_repository(repo_path).load(with_a_secret(26 if found_by == "visit" else 35))
    settings = SMALL.model_copy(update={"sweep_recent_revisions": 10, "sweep_interval_seconds": 0.001})
    syncer = Syncer(database, settings if found_by == "sweep" else SMALL)
    with database.connection() as conn:
        repo = add(conn, repo_path)
        assert syncer.run(request(repo)).succeeded
        shutil.copytree(repo_path, tmp_path / "original")
        filtered(repo_path)
        if found_by in ("visit", "sweep"):
            assert_nothing_is_written(database, syncer, repo, "other paths under r")
        else:
            before = facts_of(conn)
            if found_by == "heal":
                probe = request(repo, Mode.PROBE, window=(1, 35), depth=Depth.DETAILS)
                assert syncer.run(probe).succeeded
                report = syncer.run(
                    request(repo, Mode.REPAIR, window=RevisionWindow(1, 2**40), only_differences=True)
                )
            else:
                report = syncer.run(request(repo, Mode.BACKFILL, window=(1, 35), reread=True))
            assert report.error_code == "replaced", report
            assert facts_of(conn) == before
            # A visit that sees only what was not rewritten does not take that back.
            assert syncer.run(request(repo)).error_code == "replaced"
            assert watermarks.get(conn, repo, REVISIONS).access == "replaced"
        shutil.rmtree(repo_path)
        shutil.move(tmp_path / "original", repo_path)
        report = syncer.run(request(repo))
        assert (report.succeeded, report.counts.changed) == (True, 0), report
        assert watermarks.get(conn, repo, REVISIONS).access == "ok"


@pytest.mark.parametrize("failure", [Transient("too slow", code="timeout"), AccessDenied("refused")])
def test_a_server_that_fails_while_the_whole_history_is_read_verifies_nothing(
    database: Database, tmp_path: Path, failure: SyncError
) -> None:
    repo_path = tmp_path / "r"
    create_repository(repo_path).load(with_a_secret(35))
    syncer = Syncer(database, SMALL)

    def fails(window: RevisionWindow) -> None:
        if window.first == 1:
            raise failure

    with database.connection() as conn:
        repo = add(conn, repo_path)
        assert syncer.run(request(repo)).succeeded
        shutil.copytree(repo_path, tmp_path / "original")
        filtered(repo_path)
        reread = request(repo, Mode.BACKFILL, window=(1, 35), reread=True)
        assert syncer.run(reread).error_code == "replaced"
        for source in (repo_path, tmp_path / "original"):
            if source != repo_path:
                shutil.rmtree(repo_path)
                shutil.move(source, repo_path)
            report = Syncer(database, SMALL, hindered(fails)).run(request(repo))
            assert (report.succeeded, report.error_code) == (False, failure.code), report
            assert watermarks.get(conn, repo, REVISIONS).access == "replaced"
        assert syncer.run(request(repo)).succeeded
        assert watermarks.get(conn, repo, REVISIONS).access == "ok"


def test_a_history_filtered_out_of_a_registered_folder_makes_no_tombstone(
    database: Database, tmp_path: Path
) -> None:
    repo_path = tmp_path / "r"
    create_repository(repo_path).load(with_a_secret(35))
    syncer = Syncer(
        database, SMALL.model_copy(update={"deletion_confirmations": 1, "deletion_after_seconds": 0.0})
    )
    with database.connection() as conn:
        repo = add(conn, repo_path, prefix="secret")
        assert syncer.run(request(repo)).succeeded
        before = facts_of(conn)
        filtered(repo_path, "secret/5")
        assert syncer.run(request(repo, Mode.PROBE, window=(1, 35), depth=Depth.DETAILS)).succeeded
        report = syncer.run(
            request(repo, Mode.REPAIR, window=RevisionWindow(1, 2**40), only_differences=True)
        )
        assert report.error_code == "replaced", report
        assert facts_of(conn) == before
        assert one(conn, "SELECT count(*) FROM scm.svn_revisions WHERE deleted_at IS NOT NULL") == 0


def test_edited_logs_authors_and_dates_stay_edits_and_each_version_keeps_its_paths(
    database: Database, repo_path: Path
) -> None:
    settings = SMALL.model_copy(update={"sweep_recent_revisions": 45, "sweep_interval_seconds": 0.001})
    syncer = Syncer(database, settings)
    repository = SvnRepository(repo_path)
    with database.connection() as conn:
        repo = add(conn, repo_path)
        assert syncer.run(request(repo)).succeeded
        paths = "SELECT path_no, path, action, kind, copyfrom_path, copyfrom_rev, text_mods, prop_mods FROM "
        before = conn.execute(f"{paths} scm.svn_changed_paths WHERE rev_num = 45 ORDER BY 1").fetchall()
        for rev in range(41, 46):  # everybody gets another name, and the newest dates were wrong
            repository.set_revprop(rev, "svn:author", "anonymous")
        for rev in (44, 45):
            repository.set_revprop(rev, "svn:date", "2031-01-01T00:00:00.000000Z")
        repository.set_revprop(43, "svn:log", "edited")
        repository.set_revprop(3, "svn:log", "edited")
        repository.set_revprop(3, "svn:date", "2019-01-01T00:00:00.000000Z")
        repository.set_revprop(3, "svn:author", "bob")
        report = syncer.run(request(repo))
        assert report.succeeded, report
        assert report.counts.updated == 6
        kept = conn.execute(f"{paths} scm.svn_path_versions WHERE rev_num = 45 ORDER BY 1").fetchall()
        assert kept == before
        assert one(conn, "SELECT count(DISTINCT rev_num) FROM scm.svn_path_versions WHERE version = 1") == 6


def test_a_rewritten_repository_that_is_registered_again_is_another_one(
    database: Database, tmp_path: Path
) -> None:
    repo_path = tmp_path / "r"
    create_repository(repo_path).load(with_a_secret(26))
    syncer = Syncer(database, SMALL)
    with database.connection() as conn:
        repo = add(conn, repo_path)
        assert syncer.run(request(repo)).succeeded
        before = facts_of(conn)
        filtered(repo_path)
        assert syncer.run(request(repo)).error_code == "replaced"
        registration.retire_repository(database, repo, reason="rewritten", actor="test")
        added = registration.add_repository(
            database,
            SMALL,
            catalog.parse_spec(f"svn:{repo_path.as_uri()}"),
            actor="test",
            reader_factory=lambda url: svn_reader(SMALL, url),
        )
        assert added.repository is not None
        assert (added.again, added.repository.repo_id == repo) == (False, False)
        assert syncer.run(request(added.repository.repo_id)).succeeded
        old = [row for row in facts_of(conn) if row in before]
        assert len(old) >= len(before)


def test_an_edited_message_is_found_by_the_sweep(database: Database, repo_path: Path) -> None:
    hook = repo_path / "hooks" / "pre-revprop-change"
    hook.write_text("#!/bin/sh\nexit 0\n")
    hook.chmod(0o755)
    settings = SMALL.model_copy(update={"sweep_recent_revisions": 10, "sweep_interval_seconds": 0.001})
    syncer = Syncer(database, settings)
    with database.connection() as conn:
        repo = add(conn, repo_path)
        syncer.run(request(repo))
        for rev in (3, 44):
            subprocess.run(
                ["svn", "ps", "-q", "--revprop", f"-r{rev}", "svn:log", f"edited {rev}", repo_path.as_uri()],
                check=True,
            )
        off = Syncer(database, settings.model_copy(update={"sweep_enabled": False}))
        assert off.run(request(repo)).counts.read == 0
        report = syncer.run(request(repo))
        assert report.counts.updated == 2
        rows = conn.execute("SELECT rev_num, version FROM scm.svn_revisions WHERE version > 1 ORDER BY 1")
        assert [tuple(r.values()) for r in rows] == [(3, 2), (44, 2)]
        old = conn.execute("SELECT message FROM scm.svn_revision_versions WHERE rev_num = 3").fetchone()
        assert old is not None
        assert old["message"].startswith("Change 3:")


def test_broken_messages_cost_no_svn_command_not_even_in_the_sweep(
    database: Database, tmp_path: Path
) -> None:
    settings = SMALL.model_copy(update={"sweep_recent_revisions": 30, "sweep_interval_seconds": 0.001})
    calls: dict[str, list[int]] = {}
    with database.connection() as conn:
        for name, text in (("plain", b"cafe"), ("latin", b"caf\xe9")):
            writer = DumpWriter()
            for number in range(1, 61):
                message = text if number % 3 == 0 or number > 55 else b"other"
                writer.revision(message, text, "2020-02-03T04:05:06.000001Z").node(f"f{number}", text="x")
            create_repository(tmp_path / name).load(writer.dump())
            repo = add(conn, tmp_path / name)
            reports = [Syncer(database, settings).run(request(repo)) for _ in range(3)]
            assert [report.counts.changed for report in reports] == [60, 0, 0]
            calls[name] = [report.traffic.calls for report in reports]
        assert calls["latin"] == calls["plain"]
        assert calls["plain"][1] > 3  # the sweep was one of them
        query = "SELECT count(*) FROM scm.svn_revisions WHERE 'invalid_utf8' = ANY (flags)"
        assert one(conn, query) == 60


def test_what_is_deferred_is_retried_on_its_own_and_settled(database: Database, repo_path: Path) -> None:
    make = Readers(SMALL).svn

    class Deferring(Hindered):
        def read(self, window: RevisionWindow) -> Iterator[RevisionPage]:
            for batch in self._inner.read(window):
                if window.first <= 5 < window.end and len(window) > 1:
                    yield replace(batch, deferred=(DeferredFetch("5", "message", "timed out"),))
                else:
                    yield batch

    syncer = Syncer(
        database, SMALL, Substitute(lambda repo, stop: Deferring(make(repo, stop), lambda window: None))
    )
    with database.connection() as conn:
        repo = add(conn, repo_path)
        assert syncer.run(request(repo)).succeeded
        # The same run settles what is due at once.
        assert one(conn, "SELECT count(*) FROM scm.deferred_fetches WHERE resolved_at IS NULL") == 0
        assert one(conn, "SELECT flags FROM scm.svn_revisions WHERE rev_num = 5") == []
        assert one(conn, "SELECT version FROM scm.svn_revisions WHERE rev_num = 5") == 2


def test_one_bad_row_goes_to_quarantine_and_the_batch_goes_on(database: Database, repo_path: Path) -> None:
    make = Readers(SMALL).svn

    class Corrupt(Hindered):
        def read_single(self, rev_num: int) -> RevisionPage:
            window = RevisionWindow(rev_num, rev_num + 1)
            return Page(window, (), window, (QuarantinedRow(str(rev_num), "corrupt", "bad node", b"\x00"),))

    def obstacle(window: RevisionWindow) -> None:
        if window.first <= 7 < window.end:
            raise WindowTooHard("corrupt")

    syncer = Syncer(database, SMALL, Substitute(lambda repo, stop: Corrupt(make(repo, stop), obstacle)))
    with database.connection() as conn:
        repo = add(conn, repo_path)
        report = syncer.run(request(repo))
        assert report.counts == Counts(read=45, inserted=44, quarantined=1)
        assert one(conn, "SELECT batch_id IS NOT NULL FROM scm.quarantine") is True
        assert Syncer(database, SMALL).run(request(repo, Mode.REPAIR, window=(1, 11))).counts.inserted == 1
        assert one(conn, "SELECT count(*) FROM scm.quarantine WHERE resolved_at IS NULL") == 0


def test_a_revision_that_the_database_refuses_does_not_stop_the_others(
    database: Database, repo_path: Path
) -> None:
    with database.connection() as conn:
        conn.execute("ALTER TABLE scm.svn_revisions ADD CONSTRAINT no_tags CHECK (rev_num <> 17)")
        repo = add(conn, repo_path)
        report = Syncer(database, SMALL).run(request(repo))
        assert report.succeeded
        assert report.counts == Counts(read=45, inserted=44, quarantined=1)
        row = conn.execute("SELECT natural_key, reason, detail, payload FROM scm.quarantine").fetchone()
        assert row is not None
        assert (row["natural_key"], row["reason"]) == ("17", "unstorable")
        assert "no_tags" in row["detail"]
        assert json.loads(row["payload"])["message"].startswith("Change 17")
        conn.execute("ALTER TABLE scm.svn_revisions DROP CONSTRAINT no_tags")
        Syncer(database, SMALL).run(request(repo, Mode.REPAIR, window=(1, 46)))
        assert one(conn, "SELECT count(*) FROM scm.quarantine WHERE resolved_at IS NULL") == 0
        assert integrity_checks.failures(conn) == {}


def test_a_full_disk_fails_the_job_and_quarantines_nothing(database: Database, repo_path: Path) -> None:
    with database.connection() as conn:
        conn.execute(
            "CREATE FUNCTION scm.full_disk() RETURNS trigger LANGUAGE plpgsql AS"
            " $$BEGIN RAISE EXCEPTION 'no space left on device' USING ERRCODE = 'disk_full'; END$$"
        )
        conn.execute(
            "CREATE TRIGGER full_disk BEFORE INSERT ON scm.svn_revisions FOR EACH ROW"
            " WHEN (NEW.rev_num = 17) EXECUTE FUNCTION scm.full_disk()"
        )
        repo = add(conn, repo_path)
        report = Syncer(database, SMALL).run(request(repo))
        assert (report.job_status, report.error_code) == (JobStatus.FAILED, "database_full")
        assert "no space left on device" in (report.error or "")
        assert one(conn, "SELECT count(*) FROM scm.quarantine") == 0
        conn.execute("DROP TRIGGER full_disk ON scm.svn_revisions")
        assert Syncer(database, SMALL).run(request(repo)).counts.inserted == 35


def test_a_subfolder_stores_what_concerns_it_and_covers_everything(
    database: Database, tmp_path: Path
) -> None:
    svn_samples.create(tmp_path / "odd", svn_samples.odd())
    with database.connection() as conn:
        repo = add(conn, tmp_path / "odd", prefix="branches/next")
        report = Syncer(database, SMALL).run(request(repo))
        assert report.succeeded
        rows = conn.execute("SELECT rev_num FROM scm.svn_revisions ORDER BY 1").fetchall()
        assert [r["rev_num"] for r in rows] == [1, 3, 4]
        assert watermarks.get(conn, repo, REVISIONS).covered == (RevisionWindow(1, 9),)


def test_a_retired_or_unknown_repository_is_refused_before_anything_is_written(
    database: Database, repo_path: Path
) -> None:
    with database.connection() as conn:
        repo = add(conn, repo_path)
        repos.retire(conn, repo, "test")
        with pytest.raises(ConfigurationError, match="is retired"):
            Syncer(database, SMALL).run(request(repo))
        with pytest.raises(ConfigurationError, match="no repository 4711"):
            Syncer(database, SMALL).run(request(4711))
        assert one(conn, "SELECT count(*) FROM scm.sync_jobs") == 0


def test_a_job_of_before_a_reset_cannot_write(database: Database, repo_path: Path) -> None:
    with database.connection() as conn:
        repo = add(conn, repo_path)

        def obstacle(window: RevisionWindow) -> None:
            if window.first == 11:
                with database.connection() as other:
                    watermarks.replace(
                        other, repo_id=repo, job_type=REVISIONS, covered=(), actor="ann", reason="test"
                    )

        report = Syncer(database, SMALL, hindered(obstacle)).run(request(repo))
        assert (report.error_code, report.job_status) == ("watermark_set", JobStatus.PENDING)
        assert watermarks.get(conn, repo, REVISIONS).covered == ()
        assert Syncer(database, SMALL).run(request(repo)).watermark_after == 46


def test_a_factory_gets_the_catalogs_row(database: Database, repo_path: Path) -> None:
    seen: list[Repository] = []
    make = Readers(SMALL).svn

    def remember(repo: Repository, cancelled: Callable[[], bool]) -> Any:
        seen.append(repo)
        return make(repo, cancelled)

    with database.connection() as conn:
        repo = add(conn, repo_path)
        Syncer(database, SMALL, Substitute(remember)).run(request(repo))
        assert [r.repo_id for r in seen] == [repo]
