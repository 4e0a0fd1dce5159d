"""Statements of older runbooks that lose queued work or leases are refused, and say what to run instead."""

from __future__ import annotations

import re
import subprocess
from typing import LiteralString

import psycopg
import pytest

from sync_pipeline.core.model import JobType, Mode, RevisionWindow
from sync_pipeline.database.pool import Database
from sync_pipeline.ledger import jobs, leases, retention
from sync_pipeline_tests.builders import register, request

# As they stand in the runbooks of the system that this one replaces.
_OLD_PENDING = """DELETE FROM scm.sync_jobs
 WHERE status = 'pending' AND created_at < NOW() - INTERVAL '7 days' AND priority > 500"""
_ONE_LOCK = "DELETE FROM scm.sync_locks WHERE repo_id = 1 AND job_type = 'revisions'"
_EXPIRED_LOCKS = "DELETE FROM scm.sync_locks WHERE locked_at < NOW() - INTERVAL '300 seconds'"


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        (_OLD_PENDING, "is pending, not finished, and is not deleted"),
        ("DELETE FROM scm.sync_jobs", "not finished"),
        ("TRUNCATE scm.sync_jobs CASCADE", "scm.sync_jobs is not truncated"),
        (_ONE_LOCK, "rows of scm.sync_locks are not deleted"),
        (_EXPIRED_LOCKS, "rows of scm.sync_locks are not deleted"),
        ("TRUNCATE scm.sync_locks CASCADE", "rows of scm.sync_locks are not deleted"),
    ],
)
def test_the_clean_up_of_an_older_runbook_is_refused_with_the_command_to_use(
    database: Database, statement: LiteralString, says: str
) -> None:
    with database.connection() as conn:
        repo_id = register(conn)
        jobs.enqueue(conn, request(repo_id, Mode.BACKFILL, window=RevisionWindow(1, 101)))
        conn.execute("UPDATE scm.sync_jobs SET created_at = now() - interval '8 days', priority = 501")
        leases.ensure(conn, repo_id, JobType.REVISIONS)
        conn.execute("UPDATE scm.sync_locks SET locked_at = now() - interval '1 hour'")
        count = "SELECT (SELECT count(*) FROM scm.sync_jobs) AS j, (SELECT count(*) FROM scm.sync_locks) AS l"
        before = conn.execute(count).fetchone()
        with pytest.raises(psycopg.errors.RaiseException, match=re.escape(says)) as caught:
            conn.execute(statement.replace("repo_id = 1", "TRUE"))
        assert conn.execute(count).fetchone() == before
        hint = caught.value.diag.message_hint or ""
    commands = re.findall(r"scm-sync ((?:reaper|admin [a-z]+)(?: [a-z]+)?)", hint)
    assert commands
    for command in commands:
        done = subprocess.run(["scm-sync", *command.split(), "--help"], capture_output=True, text=True)
        assert (done.returncode, f"scm-sync {command}" in done.stdout) == (0, True), done.stderr


def test_finished_jobs_are_still_deleted_by_age(database: Database) -> None:
    with database.connection() as conn:
        repo_id = register(conn)
        job = jobs.enqueue(conn, request(repo_id, Mode.BACKFILL, window=RevisionWindow(1, 101)))
        assert retention.delete_jobs(conn, [job]) == (0, 0, 0)
        conn.execute("UPDATE scm.sync_jobs SET status = 'completed', finished_at = now()")
        assert retention.delete_jobs(conn, [job]) == (1, 0, 0)
