"""What is read again by itself, from the ledger to the rows, on a real repository."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

from sync_pipeline.core.model import BEGINNING, JobType, TimeWindow, Trigger
from sync_pipeline.database.pool import Database
from sync_pipeline.ledger import watermarks
from sync_pipeline.scheduling import dispatch
from sync_pipeline.scheduling.resync import Queued, Resync, queue
from sync_pipeline.scheduling.worker import Worker
from sync_pipeline.settings import Settings
from sync_pipeline_tests.builders import register_project, register_source
from sync_pipeline_tests.svn_fixtures import SvnRepository
from sync_pipeline_tests.test_schemas import validate

SETTINGS = Settings(worker_poll_interval=1, sweep_recent_revisions=0, fingerprint_revisions=1)


def again(database: Database, what: Resync, settings: Settings = SETTINGS, *, execute: bool = True) -> Queued:
    return queue(database, settings, what, execute=execute, actor="test", trigger=Trigger.SENSOR)


def rows(database: Database, query: str) -> list[dict[str, Any]]:
    with database.connection() as conn:
        return conn.execute(query).fetchall()


def run(database: Database, settings: Settings = SETTINGS) -> None:
    dispatch.dispatch(database, settings)
    assert Worker(database, settings).run(threading.Event(), once=True)[1] == 0


def grown(svn_repository: Callable[..., SvnRepository]) -> SvnRepository:
    repository = svn_repository()
    for number in range(3):
        repository.commit_file(f"trunk-{number}")
    return repository


def test_the_last_blocks_are_read_again_once_a_night(
    database: Database, svn_repository: Callable[..., SvnRepository]
) -> None:
    repository = grown(svn_repository)
    with database.connection() as conn:
        register_source(conn, repository.path)
    assert again(database, Resync.FULL_SYNC).pieces == []  # nothing is complete yet
    run(database)
    repository.set_revprop(1, "svn:log", "edited behind our back")

    document = again(database, Resync.FULL_SYNC, execute=False).document()
    assert document["jobs"] == [{"repo": f"svn:{repository.url}", "job": "revisions", "window": "r1..r3"}]
    validate(document, "admin-rereading.json")
    # A schedule, a person and the schedule of another location at the same moment.
    with ThreadPoolExecutor(3) as threads:
        found = list(threads.map(lambda _: again(database, Resync.FULL_SYNC), range(3)))
    assert sum(len(one.pieces) for one in found) == 1
    waits = again(database, Resync.FULL_SYNC)
    assert waits.document()["left_out"] == {"still_queued": 1, "done": 0, "nothing_complete": 0}
    assert waits.summary() == (
        "nothing is to be read again; (repository, job type) left out: 1 with jobs of an earlier set still "
        "queued (scm-sync admin jobs list)"
    )
    [job] = rows(
        database, "SELECT priority, reread, actor, reason FROM scm.sync_jobs WHERE mode = 'backfill'"
    )
    assert job == {"priority": 800, "reread": True, "actor": "test", "reason": "full_sync"}
    run(database)
    assert rows(database, "SELECT message FROM scm.svn_revisions WHERE rev_num = 1") == [
        {"message": "edited behind our back"}
    ]
    assert again(database, Resync.FULL_SYNC).summary() == (
        "nothing is to be read again; (repository, job type) left out: 1 that had theirs already"
    )
    with database.connection() as conn:
        conn.execute("UPDATE scm.sync_jobs SET created_at = created_at - interval '1 day'")
    assert len(again(database, Resync.FULL_SYNC).pieces) == 1


def test_what_is_switched_off_or_not_of_the_pool_is_left_alone(
    database: Database, svn_repository: Callable[..., SvnRepository]
) -> None:
    with database.connection() as conn:
        register_source(conn, grown(svn_repository).path)
    run(database)
    for changes in (
        {"full_sync_days": 0},
        {"sync_enabled": False},
        {"sweep_enabled": False},
        {"worker_tenant_allowlist": ("other",)},
        {"worker_job_type_allowlist": (JobType.COMMITS,)},
        {"scheduler_mvp_mode_enabled": True},
    ):
        settings = SETTINGS.model_copy(update=changes)
        assert again(database, Resync.FULL_SYNC, settings).pieces == [], changes
    with database.connection() as conn:
        conn.execute("UPDATE scm.sync_watermarks SET access = 'gone'")
    assert again(database, Resync.FULL_SYNC).pieces == []


def test_the_recent_window_is_read_again_once_after_an_outage(database: Database) -> None:
    now = datetime.now(UTC)
    with database.connection() as conn:
        repo_id = register_project(conn, "https://git.test", 7, "acme/app", origin=now - timedelta(days=30))
        for job_type in (JobType.COMMITS, JobType.MERGE_REQUESTS, JobType.REVIEWS):
            watermarks.replace(
                conn,
                repo_id=repo_id,
                job_type=job_type,
                covered=(TimeWindow(BEGINNING, now - timedelta(minutes=2)),),
                actor="test",
                reason="test",
            )
        conn.execute("UPDATE scm.sync_watermarks SET access = 'ok', visited_at = now()")

    def attempt(status: str) -> None:
        with database.connection() as conn:
            conn.execute(
                """
                WITH job AS (
                    INSERT INTO scm.sync_jobs (repo_id, job_type, mode, status, trigger, actor, reason,
                                               generation, code_version, finished_at)
                    SELECT repo_id, job_type, 'incremental', 'completed', 'sensor', 't', 't', generation, '0',
                           now()
                      FROM scm.sync_watermarks
                     WHERE job_type <> 'commits'
                    RETURNING *)
                INSERT INTO scm.sync_runs (job_id, attempt, repo_id, job_type, mode, worker, status,
                                           started_at, finished_at, error_code, error, code_version)
                SELECT job_id, 1, repo_id, job_type, mode, 'w', %(status)s, clock_timestamp(),
                       clock_timestamp(), %(error)s, %(error)s, '0'
                  FROM job
                """,
                {"status": status, "error": "connection" if status == "failed" else None},
            )

    attempt("completed")
    assert again(database, Resync.REPAIR_RECENT).pieces == []
    attempt("failed")
    assert again(database, Resync.REPAIR_RECENT).pieces == []  # it lasts
    attempt("no_data")
    pieces = again(database, Resync.REPAIR_RECENT).pieces
    assert [(piece.spec, piece.job_type) for piece in pieces] == [
        ("gitlab:7", JobType.MERGE_REQUESTS),
        ("gitlab:7", JobType.REVIEWS),
    ]
    # Read together, they ask for the list once.
    [window] = {piece.window for piece in pieces}
    assert isinstance(window, TimeWindow)
    assert window.until - window.since == timedelta(hours=24)
    assert now - window.until < timedelta(minutes=4)
    assert again(database, Resync.REPAIR_RECENT).pieces == []
    with database.connection() as conn:
        conn.execute("UPDATE scm.sync_jobs SET status = 'completed', finished_at = now()")
    assert again(database, Resync.REPAIR_RECENT).pieces == []
    attempt("failed")
    attempt("completed")
    assert len(again(database, Resync.REPAIR_RECENT).pieces) == 2
