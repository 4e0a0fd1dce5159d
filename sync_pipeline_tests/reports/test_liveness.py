"""The probe of a container: fresh, silent, and a database that is away."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from sync_pipeline import cli
from sync_pipeline.database.pool import Database
from sync_pipeline.ledger import heartbeats
from sync_pipeline.reports.liveness import HEARTBEATS, Part, probe
from sync_pipeline.scheduling import dispatch, reaper
from sync_pipeline.settings import Settings
from sync_pipeline_tests.test_schemas import validate


def test_the_names_are_those_that_the_parts_write() -> None:
    names = [dispatch.LOOP, dispatch.WORKER, reaper.LOOP, "scheduler"]
    assert [HEARTBEATS[part] for part in Part] == names


def test_a_loop_is_alive_while_its_heartbeat_is_fresh(database: Database) -> None:
    settings = Settings(database_url=database.url, worker_pool="office")

    def alive(max_age: float | None = None) -> bool | None:
        found = probe(settings, Part.WORKER, max_age)
        assert found.ready
        return found.alive

    assert alive() is False  # it never ticked
    with database.connection() as conn:
        heartbeats.beat(conn, "worker", seconds=0, outcome="x", every=10)
        assert alive() is False  # that is another pool's
        heartbeats.beat(conn, "worker@office", seconds=0, outcome="x", every=60)
        assert alive() is True
        conn.execute("UPDATE scm.heartbeats SET beat_at = clock_timestamp() - interval '150 seconds'")
        assert (alive(), alive(100)) == (True, False)
        conn.execute("UPDATE scm.heartbeats SET beat_at = clock_timestamp() - interval '190 seconds'")
        assert (alive(), alive(200)) == (False, True)
        assert [one.name for one in heartbeats.silent(conn)] == ["worker", "worker@office"]
        conn.execute("UPDATE scm.heartbeats SET beat_at = clock_timestamp() + interval '30 days'")
        future = probe(settings, Part.WORKER)
        assert (future.alive, future.age) == (True, 0)
        assert future.summary == (
            "worker@office ticked 0 s ago; the clock of that row is ahead of the database's by 30 days"
        )
        conn.execute("UPDATE scm.heartbeats SET beat_at = clock_timestamp() - interval '190 seconds'")
        heartbeats.beat(conn, "worker@office", seconds=0, outcome="x")
        assert (alive(), alive(100)) == (False, True)  # a single round is no loop
        assert [one.name for one in heartbeats.silent(conn)] == ["worker"]


def test_the_command_answers_with_its_exit_code(
    database: Database, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SCM_DATABASE_URL", database.url)
    monkeypatch.setenv("SCM_ENVIRONMENT", "test")
    assert cli.run(["health"]) == 0
    assert cli.run(["health", "--for", "reaper"]) == 1
    assert "reaper_loop has not ticked yet" in capsys.readouterr().err
    with database.connection() as conn:
        heartbeats.beat(conn, "reaper_loop", seconds=0, outcome="x", every=60)
    assert cli.run(["health", "--for", "reaper", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["ready"], document["alive"], document["exit_code"]) == (True, True, 0)
    validate(document, "health.json")
    # It is asked every few seconds.
    program = (
        "import sys; from sync_pipeline import cli; cli.run(['health', '--for', 'reaper']);"
        "print([m for m in sys.modules if m.partition('.')[0] in ('dagster', 'pandas', 'requests')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ, check=True, capture_output=True, text=True
    )
    assert done.stdout.splitlines()[1:] == ["[]"]
    assert cli.run(["health", "--forget", "nobody"]) == 3
    assert "there is: reaper_loop" in capsys.readouterr().err
    assert cli.run(["health", "--forget", "reaper_loop"]) == 0
    assert cli.run(["health", "--for", "reaper"]) == 1
    monkeypatch.setenv("SCM_DATABASE_URL", "postgresql://x@127.0.0.1:1/scm")
    assert cli.run(["health"]) == cli.run(["health", "--for", "worker"]) == 2
