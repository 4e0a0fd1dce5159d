"""A machine that has far too much to do: everything is late, and nothing else is wrong.

The real intervals of Dagster and of the sensors are in force, unlike in the other tests of this folder. Each
part of it alone, in seconds, is in ``test_up.py``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import psutil
import pytest

from sync_pipeline.reports.slowness import machine
from sync_pipeline_sandbox import svn_samples
from sync_pipeline_tests.end_to_end.conftest import (
    Installation,
    Up,
    commit,
    forging,
    installation,
    running,
    until,
)
from sync_pipeline_tests.warm import Starter

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("busy")]

_SECONDS = 60 * float(os.environ.get("SCM_TEST_BUSY_MINUTES", "10"))
_SVN, _GITLAB = 16, 4


@contextmanager
def busy() -> Iterator[None]:
    """Processes that do nothing but use the processors."""
    number = max(8, 4 * machine()[1])
    spinning = [
        subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"], stdin=subprocess.DEVNULL)
        for _ in range(number)
    ]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def kill_definitions(up: Up) -> None:
    """Kill the process in which the code is."""
    killed = 0
    for process in psutil.Process(up.process.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            if "dagster api grpc" in " ".join(process.cmdline()):
                process.kill()
                killed += 1
    assert killed


def _has(made: Installation, repo_id: int, revisions: list[int]) -> bool:
    return made.stored(repo_id) == revisions


def test_ten_minutes_on_a_busy_machine_do_no_harm(
    server_url: str, template: str, tmp_path: Path, warm: Starter
) -> None:
    with forging(tmp_path) as forge, installation(server_url, template, tmp_path, forge, warm) as made:
        made.variables = {"SCM_SENSOR_INTERVAL_SECONDS": "10", "SCM_SAFETY_LAG_SECONDS": "1"}
        now = datetime.now(UTC)
        places, specs = {}, []
        for number in range(_SVN):
            specs.append(f"svn:{svn_samples.large(tmp_path / f'svn{number}', 20, 1)}")
        for number in range(_GITLAB):
            moments = (now - timedelta(days=40), now - timedelta(hours=1))
            specs.append(f"gitlab:{forge.git_project(f'git{number}', *moments).id}")
        made.run("repo", "add", *specs)
        for row in made.rows("SELECT repo_id, url FROM scm.repos WHERE kind = 'svn' ORDER BY repo_id"):
            places[row["repo_id"]] = tmp_path / row["url"].rpartition("/")[2]
        assert len(places) == _SVN
        expected = dict.fromkeys(places, 20)
        with busy(), running(made) as up:
            ends = time.monotonic() + _SECONDS
            kills = [ends - 2 * _SECONDS / 3, ends - _SECONDS / 3]
            slow: set[str] = set()
            rounds = 0
            while time.monotonic() < ends:
                repo_id = list(places)[rounds % _SVN]
                commit(places[repo_id], f"news{rounds}")
                expected[repo_id] += 1
                rounds += 1
                if kills and time.monotonic() > kills[0]:
                    kills.pop(0)
                    kill_definitions(up)
                slow |= set(json.loads(made.run("status", "--json").stdout)["slow"])
                time.sleep(5)
            # Live syncing goes on, late: everything arrives while the machine is as busy as before.
            for repo_id, revisions in expected.items():
                whole = list(range(1, revisions + 1))
                until(partial(_has, made, repo_id, whole), "every revision is stored", 1200)
            unread = "SELECT repo_id, job_type FROM scm.sync_watermarks WHERE verified_at IS NULL"
            until(lambda: not made.rows(unread), "every list was read to its end", 1200)
            assert any(line.startswith("the load is ") for line in slow), slow
            doctor = warm.run("sync_pipeline.cli", "doctor", "--json", env=made.environment, cwd=tmp_path)
            report = json.loads(doctor.stdout)
            assert "code_server" in {one["check"] for one in report["checks"] if one["state"] == "warning"}
            # No run failed, not of the kills and not of what was done about them.
            failed = "SELECT run_id, start_time FROM dagster.runs WHERE status IN ('FAILURE', 'CANCELED')"
            assert made.rows(failed) == []
            lost = "SELECT job_id, status, last_error FROM scm.sync_jobs WHERE status IN ('dead', 'failed')"
            assert made.rows(lost) == []
