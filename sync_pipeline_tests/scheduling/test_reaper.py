"""Passes of the reaper over a real database."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any
from uuid import UUID, uuid4

import pytest

from sync_pipeline.core.errors import ConfigurationError, LeaseLost
from sync_pipeline.core.model import JobStatus, JobType, Mode, RunStatus
from sync_pipeline.database.pool import Connection, Database
from sync_pipeline.ledger import health, integrity_checks, jobs, leases
from sync_pipeline.ledger import reaping as store
from sync_pipeline.policy.reaping import RunState
from sync_pipeline.scheduling.reaper import ReapReport, reap
from sync_pipeline.settings import Settings
from sync_pipeline.sync.worker import process_identity
from sync_pipeline_tests.builders import register, request

AT_ONCE = Settings(reaper_job_grace_seconds=0, reaper_lock_grace_seconds=0)
DEAD_PROCESS = f"{process_identity().rsplit(' ', 2)[0]} 999999999 1.00"


class Dagster:
    """Answers the same of every run."""

    def __init__(self, state: RunState) -> None:
        self.state = state

    def states(self, run_ids: Collection[str]) -> Mapping[str, RunState]:
        return dict.fromkeys(run_ids, self.state)


def start(
    conn: Connection, repo: int, mode: Mode = Mode.INCREMENTAL, *, process: str = "p", **job_request: Any
) -> jobs.Claim:
    job_id = jobs.enqueue(conn, request(repo, mode, **job_request))
    claim = jobs.claim(conn, job_id, worker="w1", process=process, length=300, dagster_run_id="run-1")
    assert claim is not None
    return claim


def aged(conn: Connection, what: str, seconds: float) -> None:
    statements = {
        "claims": "UPDATE scm.sync_jobs SET claim_expires_at = clock_timestamp() - make_interval(secs => %s)"
        " WHERE status = 'running'",
        "waiting": "UPDATE scm.sync_jobs SET updated_at = clock_timestamp() - make_interval(secs => %s)"
        " WHERE status IN ('pending', 'failed')",
        "leases": "UPDATE scm.sync_locks SET expires_at = clock_timestamp() - make_interval(secs => %s)",
        "wishes": "UPDATE scm.sync_lock_waiters SET expires_at = clock_timestamp()"
        " - make_interval(secs => %s)",
    }
    conn.execute(statements[what], (seconds,))


def status_of(conn: Connection, job_id: UUID) -> tuple[str, str | None]:
    row = conn.execute(
        "SELECT status, last_error_code FROM scm.sync_jobs WHERE job_id = %s", (job_id,)
    ).fetchone()
    assert row is not None
    return row["status"], row["last_error_code"]


def whole(conn: Connection) -> list[list[dict[str, Any]]]:
    return [
        conn.execute("SELECT * FROM scm.sync_jobs ORDER BY job_id").fetchall(),
        conn.execute("SELECT * FROM scm.sync_runs ORDER BY run_id").fetchall(),
        conn.execute("SELECT * FROM scm.sync_locks ORDER BY lock_id").fetchall(),
        conn.execute("SELECT * FROM scm.sync_lock_waiters ORDER BY waiter").fetchall(),
    ]


def test_a_reaper_that_is_switched_off_ends_nothing_and_a_starter_still_takes_over(
    database: Database,
) -> None:
    with database.connection() as conn:
        lost = start(conn, register(conn))
        aged(conn, "claims", 600)
        before = whole(conn)
        report = reap(database, AT_ONCE.model_copy(update={"reaper_enabled": False}))
        assert report.document()["skipped"] == "the reaper is switched off: reaper_enabled is false"
        assert (report.items, whole(conn)) == ([], before)
        claim = jobs.claim(conn, lost.job_id, worker="w2", process="p", length=300, dagster_run_id=None)
        assert claim is not None
        assert claim.attempt == 2


def test_a_pass_ends_what_is_lost_of_each_kind_and_nothing_else(database: Database) -> None:
    with database.connection() as conn:
        repo = register(conn, head=5000)
        conn.execute("UPDATE scm.sync_watermarks SET covered_revs = '{[1,1001)}'")
        lost = start(conn, repo)
        leases.ensure(conn, repo, JobType.REVISIONS)
        lease = leases.acquire(
            conn,
            repo_id=repo,
            job_type=JobType.REVISIONS,
            waiter=uuid4(),
            who="w9",
            priority=1,
            length=60,
        )
        assert lease is not None
        assert (
            leases.acquire(
                conn,
                repo_id=repo,
                job_type=JobType.REVISIONS,
                waiter=uuid4(),
                who="w8",
                priority=1,
                length=60,
            )
            is None
        )
        open_run = start(conn, repo, Mode.BACKFILL, window=(3001, 4001))
        conn.execute(
            "UPDATE scm.sync_jobs SET status = 'completed', claim_token = NULL, claim_expires_at = NULL,"
            " finished_at = now() WHERE job_id = %s",
            (open_run.job_id,),
        )
        covered = jobs.enqueue(conn, request(repo, Mode.BACKFILL, window=(1, 1001)))
        compares = jobs.enqueue(conn, request(repo, Mode.BACKFILL, window=(1, 501), reread=True))
        needed = jobs.enqueue(conn, request(repo, Mode.BACKFILL, window=(4001, 5001)))
        aged(conn, "claims", 1)
        aged(conn, "leases", 1)
        aged(conn, "wishes", 1)
        aged(conn, "waiting", 40 * 86_400)
        lives = start(conn, register(conn, "glue"))
        before = whole(conn)

        tried = reap(database, AT_ONCE, dry_run=True)
        assert whole(conn) == before
        done = reap(database, AT_ONCE)
        assert done.document() | {"dry_run": True} == tried.document()
        counts = {name: n for name, n in done.document().items() if n and isinstance(n, int)}
        assert counts == {
            "processed": 6,
            "to_failed": 1,
            "runs_closed": 1,
            "leases_released": 1,
            "wishes_forgotten": 1,
            "expired": 2,
        }
        assert status_of(conn, lost.job_id) == ("failed", "worker_lost")
        assert status_of(conn, covered) == ("dead", "superseded")
        assert status_of(conn, compares) == ("dead", "expired")
        assert status_of(conn, needed) == ("pending", None)
        assert status_of(conn, lives.job_id) == ("running", None)
        with pytest.raises(LeaseLost), conn.transaction():
            leases.guard(conn, lease)
        assert not jobs.finish(conn, lost, job_status=JobStatus.COMPLETED, run_status=RunStatus.COMPLETED)
        assert reap(database, AT_ONCE).items == []
        assert not {"jobs", "leases"} & integrity_checks.failures(conn).keys()


@pytest.mark.parametrize(
    ("age", "process", "dagster", "ends"),
    [
        (-200, "elsewhere", RunState.ENDED, False),
        (-200, "gone", RunState.LIVES, True),
        (5, "elsewhere", RunState.ENDED, True),
        (5, "elsewhere", RunState.LIVES, False),
        (5, "here", RunState.LIVES, False),
        (90, "here", RunState.LIVES, True),
        (5, "elsewhere", RunState.UNKNOWN, False),
        (90, "elsewhere", RunState.UNKNOWN, True),
    ],
)
def test_an_owner_has_the_grace_unless_it_is_known_to_be_gone(
    database: Database, age: float, process: str, dagster: RunState, ends: bool
) -> None:
    with database.connection() as conn:
        identity = {"elsewhere": "p", "gone": DEAD_PROCESS, "here": process_identity()}[process]
        claim = start(conn, register(conn), process=identity)
        aged(conn, "claims", age)
        report = reap(database, Settings(), Dagster(dagster))
        assert report.count("job") == ends
        assert status_of(conn, claim.job_id)[0] == ("failed" if ends else "running")


def test_attempts_that_are_used_up_are_dead_and_the_policy_pending_is_due_at_once(
    database: Database,
) -> None:
    settings = AT_ONCE.model_copy(update={"reaper_policy": "pending"})
    with database.connection() as conn:
        repo = register(conn)
        outcomes = []
        for _ in range(3):
            claim = start(conn, repo, process=DEAD_PROCESS)
            [item] = reap(database, settings).items
            outcomes.append((item.outcome, claim.attempt))
        assert outcomes == [("pending", 1), ("pending", 2), ("dead", 3)]
        row = conn.execute("SELECT not_before, last_error FROM scm.sync_jobs").fetchone()
        assert row == {"not_before": None, "last_error": "the worker disappeared in attempt 3 of 3"}
        [facts] = health.facts(conn, repairs=1)
        assert facts["incremental_dead"]


def test_jobs_that_were_given_up_make_nobody_look(database: Database) -> None:
    with database.connection() as conn:
        repo = register(conn, head=5000)
        jobs.enqueue(conn, request(repo))
        jobs.enqueue(conn, request(repo, Mode.BACKFILL, window=(1, 501), reread=True))
        aged(conn, "waiting", 40 * 86_400)
        assert reap(database, AT_ONCE).count("waiting", "expired") == 2
        [facts] = health.facts(conn, repairs=1)
        assert (facts["incremental_dead"], facts["failed"]) == (False, ())


def test_one_bad_item_stops_no_other_and_is_told(database: Database) -> None:
    with database.connection() as conn:
        bad, good = (start(conn, register(conn, slug), process=DEAD_PROCESS) for slug in ("paint", "glue"))
        conn.execute(
            "CREATE FUNCTION scm.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            f" IF OLD.job_id = '{bad.job_id}' THEN RAISE 'broken row'; END IF; RETURN NEW; END $$;"
            "CREATE TRIGGER refuse BEFORE UPDATE ON scm.sync_jobs FOR EACH ROW"
            " EXECUTE FUNCTION scm.refuse()"
        )
        report = reap(database, AT_ONCE)
        assert [item.name for item in report.items] == [str(good.job_id)]
        assert report.errors == [f"job {bad.job_id}: RaiseException: broken row"]


def test_two_reapers_at_once_are_harmless(database: Database) -> None:
    with database.connection() as conn:
        start(conn, register(conn), process=DEAD_PROCESS)
        with database.connection() as other, other.transaction():
            assert store.try_lock(other)
            assert reap(database, AT_ONCE).document() == ReapReport(False).document() | {
                "skipped": "another reaper is at work"
            }
        assert reap(database, AT_ONCE).count("job") == 1


def test_a_database_that_is_away_is_one_line() -> None:
    with (
        Database("postgresql://me@127.0.0.1:1/scm", timeout=0.5) as gone,
        pytest.raises(ConfigurationError, match=r"127\.0\.0\.1:1/scm"),
    ):
        reap(gone, AT_ONCE)
