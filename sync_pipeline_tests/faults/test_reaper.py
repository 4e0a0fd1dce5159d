"""Workers that are killed or stopped, and a reaper that nobody waits beside."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from sync_pipeline.database.pool import Database
from sync_pipeline.scheduling.reaper import reap
from sync_pipeline.settings import Settings
from sync_pipeline_tests.faults import processes
from sync_pipeline_tests.faults.processes import Start, Subjects, catching, check
from sync_pipeline_tests.warm import Starter

repository, served, subjects = processes.repository, processes.served, processes.subjects

_LENGTHS = {
    "claim_seconds": 1.5,
    "claim_renew_seconds": 0.3,
    "lease_seconds": 1.0,
    "lease_renew_seconds": 0.2,
}
_AT_ONCE = Settings(reaper_job_grace_seconds=0, reaper_lock_grace_seconds=0)
_STATES = """
SELECT j.status, j.not_before > now() AS waits, r.status AS run, r.error_code, l.locked_by
  FROM scm.sync_jobs AS j
  JOIN scm.sync_runs AS r USING (job_id)
  JOIN scm.sync_locks AS l ON l.repo_id = j.repo_id
"""


@pytest.fixture
def start(database_url: str, warm: Starter) -> Iterator[Start]:
    """See :func:`sync_pipeline_tests.faults.processes.catching`."""
    with catching(database_url, warm) as begin:
        yield begin


def test_a_killed_worker_is_noticed_at_once_and_its_job_is_tried_again(
    subjects: Subjects, database: Database, start: Start
) -> None:
    subject = subjects["revisions"]
    with database.connection() as conn:
        job = subject.job(conn)
        worker = start(job, "committing", subject.facts).caught()
        assert reap(database, _AT_ONCE).items == []
        worker.kill().let_the_server_go_on(until_gone=True)
        [item] = reap(database, Settings()).items
        assert f":{worker.process.pid} is gone" in item.line
        assert conn.execute(_STATES).fetchall() == [
            {
                "status": "failed",
                "waits": True,
                "run": "failed",
                "error_code": "worker_lost",
                "locked_by": None,
            }
        ]
        assert reap(database, _AT_ONCE).items == []
    check(database, job, subject, times=1)


def test_the_late_write_of_a_stopped_worker_is_refused_and_explained(
    subjects: Subjects, database: Database, start: Start
) -> None:
    """It is stopped in the middle of a batch: its transaction is ended, and the job at the next pass."""
    subject = subjects["revisions"]
    with database.connection() as conn:
        job = subject.job(conn, **_LENGTHS)
        worker = start(job, "writing rows", subject.facts).caught().stop()
        worker.let_the_server_go_on()
        worker.overdue()
        while reap(database, _AT_ONCE).count("job", "failed") == 0:
            os.kill(worker.process.pid, 0)
        result = worker.go_on()
        assert (result["status"], result["code"]) == ("failed", "claim_lost"), result
        assert "it was taken from it and is failed" in result["error"]
        [state] = conn.execute(_STATES).fetchall()
        assert (state["status"], state["error_code"]) == ("failed", "worker_lost")
    check(database, job, subject, times=1)
