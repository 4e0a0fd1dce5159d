"""What goes when it is old, and what stays however old it is."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from sync_pipeline.admin.retention import Kind, RetentionReport, Until, parts, retain
from sync_pipeline.core.model import JobStatus, Mode
from sync_pipeline.database.pool import Connection, Database
from sync_pipeline.ledger import integrity_checks, job_actions, jobs
from sync_pipeline.ledger.retention import FinishedJob
from sync_pipeline.settings import Settings
from sync_pipeline_sandbox import svn_samples
from sync_pipeline_tests.builders import register, register_source, request
from sync_pipeline_tests.faults.worker import Job

AGED = """
UPDATE scm.sync_jobs SET finished_at = finished_at - make_interval(days => %(days)s)
 WHERE finished_at IS NOT NULL
"""


def counts(conn: Connection) -> dict[str, int]:
    row = conn.execute(
        "SELECT (SELECT count(*) FROM scm.sync_jobs) AS jobs, (SELECT count(*) FROM scm.sync_runs) AS runs,"
        " (SELECT count(*) FROM scm.sync_batches) AS batches,"
        " (SELECT count(*) FROM scm.svn_revisions) AS revisions,"
        " (SELECT count(*) FROM scm.sync_watermark_events) AS events"
    ).fetchone()
    assert row is not None
    return row


def kinds(report: RetentionReport) -> dict[str, tuple[int, int]]:
    return {one.name.removeprefix("scm.sync_"): (one.found, one.deleted) for one in report.kinds}


def test_finished_work_goes_with_its_runs_and_batches_and_the_integrity_checks_still_hold(
    database: Database, tmp_path: Path
) -> None:
    source = tmp_path / "repository"
    svn_samples.create(source, svn_samples.growing(20, paths=1))
    settings = Settings()
    with database.connection() as conn:
        repo = register_source(conn, source)
        incremental = Job(repo, ("revisions",), {})
        for mode in ("incremental", "incremental", "probe", "incremental"):
            job = Job(repo, ("revisions",), {}, mode, *((), ((1, 21), "details"))[mode == "probe"])
            assert [r.error for r in job.run(database)] == [None]
        conn.execute(AGED, {"days": 89})
        assert kinds(retain(database, settings, execute=True))["jobs"] == (0, 0)
        conn.execute(AGED, {"days": 2})
        before = counts(conn)
        oldest = conn.execute("SELECT job_id FROM scm.sync_jobs ORDER BY created_at LIMIT 1").fetchone()
        assert oldest is not None
        by = job_actions.By("ann", "why")
        job_actions._note(conn, oldest["job_id"], "reset", JobStatus.DEAD, JobStatus.PENDING, by)

        assert kinds(retain(database, settings, execute=False))["jobs"] == (2, 0)
        assert counts(conn) == before
        batches = before["batches"]
        done = kinds(retain(database, settings, execute=True))
        assert done | {"batches": (0, 0)} == {
            "jobs": (2, 2),
            "runs": (2, 2),
            "batches": (0, 0),
            "scm.pauses": (0, 0),
            "scm.breaker_events": (0, 0),
            "scm.discrepancies": (0, 0),
            "scm.deferred_fetches": (0, 0),
        }
        after = counts(conn)
        assert after == before | {"jobs": 2, "runs": 2, "batches": batches - done["batches"][1]}
        assert done["batches"][1] > 0
        left = conn.execute("SELECT mode FROM scm.sync_jobs ORDER BY mode").fetchall()
        assert left == [{"mode": "incremental"}, {"mode": "probe"}]
        # What a person did to a job is known longer than the job.
        known = conn.execute(
            'SELECT job_id, repo_id, job_type, mode, "window", actor, reason FROM scm.job_events'
        ).fetchall()
        assert known == [
            {
                "job_id": oldest["job_id"],
                "repo_id": repo,
                "job_type": "revisions",
                "mode": "incremental",
                "window": None,
                "actor": "ann",
                "reason": "why",
            }
        ]
        assert integrity_checks.failures(conn) == {}
        # Nothing is read again because the record of it is gone.
        [again] = incremental.run(database)
        assert (again.error, again.counts.inserted) == (None, 0)
        assert integrity_checks.failures(conn) == {}


def test_what_somebody_still_needs_stays_however_old_it_is(database: Database) -> None:
    with database.connection() as conn:
        repo = register(conn, head=9000)
        conn.execute("UPDATE scm.sync_watermarks SET covered_revs = '{[1,1001)}'")

        def ended(
            mode: Mode = Mode.BACKFILL, *, status: str = "dead", code: str | None = None, **job_request: Any
        ) -> UUID:
            job = jobs.enqueue(conn, request(repo, mode, **job_request))
            conn.execute(
                "UPDATE scm.sync_jobs SET status = %s, finished_at = now(), last_error_code = %s"
                " WHERE job_id = %s",
                (status, code, job),
            )
            return job

        missing = ended(code="timeout", window=(2001, 3001))
        read_since = ended(code="timeout", window=(1, 501))
        given_up = ended(code="superseded", window=(3001, 4001))
        earlier = ended(Mode.INCREMENTAL, code="denied")
        only_differences = ended(Mode.REPAIR, status="completed", window=(1, 11), only_differences=True)
        quarantined = ended(status="completed", window=(501, 601))
        latest = {ended(mode, status="completed", window=(1, 1001)) for mode in (Mode.BACKFILL, Mode.REPAIR)}
        latest.add(ended(Mode.INCREMENTAL, status="completed"))
        run = uuid4()
        conn.execute(
            "INSERT INTO scm.sync_runs (run_id, job_id, attempt, repo_id, job_type, mode, worker, status,"
            " finished_at, started_at, code_version)"
            " VALUES (%(run)s, %(job)s, 1, %(repo)s, 'revisions', 'backfill', 'w', 'completed', now(),"
            " now() - interval '1 year', '1');",
            {"run": run, "job": quarantined, "repo": repo},
        )
        conn.execute(
            "INSERT INTO scm.sync_runs (job_id, attempt, repo_id, job_type, mode, worker, status,"
            " finished_at, code_version)"
            " VALUES (%(job)s, 1, %(repo)s, 'revisions', 'backfill', 'w', 'completed', now(), '1');",
            {"job": next(iter(latest)), "repo": repo},
        )
        conn.execute(
            "INSERT INTO scm.sync_batches (run_id, batch_no, repo_id, job_type, fence, covers)"
            " VALUES (%(run)s, 1, %(repo)s, 'revisions', 1, FALSE);",
            {"run": run, "repo": repo},
        )
        conn.execute(
            "INSERT INTO scm.quarantine (repo_id, job_type, natural_key, reason, detail, payload, batch_id)"
            " SELECT %(repo)s, 'revisions', '7', 'unstorable', 'x', '', batch_id FROM scm.sync_batches",
            {"repo": repo},
        )
        conn.execute(
            "INSERT INTO scm.discrepancies (repo_id, job_type, natural_key, kind, reconciliation)"
            " VALUES (%(repo)s, 'revisions', '5', 'missing', 1)",
            {"repo": repo},
        )
        waiting = jobs.enqueue(conn, request(repo, Mode.BACKFILL, window=(4001, 5001)))
        conn.execute(AGED, {"days": 1000})
        retain(database, Settings(), execute=True)
        left = {row["job_id"] for row in conn.execute("SELECT job_id FROM scm.sync_jobs").fetchall()}
        assert left == {missing, only_differences, quarantined, waiting, *latest}
        assert not left & {read_since, given_up, earlier}
        conn.execute("UPDATE scm.quarantine SET resolved_at = now()")
        conn.execute("UPDATE scm.discrepancies SET resolved_at = now(), outcome = 'healed'")
        forever = Settings(retention_jobs_days=0)
        assert kinds(retain(database, forever, execute=True))["jobs"] == (0, 0)
        assert kinds(retain(database, Settings(), execute=True))["jobs"] == (2, 2)


def test_events_that_are_over_go_and_the_latest_of_a_breaker_stays(database: Database) -> None:
    with database.connection() as conn:
        for key, days in (("a", 800), ("a", 700), ("a", 1), ("b", 900)):
            conn.execute(
                "INSERT INTO scm.breaker_events (scope, key, old_state, new_state, reason, actor, created_at)"
                " VALUES ('tenant', %s, 'closed', 'open', 'x', 'x', now() - make_interval(days => %s))",
                (key, days),
            )
        for ended, until in ((-800, None), (None, -800), (None, None), (None, 1)):
            conn.execute(
                "INSERT INTO scm.pauses (scope, tenant, reason, actor, until, ended_at, ended_by)"
                " VALUES ('tenant', gen_random_uuid()::text, 'x', 'x', now() + make_interval(days => %s),"
                " now() + make_interval(days => %s), %s)",
                (until, ended, None if ended is None else "x"),
            )
        repo_id = register(conn, "fetched")
        for read in (800, 1, None):
            conn.execute(
                "INSERT INTO scm.deferred_fetches (repo_id, job_type, natural_key, detail, last_error,"
                " is_planned, created_at, resolved_at) VALUES (%s, 'revisions', '1', 'message', '', TRUE,"
                " now() - interval '900 days', now() - make_interval(days => %s))",
                (repo_id, read),
            )
        done = kinds(retain(database, Settings(), execute=True))
        assert (done["scm.breaker_events"], done["scm.pauses"]) == ((2, 2), (2, 2))
        # A fetch that waits stays, however old it is.
        assert done["scm.deferred_fetches"] == (1, 1)
        rows = conn.execute("SELECT key, count(*) AS n FROM scm.breaker_events GROUP BY key ORDER BY key")
        assert rows.fetchall() == [{"key": "a", "n": 1}, {"key": "b", "n": 1}]


@pytest.mark.parametrize(
    ("batches", "sizes"),
    [([1] * 1200, [500, 500, 200]), ([3000, 3000, 2000, 9000, 1], [1, 2, 1, 1]), ([], [])],
)
def test_a_transaction_is_short(batches: list[int], sizes: list[int]) -> None:
    found = [FinishedJob(uuid4(), 1, number) for number in batches]
    made = list(parts(found))
    assert [len(part) for part in made] == sizes
    assert [job for part in made for job in part] == [job.job_id for job in found]


def test_a_pass_that_is_stopped_says_so(database: Database) -> None:
    with database.connection() as conn:
        repo = register(conn)
        for _ in range(2):
            jobs.enqueue(conn, request(repo))
            conn.execute("UPDATE scm.sync_jobs SET status = 'completed', finished_at = now()")
        conn.execute(AGED, {"days": 100})
        stop = threading.Event()
        stop.set()
        report = retain(database, Settings(), execute=True, until=Until(stop))
        assert report.stopped
        assert report.kinds[0] == Kind("scm.sync_jobs", 90.0, found=1)
