"""What a plan looks at: that no backlog hides the work of somebody else, and which planned fetches wait."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from sync_pipeline.admin import pauses
from sync_pipeline.core.model import DeferredFetch, JobStatus, JobType, Mode, RunStatus
from sync_pipeline.database.pool import Connection, Database, database_time
from sync_pipeline.facts import quarantine
from sync_pipeline.ledger import jobs, planning
from sync_pipeline.policy.history import COMPLETION_PRIORITY
from sync_pipeline.scheduling import dispatch
from sync_pipeline.settings import Settings
from sync_pipeline_tests.builders import register, register_project, request

_BACKLOG = """
INSERT INTO scm.sync_jobs (repo_id, job_type, mode, revs, priority, status, not_before, generation, trigger,
                           actor, reason, created_at)
SELECT %(repo_id)s, 'revisions', 'backfill', int8range(n * 10, n * 10 + 10), %(priority)s, %(status)s,
       now() + %(wait)s::interval, 1, 'ui', 'ada', 'history', now() + n * interval '1 second'
  FROM generate_series(1, %(number)s) AS n
"""


def backlog(conn: Connection, repo_id: int, number: int, **other: Any) -> None:
    """So many waiting windows of history, the first one most urgent."""
    values = {"repo_id": repo_id, "number": number, "priority": 100, "status": "pending", "wait": None}
    conn.execute(_BACKLOG, values | other)


@pytest.mark.parametrize("why", ["paused", "other_pool", "more_urgent"])
def test_no_backlog_hides_the_history_of_others(database: Database, why: str) -> None:
    settings = Settings()
    with database.connection() as conn:
        hog, other = register(conn, "hog"), register(conn, "other")
        conn.execute("UPDATE scm.repos SET tenant = slug")
        backlog(conn, hog, 4500)
        backlog(conn, other, 1, priority=900)
    if why == "paused":
        pauses.pause(database, pauses.PauseTarget(tenant="hog"), seconds=None, actor="ada", reason="audit")
    elif why == "other_pool":
        settings = settings.model_copy(update={"worker_tenant_allowlist": ("other",)})
    found = dispatch.dispatch(database, settings, dry_run=True)
    started = {(d.repo_id, d.mode) for d in found.started}
    assert (other, Mode.BACKFILL) in started
    assert ((hog, Mode.BACKFILL) in started) is (why == "more_urgent")


def test_a_plan_looks_at_the_most_urgent_of_what_need_not_wait(database: Database) -> None:
    with database.connection() as conn:
        hog, other = register(conn, "hog"), register(conn, "other")
        backlog(conn, hog, 2100, status="failed", wait="1 hour")
        conn.execute("UPDATE scm.sync_jobs SET revs = int8range(lower(revs) + 50000, upper(revs) + 50000)")
        backlog(conn, hog, 2100, priority=200)
        conn.execute(_LIVE, {"repo_id": hog})
        rows = planning.snapshot(conn, sample_seconds=60, newest=10, burst=10).jobs
        assert {row["repo_id"] for row in rows} == {hog}
        history = [row for row in rows if row["mode"] == "backfill"]
        assert (len(history), {row["priority"] for row in history}) == (2100, {200})
        assert [row["mode"] for row in rows if row not in history] == ["incremental"]
        # Shared out evenly among those that have any.
        backlog(conn, other, 2100, priority=300)
        rows = planning.snapshot(conn, sample_seconds=60, newest=10, burst=10).jobs
        ends = [row["window"].end for row in rows if row["repo_id"] == hog and row["mode"] == "backfill"]
        assert (len(ends), max(ends)) == (2000, 20_010)
        assert sum(row["repo_id"] == other for row in rows) == 2000


_LIVE = """
INSERT INTO scm.sync_jobs (repo_id, job_type, mode, status, not_before, generation, trigger, actor, reason)
VALUES (%(repo_id)s, 'revisions', 'incremental', 'failed', now() + interval '1 hour', 1, 'ui', 'ada', 'hint')
"""


GITLAB = Settings(gitlab_url="https://git.test", gitlab_token="token")


@pytest.fixture
def project(database: Database) -> int:
    """A project whose live syncing is not due."""
    with database.connection() as conn:
        repo_id = register_project(conn, "https://git.test", 7, "a/b", origin=database_time(conn))
        conn.execute("UPDATE scm.sync_watermarks SET visited_at = now(), verified_at = now()")
    return repo_id


def planned(conn: Connection, repo_id: int, *job_types: JobType, wait: timedelta = timedelta()) -> None:
    for job_type in job_types:
        fetch = DeferredFetch("1", "versions", "later", is_planned=True, priority=10, wait=wait)
        quarantine.defer(conn, repo_id=repo_id, job_type=job_type, fetches=[fetch])


def completions(database: Database) -> list[dict[str, Any]]:
    with database.connection() as conn:
        return conn.execute(
            "SELECT job_id, job_type, mode, revs, period, priority, status, reason FROM scm.sync_jobs"
            " WHERE only_deferred ORDER BY job_type, created_at"
        ).fetchall()


def test_planned_fetches_get_one_completion_job_of_each_asset_which_workers_take(
    database: Database, project: int
) -> None:
    with database.connection() as conn:
        planned(conn, project, JobType.MERGE_REQUESTS, JobType.REVIEWS)
    assert len(dispatch.dispatch(database, GITLAB).started) == 2
    # A second plan finds the jobs dispatched.
    assert dispatch.dispatch(database, GITLAB).started == []
    found = completions(database)
    assert [(row["job_type"], row["mode"], row["priority"], row["reason"]) for row in found] == [
        (job_type, "repair", COMPLETION_PRIORITY, "planned_fetches")
        for job_type in ("merge_requests", "reviews")
    ]
    assert {(row["revs"], row["period"]) for row in found} == {(None, None)}
    with database.connection() as conn:
        taken = planning.dispatched_requests(
            conn, instances=(), tenants=(), job_types=(), gitlabs=["git.test"], limit=9
        )
    assert {(one.job_type, one.only_deferred, one.window) for one in taken} == {
        (JobType.MERGE_REQUESTS, True, None),
        (JobType.REVIEWS, True, None),
    }


def test_a_fetch_whose_time_has_not_come_and_a_failed_one_plan_no_completion(
    database: Database, project: int
) -> None:
    with database.connection() as conn:
        planned(conn, project, JobType.REVIEWS, wait=timedelta(hours=1))
        failed = DeferredFetch("2", "approvals", "500")
        quarantine.defer(conn, repo_id=project, job_type=JobType.MERGE_REQUESTS, fetches=[failed])
    assert dispatch.dispatch(database, GITLAB).started == []


@pytest.mark.parametrize(("batches", "again"), [(1, True), (0, False)])
def test_a_completion_that_stored_nothing_is_not_planned_again_at_once(
    database: Database, project: int, batches: int, again: bool
) -> None:
    with database.connection() as conn:
        planned(conn, project, JobType.REVIEWS)
        asked = replace(
            request(project, Mode.REPAIR), job_type=JobType.REVIEWS, only_deferred=True, priority=2000
        )
        job = jobs.enqueue(conn, asked)
        claim = jobs.claim(conn, job, worker="w", process="p", length=300, dagster_run_id=None)
        assert claim is not None
        conn.execute("UPDATE scm.sync_runs SET batches = %s", (batches,))
        jobs.finish(conn, claim, job_status=JobStatus.COMPLETED, run_status=RunStatus.COMPLETED)
    assert bool(dispatch.dispatch(database, GITLAB).started) is again


def test_a_completion_makes_room_for_jobs_that_could_run_and_have_waited(
    database: Database, project: int
) -> None:
    with database.connection() as conn:
        asked = replace(request(project, Mode.REPAIR), job_type=JobType.REVIEWS, only_deferred=True)
        jobs.enqueue(conn, asked)
        assert not planning.others_wait(conn, "git.test", 0)
        jobs.enqueue(conn, replace(request(project), job_type=JobType.COMMITS))
        assert planning.others_wait(conn, "git.test", 0)
        # A new one is taken by a worker in a moment; those of another server are read beside it.
        assert not planning.others_wait(conn, "git.test", 60)
        assert not planning.others_wait(conn, "other.test", 0)
        conn.execute("UPDATE scm.sync_jobs SET not_before = now() + interval '1 hour'")
        assert not planning.others_wait(conn, "git.test", 0)
