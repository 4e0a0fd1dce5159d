"""Nobody looks: servers fail, a run is killed, the whole daemon dies and is started again."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pytest

from sync_pipeline_sandbox import svn_samples
from sync_pipeline_sandbox.gitlab import faults
from sync_pipeline_tests.end_to_end.conftest import (
    Installation,
    Up,
    forging,
    installation,
    quick,
    running,
    until,
)
from sync_pipeline_tests.warm import Starter

pytestmark = pytest.mark.xdist_group("unattended")

# Everything that takes minutes takes seconds.
_SHORT = {
    # Long enough for a heartbeat that a busy machine delays.
    "SCM_CLAIM_SECONDS": "6",
    "SCM_CLAIM_RENEW_SECONDS": "1",
    "SCM_LEASE_SECONDS": "4",
    "SCM_LEASE_RENEW_SECONDS": "0.5",
    "SCM_REAPER_INTERVAL_SECONDS": "2",
    "SCM_REAPER_JOB_GRACE_SECONDS": "1",
    "SCM_REAPER_LOCK_GRACE_SECONDS": "1",
    "SCM_CB_OPEN_DURATION_SECONDS": "5",
    "SCM_SCHEDULER_PAUSE_DURATION_SECONDS": "2",
    "SCM_REAPER_POLICY": "pending",
}


def kill_all(up: Up) -> None:
    """The machine loses power, as far as we are concerned."""
    root = psutil.Process(up.process.pid)
    for process in [*root.children(recursive=True), root]:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    up.process.wait(120)


def kill_parts(up: Up) -> None:
    """The daemon dies, and so does the process in which the code is; whoever runs them has to see to it."""
    killed = set()
    for process in psutil.Process(up.process.pid).children(recursive=True):
        # Short-lived ones come and go meanwhile.
        with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            words = " ".join(process.cmdline())
            for part in ("dagster._daemon run", "dagster api grpc"):
                if part in words:
                    process.kill()
                    killed.add(part)
    assert len(killed) == 2


def worker_of(made: Installation, repo_id: int) -> int:
    """The process that works on a repository, once one does."""
    query = "SELECT claimed_by FROM scm.sync_jobs WHERE repo_id = %(id)s AND status = 'running'"
    found = until(lambda: made.rows(query, id=repo_id), "somebody works on it")
    return int(found[0]["claimed_by"].rsplit(":", 1)[1])


def is_read(made: Installation, repo_id: int) -> bool:
    """True if every list of a project was read to its end. Failed jobs do not wait their minutes for the next
    attempt."""
    made.rows("UPDATE scm.sync_jobs SET not_before = now() WHERE status = 'failed' RETURNING job_id")
    query = "SELECT job_type FROM scm.sync_watermarks WHERE repo_id = %(id)s AND verified_at IS NULL"
    return not made.rows(query, id=repo_id)


def test_all_repositories_end_covered_with_no_hand_on_it(
    server_url: str, template: str, tmp_path: Path, warm: Starter
) -> None:
    with forging(tmp_path) as forge, installation(server_url, template, tmp_path, forge, warm) as made:
        made.variables = {**quick(tmp_path), **_SHORT}
        now = datetime.now(UTC)
        slow = tmp_path / "slow"
        # The server is out of order when the first ones come, and asks for patience after that.
        project = forge.git_project("trouble", now - timedelta(days=90), now - timedelta(days=2))
        forge.gitlab.faults.add(r"/repository/", faults.server_error(), times=5)
        forge.gitlab.faults.add(r"/merge_requests", faults.throttled_json("1"), times=2)
        with running(made) as up:
            slow.touch()
            url = svn_samples.large(tmp_path / "killed", 1300, 1)
            made.add(f"svn:{url}", f"gitlab:{project.id}")
            svn, git = made.repo_id(tmp_path / "killed"), made.project(project)[0]
            os.kill(worker_of(made, svn), signal.SIGKILL)
            slow.unlink()
            until(lambda: made.stored(svn), "somebody else goes on")
            slow.touch()
            until(lambda: worker_of(made, svn), "history is read")
            kill_all(up)
        open_runs = "SELECT run_id FROM dagster.runs WHERE status IN ('STARTED', 'STARTING')"
        died = [row["run_id"] for row in made.rows(open_runs)]
        slow.unlink(missing_ok=True)
        with running(made) as up:
            kill_parts(up)
            until(lambda: made.stored(svn) == list(range(1, 1301)), "every revision is stored")
            until(lambda: is_read(made, git), "every list of the project was read to its end")
            left = "SELECT job_id, status, last_error FROM scm.sync_jobs WHERE status NOT IN ('completed')"
            left += " AND mode <> 'incremental'"
            until(lambda: not made.rows(left), "no job is left over")
            open_runs += " AND run_id = ANY (%(died)s)"
            until(lambda: not made.rows(open_runs, died=died), "what died in Dagster has ended there too")
        assert made.covered(svn) == "{[1,1301)}"
        commits = made.rows("SELECT count(*)::int AS n FROM scm.git_commits WHERE repo_id = %(id)s", id=git)
        assert commits == [{"n": 2}]
        # What was killed says so, and nothing is open for ever.
        lost = made.rows(
            "SELECT error_code FROM scm.sync_runs WHERE repo_id = %(id)s AND status = 'failed'", id=svn
        )
        assert {row["error_code"] for row in lost} == {"worker_lost"}
