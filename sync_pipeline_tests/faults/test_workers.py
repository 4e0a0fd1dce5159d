"""Real worker processes that are killed, stopped and doubled: a repeat of the job ends in exactly the state
of an undisturbed run, compared row by row over every table of facts, the coverage and the watermark.

Belongs here: what happens to the process. What happens to the database is in
:mod:`sync_pipeline_tests.faults.test_database_outages`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from psycopg import sql

from sync_pipeline.database.pool import Database
from sync_pipeline.ledger import integrity_checks
from sync_pipeline_sandbox import svn_samples
from sync_pipeline_tests.builders import register_source
from sync_pipeline_tests.faults import processes
from sync_pipeline_tests.faults.processes import (
    POINTS,
    Start,
    Subject,
    Subjects,
    catching,
    check,
    reached,
)
from sync_pipeline_tests.faults.whole_state import differences, whole_state
from sync_pipeline_tests.warm import Starter

gate, repository, served, subjects = (
    processes.gate,
    processes.repository,
    processes.served,
    processes.subjects,
)

# Two seconds are long for a process that lives, and short for a test that waits for their end.
_LENGTHS = {
    "claim_seconds": 1.5,
    "claim_renew_seconds": 0.3,
    "lease_seconds": 1.0,
    "lease_renew_seconds": 0.2,
}


@pytest.fixture
def start(database_url: str, warm: Starter) -> Iterator[Start]:
    """See :func:`sync_pipeline_tests.faults.processes.catching`."""
    with catching(database_url, warm) as begin:
        yield begin


# Killed ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "point"),
    [
        *(("revisions", point) for point in POINTS if point != "copying"),
        *(("commits", point) for point in ("writing rows", "committing", "giving a lease back")),
        *(("merge requests", point) for point in ("writing rows", "committing", "finishing")),
    ],
)
def test_a_worker_killed_at_any_step_leaves_nothing_that_a_repeat_does_not_mend(
    subjects: Subjects, database: Database, start: Start, what: str, point: str
) -> None:
    subject = subjects[what]
    with database.connection() as conn:
        job = subject.job(conn)
    worker = start(job, point, subject.facts).caught()
    worker.kill().let_the_server_go_on(until_gone=True)
    check(database, job, subject)


@pytest.mark.parametrize(
    ("what", "mode", "point"),
    [
        ("revisions", "probe", "naming differences"),
        ("revisions", "repair", "healing a row"),
        ("revisions", "repair", "committing"),
        ("merge requests", "probe", "writing the result"),
        ("merge requests", "repair", "committing"),
    ],
)
def test_a_comparison_or_a_repair_that_is_killed_is_done_again(
    subjects: Subjects, database: Database, start: Start, what: str, mode: str, point: str
) -> None:
    subject = subjects[what]
    is_svn = what == "revisions"
    damage = sql.SQL("UPDATE scm.{} SET {} = 'x' WHERE {} IN (2, 3, 5)").format(
        sql.Identifier(subject.facts),
        *map(sql.Identifier, ("message", "rev_num") if is_svn else ("title", "iid")),
    )
    with database.connection() as conn:
        job = subject.job(conn)
        assert all(report.succeeded for report in job.run(database))
        conn.execute(damage)
        window = (1, 46) if is_svn else ("1900-01-01T00:00+00:00", "2100-01-01T00:00+00:00")
        job = replace(job, job_types=job.job_types[:1], window=window)
        compare, repair_differences = (
            replace(job, mode="probe", depth="details"),
            replace(job, mode="repair", only_differences=True),
        )

        def differ() -> set[str]:
            assert [report.error for report in compare.run(database) if not report.succeeded] == []
            rows = conn.execute("SELECT natural_key FROM scm.discrepancies WHERE resolved_at IS NULL")
            return {row["natural_key"] for row in rows}

        if mode == "repair":
            assert differ() == {"2", "3", "5"}
        worker = start(compare if mode == "probe" else repair_differences, point, subject.facts).caught()
        worker.kill().let_the_server_go_on(until_gone=True)
        if mode == "probe":
            assert differ() == {"2", "3", "5"}
        assert [report.error for report in repair_differences.run(database) if not report.succeeded] == []
        assert differ() == set()
        state = whole_state(conn) | {"svn_revision_versions": [], "svn_path_versions": []}
        expected = dict(subject.expected)
        for rows in (state, expected):
            rows[subject.facts] = [row | {"version": 1} for row in rows[subject.facts]]
        assert differences(expected, state) == []
        assert integrity_checks.failures(conn) == {}


def test_the_open_transaction_of_a_killed_worker_holds_nobody_up(
    subjects: Subjects, database: Database, start: Start
) -> None:
    """As long as the server does not notice that nobody listens any more, such as after a cable was cut."""
    subject = subjects["revisions"]
    with database.connection() as conn:
        job = subject.job(conn)
    start(job, "writing rows", subject.facts).caught().kill()
    check(database, job, subject)


# Stopped --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", ["writing rows", "writing the ledger", "copying"])
def test_a_worker_stopped_inside_a_batch_is_replaced_and_its_late_write_is_refused(
    subjects: Subjects, database: Database, start: Start, point: str, tmp_path: Path
) -> None:
    """The server waits for it, also in the middle of a COPY, and holds its locks."""
    subject = subjects["revisions"]
    if point == "copying":
        huge = tmp_path / "huge"
        svn_samples.large(huge, 3, 2, huge=8_000)
        subject = Subject(lambda conn: register_source(conn, huge), ("revisions",), {}, "svn_revisions")
    with database.connection() as conn:
        job = subject.job(conn, **_LENGTHS)
    worker = start(job, point, subject.facts).caught().stop()
    worker.let_the_server_go_on()
    worker.overdue()
    if point == "copying":
        assert [r.error for r in job.run(database)] == [None]
        with database.connection() as conn:
            subject.expected = whole_state(conn)
    check(database, job, subject, times=1)
    result = worker.go_on()
    assert (result["status"], result["code"]) == ("failed", "claim_lost"), result
    assert f":{os.getpid()} took it over" in result["error"]
    check(database, job, subject)


def test_a_worker_stopped_while_it_reads_is_refused_and_told_who_came_after_it(
    subjects: Subjects, database: Database, start: Start, gate: Path
) -> None:
    subject = subjects["revisions"]
    with database.connection() as conn:
        job = subject.job(conn, **_LENGTHS)
    worker = start(job, path=gate)
    reached(gate)
    worker.stop().overdue()
    check(database, job, subject, times=1)
    (gate / "go").touch()
    result = worker.go_on()
    assert (result["status"], result["code"]) == ("failed", "claim_lost"), result
    assert f":{os.getpid()} took it over" in result["error"]
    check(database, job, subject)


@pytest.mark.parametrize("which", ["the lease", "the claim"])
def test_a_worker_whose_heartbeat_is_lost_writes_nothing_late(
    subjects: Subjects, database: Database, start: Start, gate: Path, which: str
) -> None:
    """A lost lease costs the chunk, which is read again; a lost claim ends the attempt."""
    subject = subjects["revisions"]
    table, column = (
        ("sync_locks", "expires_at") if which == "the lease" else ("sync_jobs", "claim_expires_at")
    )
    same = "fence" if which == "the lease" else "claim_token"
    with database.connection() as conn:
        conn.execute(
            "CREATE FUNCTION scm.no_beat() RETURNS trigger LANGUAGE plpgsql AS"
            " $$BEGIN RAISE EXCEPTION 'no heartbeat arrives'; END$$"
        )
        beats = sql.SQL(
            "CREATE TRIGGER no_beat BEFORE UPDATE ON scm.{table} FOR EACH ROW"
            " WHEN (NEW.{same} = OLD.{same} AND NEW.{column} > OLD.{column}) EXECUTE FUNCTION scm.no_beat()"
        )
        names = {"table": table, "same": same, "column": column}
        job = subject.job(conn, **_LENGTHS)
        worker = start(job, path=gate)
        reached(gate)
        # Not before: a busy machine may need longer than the claim to get here.
        conn.execute(beats.format(**{name: sql.Identifier(value) for name, value in names.items()}))
        over = sql.SQL("SELECT 1 FROM scm.{table} WHERE {column} < clock_timestamp()")
        while not conn.execute(
            over.format(table=sql.Identifier(table), column=sql.Identifier(column))
        ).fetchone():
            time.sleep(0.05)
        (gate / "go").touch()
        (result,) = worker.result()
        if which == "the lease":
            assert (result["status"], result["inserted"]) == ("completed", 45)
        else:
            assert (result["status"], result["code"]) == ("failed", "claim_lost"), result
            assert "ran out" in result["error"]
        conn.execute(sql.SQL("DROP TRIGGER no_beat ON scm.{}").format(sql.Identifier(table)))
    check(database, job, subject)


# Two of them ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["revisions", "merge requests"])
def test_two_workers_on_one_repository_do_it_once(
    subjects: Subjects, database: Database, start: Start, what: str
) -> None:
    subject = subjects[what]
    with database.connection() as conn:
        job = subject.job(conn)
    workers = [start(job), start(job)]
    result = [document for worker in workers for document in worker.result()]
    assert {document["status"] for document in result} == {"completed"}, result
    check(database, job, subject)
