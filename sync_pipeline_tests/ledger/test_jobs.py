"""The state machine of jobs and runs."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID, uuid4

import psycopg
import pytest

from sync_pipeline.core.errors import ClaimLost, LeaseHeld
from sync_pipeline.core.model import JobRequest, JobStatus, JobType, Mode, RunStatus, TimeWindow, Trigger
from sync_pipeline.database.pool import Connection, Database
from sync_pipeline.ledger import jobs, reaping, watermarks
from sync_pipeline.sync import lost
from sync_pipeline_tests.builders import register, register_project, request

REVISIONS = JobType.REVISIONS


def claim(conn: Connection, job_id: UUID, *, length: float = 300, worker: str = "w1") -> jobs.Claim | None:
    return jobs.claim(conn, job_id, worker=worker, process="p", length=length, dagster_run_id="run-1")


def expire(conn: Connection, job_id: UUID) -> None:
    conn.execute(
        "UPDATE scm.sync_jobs SET claim_expires_at = clock_timestamp() - interval '1 second'"
        " WHERE job_id = %s",
        (job_id,),
    )


def test_asking_twice_for_the_same_work_finds_the_first_job(database: Database) -> None:
    with database.connection() as conn:
        repo = register(conn)
        first = jobs.enqueue(conn, request(repo, Mode.BACKFILL, window=(1, 1001), priority=900))
        again = jobs.enqueue(conn, request(repo, Mode.BACKFILL, window=(1, 1001), reread=True))
        other = jobs.enqueue(conn, request(repo, Mode.BACKFILL, window=(1001, 2001)))
        assert first == again != other
        row = conn.execute(
            "SELECT priority, reread FROM scm.sync_jobs WHERE job_id = %s", (first,)
        ).fetchone()
        assert row == {"priority": 100, "reread": True}


def test_one_completion_job_of_an_asset_is_active_and_it_covers_nothing(database: Database) -> None:
    with database.connection() as conn:
        repo = register_project(conn, "https://git.test", 7, "a/b", origin=MONTH.until)
        asked = replace(
            request(repo, Mode.REPAIR),
            job_type=JobType.REVIEWS,
            only_deferred=True,
            priority=2000,
        )
        job = jobs.enqueue(conn, asked)
        assert jobs.enqueue(conn, replace(asked, actor="someone else")) == job
        other = jobs.enqueue(conn, replace(asked, job_type=JobType.MERGE_REQUESTS))
        assert other != job
        running = claim(conn, job)
        assert running is not None
        assert running.window is None
        expire(conn, job)
        # A lost attempt is not called done: the job has no window that others could have covered.
        assert [one["covered"] for one in reaping.running_jobs(conn)] == [False]


def test_a_completion_job_with_a_window_is_refused(database: Database) -> None:
    with database.connection() as conn:
        repo = register_project(conn, "https://git.test", 7, "a/b", origin=MONTH.until)
        period = TimeWindow(datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC))
        asked = replace(request(repo, Mode.REPAIR), job_type=JobType.REVIEWS)
        for refused in (
            replace(asked, only_deferred=True, window=period),
            replace(asked, only_deferred=False),
            replace(asked, only_deferred=True, mode=Mode.BACKFILL),
        ):
            with pytest.raises(psycopg.errors.CheckViolation):
                jobs.enqueue(conn, refused)


def test_a_reread_asked_for_while_a_job_runs_is_done_after_it(database: Database) -> None:
    with database.connection() as conn:
        repo = register(conn)
        plain = request(repo, Mode.BACKFILL, window=(1, 1001))
        job = jobs.enqueue(conn, plain)
        running = claim(conn, job)
        assert running is not None
        assert jobs.enqueue(conn, request(repo, Mode.BACKFILL, window=(1, 1001), reread=True)) == job
        # The attempt that runs does not read again, and the ledger does not say so.
        assert conn.execute("SELECT reread FROM scm.sync_jobs").fetchone() == {"reread": False}
        jobs.enqueue(conn, plain)
        assert jobs.finish(conn, running, job_status=JobStatus.COMPLETED, run_status=RunStatus.COMPLETED)
        assert jobs.report(conn, job).job_status is JobStatus.PENDING
        again = claim(conn, job)
        assert again is not None
        assert (running.reread, again.reread) == (False, True)
        assert jobs.finish(conn, again, job_status=JobStatus.COMPLETED, run_status=RunStatus.COMPLETED)
        assert jobs.report(conn, job).job_status is JobStatus.COMPLETED


def test_a_second_reread_is_done_after_the_first_and_runs_of_one_backfill_are_one(database: Database) -> None:
    with database.connection() as conn:
        repo = register(conn)
        ours = request(
            repo, Mode.BACKFILL, window=(1, 1001), reread=True, trigger=Trigger.UI, reason="backfill abc"
        )
        job = jobs.enqueue(conn, ours)
        for asked, status in (
            (ours, JobStatus.COMPLETED),
            (replace(ours, reason="edited"), JobStatus.PENDING),
        ):
            running = claim(conn, job)
            assert running is not None
            # What the person changed may lie before the place that the attempt has reached.
            assert jobs.enqueue(conn, asked) == job
            jobs.finish(conn, running, job_status=JobStatus.COMPLETED, run_status=RunStatus.COMPLETED)
            assert jobs.report(conn, job).job_status is status
            if status is JobStatus.COMPLETED:
                job = jobs.enqueue(conn, ours)


@pytest.mark.parametrize("end", ["taken over", "judged complete", "stopped for good"])
def test_a_reread_survives_every_end_of_the_attempt_that_it_met(database: Database, end: str) -> None:
    with database.connection() as conn:
        repo = register(conn)
        job = jobs.enqueue(conn, request(repo, Mode.BACKFILL, window=(1, 1001)), max_attempts=1)
        running = claim(conn, job)
        assert running is not None
        jobs.enqueue(conn, request(repo, Mode.BACKFILL, window=(1, 1001), reread=True))
        if end == "taken over":
            conn.execute("UPDATE scm.sync_jobs SET max_attempts = 2")
            expire(conn, job)
        elif end == "judged complete":
            expire(conn, job)
            assert jobs.end_lost(
                conn,
                job,
                running.token,
                status=JobStatus.COMPLETED,
                error_code=None,
                error=None,
                backoff=0,
                process_gone=False,
            )
        else:
            assert jobs.finish(conn, running, job_status=JobStatus.DEAD, run_status=RunStatus.INTERRUPTED)
        again = claim(conn, job)
        assert again is not None
        assert again.reread


def test_a_person_who_joins_a_job_is_on_record_and_its_trigger_stays(database: Database) -> None:
    with database.connection() as conn:
        repo = register(conn)
        job = jobs.enqueue(conn, request(repo, trigger=Trigger.SENSOR, actor="scheduler", reason="due"))
        jobs.enqueue(conn, request(repo, trigger=Trigger.SENSOR, actor="scheduler", reason="due"))
        jobs.enqueue(conn, request(repo, trigger=Trigger.UI, actor="ann", reason="audit", priority=1))
        row = conn.execute("SELECT trigger, actor, reason, priority FROM scm.sync_jobs").fetchone()
        assert row == {"trigger": "sensor", "actor": "scheduler", "reason": "due", "priority": 1}
        events = conn.execute("SELECT job_id, action, actor, reason FROM scm.job_events").fetchall()
        assert events == [{"job_id": job, "action": "join", "actor": "ann", "reason": "ui: audit"}]


def test_only_an_asset_that_is_not_registered_is_called_so(database: Database) -> None:
    with database.connection() as conn:
        repo = register(conn)
        jobs.enqueue(conn, request(repo, Mode.REPAIR, window=(1, 11), only_differences=True))
        with pytest.raises(LeaseHeld, match="does other work"):
            jobs.enqueue(conn, request(repo, Mode.REPAIR, window=(1, 11)))
        with pytest.raises(LookupError, match="has no revisions"):
            jobs.enqueue(conn, request(4711))


def test_a_job_that_waits_through_a_reset_works_under_the_new_generation(database: Database) -> None:
    with database.connection() as conn:
        repo = register(conn)
        job = jobs.enqueue(conn, request(repo))
        watermarks.replace(conn, repo_id=repo, job_type=REVISIONS, covered=(), actor="ann", reason="test")
        mine = claim(conn, job)
        assert mine is not None
        with conn.transaction():
            watermarks.lock_generation(conn, repo, REVISIONS, mine.generation)


def test_a_hundred_askers_at_once_make_one_job(database: Database) -> None:
    with database.connection() as conn:
        repo = register(conn)

    def ask(_: int) -> UUID:
        with database.connection() as conn:
            return jobs.enqueue(conn, request(repo))

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(ask, range(100)))) == 1


def test_a_failed_job_is_the_active_one_until_it_is_done(database: Database) -> None:
    with database.connection() as conn:
        repo = register(conn)
        job = jobs.enqueue(conn, request(repo))
        mine = claim(conn, job)
        assert mine is not None
        jobs.finish(
            conn,
            mine,
            job_status=JobStatus.FAILED,
            run_status=RunStatus.FAILED,
            error_code="timeout",
            error="too slow",
            backoff=60,
        )
        assert jobs.enqueue(conn, request(repo)) == job
        report = jobs.report(conn, job)
        assert (report.job_status, report.error_code, report.run_status) == ("failed", "timeout", "failed")


def test_of_many_claimants_exactly_one_wins(database: Database) -> None:
    with database.connection() as conn:
        job = jobs.enqueue(conn, request(register(conn)))

    def attempt(number: int) -> jobs.Claim | None:
        with database.connection() as conn:
            return claim(conn, job, worker=f"w{number}")

    with ThreadPoolExecutor(8) as pool:
        assert sum(c is not None for c in pool.map(attempt, range(24))) == 1


def test_a_crash_costs_an_attempt_and_its_run_is_closed(database: Database) -> None:
    with database.connection() as conn:
        job = jobs.enqueue(conn, request(register(conn)), max_attempts=2)
        lost = claim(conn, job)
        assert lost is not None
        assert claim(conn, job, worker="w2") is None
        expire(conn, job)
        second = claim(conn, job, worker="w2")
        assert second is not None
        assert second.attempt == 2
        runs = conn.execute("SELECT status, error_code FROM scm.sync_runs ORDER BY attempt").fetchall()
        assert runs == [
            {"status": "failed", "error_code": "worker_lost"},
            {"status": "running", "error_code": None},
        ]
        expire(conn, job)
        assert claim(conn, job, worker="w3") is None
        assert jobs.report(conn, job).job_status is JobStatus.DEAD
        assert conn.execute(
            "SELECT count(*) AS n FROM scm.sync_runs WHERE status = 'running'"
        ).fetchone() == {"n": 0}


def test_a_worker_that_lost_its_claim_can_change_nothing(database: Database) -> None:
    with database.connection() as conn:
        job = jobs.enqueue(conn, request(register(conn)))
        lost = claim(conn, job)
        assert lost is not None
        expire(conn, job)
        assert not jobs.renew(conn, lost, 300)
        with pytest.raises(ClaimLost, match="nothing of this batch was written"), conn.transaction():
            jobs.guard(conn, lost)
        winner = claim(conn, job, worker="w2")
        assert winner is not None
        assert not jobs.finish(conn, lost, job_status=JobStatus.COMPLETED, run_status=RunStatus.COMPLETED)
        assert jobs.state(conn, job).claimed_by == "w2"
        assert jobs.renew(conn, winner, 300)


def test_giving_a_job_back_costs_no_attempt(database: Database) -> None:
    with database.connection() as conn:
        job = jobs.enqueue(conn, request(register(conn)))
        mine = claim(conn, job)
        assert mine is not None
        jobs.finish(conn, mine, job_status=JobStatus.PENDING, run_status=RunStatus.INTERRUPTED)
        again = claim(conn, job)
        assert again is not None
        assert (again.attempt, again.max_attempts) == (2, 4)


def test_a_job_made_before_a_reset_joins_the_new_generation_only_while_it_waits(database: Database) -> None:
    with database.connection() as conn:
        repo = register(conn)
        job = jobs.enqueue(conn, request(repo))
        watermarks.replace(
            conn, repo_id=repo, job_type=JobType.REVISIONS, covered=(), actor="ann", reason="test"
        )
        jobs.enqueue(conn, request(repo))
        mine = claim(conn, job)
        assert mine is not None
        assert mine.generation == 2


def test_jobs_of_an_unknown_repository_are_refused(database: Database) -> None:
    with database.connection() as conn, pytest.raises(LookupError):
        jobs.enqueue(conn, request(4711))


def test_retiring_ends_only_what_nobody_works_on(database: Database) -> None:
    with database.connection() as conn:
        repo = register(conn)
        waiting = jobs.enqueue(conn, request(repo, Mode.BACKFILL, window=(1, 1001)))
        running = jobs.enqueue(conn, request(repo))
        assert claim(conn, running) is not None
        assert jobs.cancel_pending(conn, repo, "retired by ann") == 1
        assert jobs.report(conn, waiting).error_code == "cancelled"
        assert jobs.state(conn, running).status is JobStatus.RUNNING
        assert uuid4() not in (waiting, running)


def test_an_owner_in_the_middle_of_a_batch_keeps_the_job_until_his_claim_runs_out(database: Database) -> None:
    """Nobody waits for his locks; and his batch is ended once he has no right to it any more."""
    with database.connection() as conn, database.connection() as other:
        job = jobs.enqueue(conn, request(register(conn)))
        mine = claim(conn, job)
        assert mine is not None
        other.execute("SET lock_timeout = '2s'")
        conn.execute("BEGIN")
        jobs.guard(conn, mine)
        assert claim(other, job, worker="w2") is None
        conn.execute("SELECT 1")
        expire(other, job)
        assert claim(other, job, worker="w2") is None
        with pytest.raises(psycopg.errors.AdminShutdown):
            conn.execute("SELECT 1")
        assert claim(other, job, worker="w2") is not None


def test_what_a_dead_worker_left_is_closed_by_what_became_of_its_window(database: Database) -> None:
    with database.connection() as conn:
        repo = register(conn, head=2000)
        found = {}
        for window in ((1, 1001), (1001, 2001)):
            job = jobs.enqueue(conn, request(repo, Mode.BACKFILL, window=window))
            assert claim(conn, job, worker=f"w{window[0]}") is not None
            found[job] = window
        conn.execute("UPDATE scm.sync_watermarks SET covered_revs = '{[1,1001)}'")
        conn.execute("UPDATE scm.sync_jobs SET claim_expires_at = now() - interval '1 second'")
        lost.expire_abandoned_jobs(conn, repo, JobType.REVISIONS)
        ends = {found[job]: jobs.state(conn, job).status for job in found}
        assert ends == {(1, 1001): JobStatus.COMPLETED, (1001, 2001): JobStatus.PENDING}
        runs = conn.execute("SELECT DISTINCT status, error_code FROM scm.sync_runs").fetchall()
        assert runs == [{"status": "failed", "error_code": "worker_lost"}]


def test_a_repair_of_differences_is_not_done_because_its_window_is_covered(database: Database) -> None:
    with database.connection() as conn:
        repo = register(conn, head=2000)
        conn.execute("UPDATE scm.sync_watermarks SET covered_revs = '{[1,2001)}'")
        job = jobs.enqueue(conn, request(repo, Mode.REPAIR, window=(1, 1001), only_differences=True))
        assert claim(conn, job) is not None
        lost.expire_abandoned_jobs(conn, repo, JobType.REVISIONS)
        assert jobs.state(conn, job).status is JobStatus.RUNNING
        conn.execute("UPDATE scm.sync_jobs SET claim_expires_at = now() - interval '1 second'")
        lost.expire_abandoned_jobs(conn, repo, JobType.REVISIONS)
        assert jobs.state(conn, job).status is JobStatus.PENDING


MONTH = TimeWindow(datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 2, 1, tzinfo=UTC))
WEEK = TimeWindow(datetime(2026, 1, 25, tzinfo=UTC), MONTH.until)
REST = TimeWindow(MONTH.since, WEEK.since)


def windows(conn: Connection, *statuses: str) -> list[tuple[str, str]]:
    """The windows of the jobs of these statuses, oldest first."""
    rows = conn.execute(
        "SELECT status, lower(period)::date || ' ' || upper(period)::date AS period FROM scm.sync_jobs"
        " WHERE status = ANY (%s) ORDER BY lower(period), upper(period)",
        (list(statuses or ("pending", "failed", "running")),),
    ).fetchall()
    return [(row["status"], row["period"]) for row in rows]


@pytest.fixture
def month(database: Database) -> Iterator[tuple[Connection, JobRequest]]:
    with database.connection() as conn:
        repo = register_project(conn, "https://git.test", 7, "a/b", origin=MONTH.until)
        job_request = replace(request(repo), job_type=JobType.REVIEWS, mode=Mode.BACKFILL, window=MONTH)
        yield conn, replace(job_request, reread=True, priority=900)


class TestACut:
    """No part of the window is ever without a job."""

    def test_leaves_a_piece_and_queues_the_rest_as_old_and_urgent_as_the_whole(
        self, month: tuple[Connection, JobRequest]
    ) -> None:
        conn, job_request = month
        job = jobs.enqueue(conn, job_request, max_attempts=5, config_hash="abc")
        conn.execute("UPDATE scm.sync_jobs SET created_at = created_at - interval '1 day'")
        assert jobs.cut(conn, job, WEEK, REST) == job
        assert windows(conn) == [("pending", "2026-01-01 2026-01-25"), ("pending", "2026-01-25 2026-02-01")]
        rows = conn.execute(
            "SELECT DISTINCT created_at, reread, priority, max_attempts, trigger, actor, reason, config_hash"
            "  FROM scm.sync_jobs"
        ).fetchall()
        assert len(rows) == 1
        # A plan that was made before changes nothing.
        assert jobs.cut(conn, job, WEEK, REST) is None
        assert len(windows(conn)) == 2

    def test_leaves_a_job_alone_that_somebody_has(self, month: tuple[Connection, JobRequest]) -> None:
        conn, job_request = month
        job = jobs.enqueue(conn, job_request)
        owner = claim(conn, job)
        assert owner is not None
        assert jobs.cut(conn, job, WEEK, REST) is None
        assert windows(conn) == [("running", "2026-01-01 2026-02-01")]
        expire(conn, job)
        assert jobs.cut(conn, job, WEEK, REST) == job
        assert [period for _, period in windows(conn)] == ["2026-01-01 2026-01-25", "2026-01-25 2026-02-01"]
        with pytest.raises(ClaimLost), conn.transaction():
            jobs.guard(conn, owner)

    def test_joins_the_jobs_that_its_parts_have_already(self, month: tuple[Connection, JobRequest]) -> None:
        conn, job_request = month
        job = jobs.enqueue(conn, job_request)
        piece = jobs.enqueue(conn, replace(job_request, window=WEEK, reread=False))
        rest = jobs.enqueue(conn, replace(job_request, window=REST, priority=950))
        assert jobs.cut(conn, job, WEEK, REST) == piece
        assert [period for _, period in windows(conn)] == ["2026-01-01 2026-01-25", "2026-01-25 2026-02-01"]
        assert windows(conn, "dead") == [("dead", "2026-01-01 2026-02-01")]
        rows = conn.execute("SELECT job_id, reread, priority FROM scm.sync_jobs WHERE status = 'pending'")
        assert {row["job_id"]: (row["reread"], row["priority"]) for row in rows} == {
            piece: (True, 900),
            rest: (True, 900),
        }

    @pytest.mark.parametrize("part", [WEEK, REST])
    def test_waits_while_other_work_has_a_part(
        self, month: tuple[Connection, JobRequest], part: TimeWindow
    ) -> None:
        conn, job_request = month
        job = jobs.enqueue(conn, job_request)
        jobs.enqueue(conn, replace(job_request, window=part, from_raw=True))
        before = windows(conn)
        assert jobs.cut(conn, job, WEEK, REST) is None
        assert windows(conn) == before
