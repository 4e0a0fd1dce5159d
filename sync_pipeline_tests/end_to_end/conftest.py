"""A whole installation in a folder of its own: database, state, catalog, real repositories, real processes.

Belongs here: what the tests of the ways of use share. Starting page and daemon takes seconds, so they are
started once for all tests of a process that need them.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.rows import dict_row

from sync_pipeline import cli
from sync_pipeline.cli.shared import visitor_for
from sync_pipeline.database.pool import Database
from sync_pipeline.orchestration.catalog_changes import after_catalog_change
from sync_pipeline.orchestration.instance import quiet_dagster
from sync_pipeline.registry import registration
from sync_pipeline.settings import load_settings
from sync_pipeline_sandbox import svn_samples
from sync_pipeline_sandbox.gitlab import DEVELOPER, GitLab, GitRepository, Server, serve
from sync_pipeline_sandbox.gitlab.generator import generate
from sync_pipeline_sandbox.gitlab.records import Group, Project, Row
from sync_pipeline_tests.conftest import ENVIRONMENT, database_of
from sync_pipeline_tests.warm import Process, Starter

_SLOW_SVN = """#!/bin/sh
# Stands before svn, which gets no variables of ours. From the third log on it waits as long as the file in
# which it counts them exists.
slow={slow}
case "$*" in *"log "*|"log"*)
    if [ -e "$slow" ]; then
        echo log >>"$slow"
        while [ -e "$slow" ] && [ "$(wc -l <"$slow")" -gt 2 ]; do sleep 0.1; done
    fi ;;
esac
exec {svn} "$@"
"""


def until(true: Callable[[], Any], what: str, seconds: float = 180.0) -> Any:
    """Poll a real process until it is so; fails with ``what`` at the deadline."""
    deadline = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.2)
    return found


def slow_svn(folder: Path) -> dict[str, str]:
    """Variables that put a wrapper before ``svn``; it answers two logs and then waits, while there is a file
    ``slow`` in ``folder``."""
    programs = folder / "bin"
    programs.mkdir(exist_ok=True)
    real = shutil.which("svn")
    assert real is not None
    (programs / "svn").write_text(
        _SLOW_SVN.format(slow=shlex.quote(str(folder / "slow")), svn=shlex.quote(real))
    )
    (programs / "svn").chmod(0o755)
    return {"PATH": f"{programs}:{os.environ['PATH']}"}


@dataclass
class Forge:
    """A small GitLab in real time, in this process, for all installations."""

    gitlab: GitLab
    server: Server
    group: Group
    user: Row
    folder: Path

    @property
    def variables(self) -> dict[str, str]:
        """What configures it."""
        [token] = self.gitlab.tokens.values()
        return {"SCM_GITLAB_URL": self.server.url, "SCM_GITLAB_TOKEN": token.secret}

    def git_project(self, path: str, *moments: datetime) -> Project:
        """A project with a commit at each of these times."""
        git = GitRepository.create(self.folder / f"{path}.git")
        for number, moment in enumerate(moments):
            date = f"{int(moment.timestamp())} +0000"
            git.commit("main", f"Commit {number}\n", files={"a": f"{number}\n"}, date=date)
        return self.gitlab.project(path, group=self.group, repository=git)

    def large_project(self, path: str, merge_requests: int, beginning: datetime) -> Project:
        """A project with so many merge requests, updated from ``beginning`` on."""
        return generate(
            self.gitlab,
            self.group,
            merge_requests=merge_requests,
            notes=1,
            path=path,
            beginning=beginning,
            tie=1,
        )


@contextlib.contextmanager
def forging(folder: Path) -> Iterator[Forge]:
    """A forge with one group and one user, whose git repositories are in ``folder``."""
    gitlab = GitLab()
    group = gitlab.group("team1")
    user = gitlab.user("user1")
    gitlab.add_member(group, user, DEVELOPER)
    gitlab.token(user)
    with serve(gitlab, prefix="/gitlab") as server:
        yield Forge(gitlab, server, group, user, folder)


@pytest.fixture(scope="session")
def forge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forge]:
    """See :class:`Forge`."""
    with forging(tmp_path_factory.mktemp("git")) as made:
        yield made


def midnight(moment: datetime) -> datetime:
    """The start of its day in UTC."""
    return moment.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)


@dataclass
class Installation:
    """One installation; ``run`` starts a command of ours in it."""

    folder: Path
    url: str
    forge: Forge
    warm: Starter
    variables: dict[str, str] = field(default_factory=dict)
    _exported: dict[str, str] = field(default_factory=dict)
    _connection: psycopg.Connection[dict[str, Any]] | None = None

    @property
    def environment(self) -> dict[str, str]:
        """What every process of the installation gets."""
        return {
            **os.environ,
            "SCM_DATABASE_URL": self.url,
            "SCM_ENVIRONMENT": ENVIRONMENT,
            "SCM_STATE_DIR": str(self.folder / "state"),
            **self.forge.variables,
            **self.variables,
        }

    def run(self, *command: str, expect: int = 0) -> subprocess.CompletedProcess[str]:
        """``scm-sync`` with these arguments, in this process; :meth:`start` is for what needs one of its
        own."""
        out, err = io.StringIO(), io.StringIO()
        with (
            pytest.MonkeyPatch.context() as patch,
            contextlib.chdir(self.folder),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            patch.setattr(os, "environ", os.environ.copy())
            for name, value in self.environment.items():
                patch.setenv(name, value)
            code = cli.run(command)
        done = subprocess.CompletedProcess(command, code, out.getvalue(), err.getvalue())
        assert code == expect, f"{command}: {code}\n{done.stdout}\n{done.stderr}"
        return done

    def start(self, *command: str) -> Process:
        """``scm-sync`` as a process that goes on meanwhile."""
        return self.warm.start("sync_pipeline.cli", *command, env=self.environment, cwd=self.folder)

    def dagster_environment(self) -> dict[str, str]:
        """The environment that ``eval "$(scm-sync env)"`` leaves behind."""
        if not self._exported:
            shell = subprocess.run(
                ["sh", "-c", 'eval "$1"; env -0', "sh", self.run("env").stdout],
                env=self.environment,
                capture_output=True,
                text=True,
                check=True,
            )
            entries = [entry for entry in shell.stdout.split("\0") if "=" in entry]
            self._exported = dict(entry.split("=", 1) for entry in entries)
        return self._exported | self.variables

    def job_execute(self, tags: Mapping[str, str] | None = None, job: str = "sync_revisions") -> Process:
        """``dagster job execute`` as a CI job would call it."""
        return self.warm.start(
            "dagster",
            *("job", "execute", "-m", "sync_pipeline.definitions", "-j", job),
            *(("--tags", json.dumps(dict(tags))) if tags else ()),
            env=self.dagster_environment(),
            cwd=self.folder,
            stderr=subprocess.STDOUT,
        )

    def add(self, *specs: str) -> None:
        """Register repositories as ``scm-sync repo add`` does, in this process. A page that runs shows them
        when this returns, after one reload for all of them."""
        forge = self.forge.variables
        settings = load_settings(
            database_url=self.url,
            environment=ENVIRONMENT,
            state_dir=self.folder / "state",
            gitlab_url=forge["SCM_GITLAB_URL"],
            gitlab_token=forge["SCM_GITLAB_TOKEN"],
        )
        entries = tuple(registration.listed({"spec": spec}, spec) for spec in specs)
        with quiet_dagster(), Database(self.url) as database:
            visitor = visitor_for(settings, database)
            added = registration.add_listed(database, settings, entries, actor="test", reader_factory=visitor)
            for _, result in added:
                assert isinstance(result, registration.Registered), result
            after_catalog_change(settings, database)

    def repository(self, name: str, revisions: int) -> tuple[Path, int]:
        """Make a real repository and register it; returns its place and its ``repo_id``."""
        repo_path = self.folder / name
        self.add(f"svn:{svn_samples.large(repo_path, revisions, 1)}")
        return repo_path, self.repo_id(repo_path)

    def repo_id(self, repo_path: Path) -> int:
        """The ``repo_id`` of a registered repository on this machine."""
        [row] = self.rows(
            "SELECT repo_id FROM scm.repos WHERE url = %(url)s", url=repo_path.resolve().as_uri()
        )
        return int(row["repo_id"])

    def register(self, project: Project) -> tuple[int, list[str]]:
        """Register a GitLab project; returns its ``repo_id`` and the beginning of its asset keys."""
        self.add(f"gitlab:{project.id}")
        return self.project(project)

    def project(self, project: Project) -> tuple[int, list[str]]:
        """The ``repo_id`` of a registered GitLab project and the beginning of its asset keys."""
        [row] = self.rows(
            "SELECT repo_id, instance_slug, slug FROM scm.repos WHERE project_id = %(id)s", id=project.id
        )
        return int(row["repo_id"]), [row["instance_slug"], row["slug"]]

    def rows(self, query: str, **params: Any) -> list[dict[str, Any]]:
        """The rows of a query on the database. The connection stays open, because tests poll."""
        if self._connection is None:
            self._connection = psycopg.connect(self.url, autocommit=True, row_factory=dict_row)
        return self._connection.execute(query, params).fetchall()

    def close(self) -> None:
        """Close the connection of :meth:`rows`."""
        if self._connection is not None:
            self._connection.close()

    def stored(self, repo_id: int) -> list[int]:
        """The revisions that are stored, in order."""
        query = "SELECT rev_num FROM scm.svn_revisions WHERE repo_id = %(repo_id)s ORDER BY rev_num"
        return [row["rev_num"] for row in self.rows(query, repo_id=repo_id)]

    def covered(self, repo_id: int) -> str:
        """The coverage, as PostgreSQL writes it."""
        query = "SELECT covered_revs::text AS covered FROM scm.sync_watermarks WHERE repo_id = %(repo_id)s"
        return str(self.rows(query, repo_id=repo_id)[0]["covered"])


def commit(repo_path: Path, name: str) -> None:
    """One more revision in a real repository."""
    command = ["svn", "mkdir", "-q", "-m", f"Add {name}", f"{repo_path.as_uri()}/{name}"]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)


@contextlib.contextmanager
def installation(
    server_url: str, template: str, folder: Path, forge: Forge, warm: Starter
) -> Iterator[Installation]:
    name = f"scm_test_{secrets.token_hex(6)}"
    with psycopg.connect(server_url, autocommit=True) as conn:
        conn.execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY file_copy").format(
                sql.Identifier(name), sql.Identifier(template)
            )
        )
    made = Installation(folder, database_of(server_url, name), forge, warm)
    try:
        yield made
    finally:
        made.close()
        with psycopg.connect(server_url, autocommit=True) as conn:
            conn.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture(scope="session")
def shared(
    server_url: str, template: str, tmp_path_factory: pytest.TempPathFactory, forge: Forge, warm: Starter
) -> Iterator[Installation]:
    """An installation without daemon; each test registers repositories of its own in it."""
    with installation(server_url, template, tmp_path_factory.mktemp("shared"), forge, warm) as made:
        yield made


@dataclass
class Up:
    """A running ``scm-sync up``."""

    installation: Installation
    process: subprocess.Popen[str]
    url: str
    token: str

    @property
    def slow(self) -> Path:
        """While this file exists, every ``svn log`` takes its time."""
        return self.installation.folder / "slow"

    def graphql(self, query: str, **variables: Any) -> Any:
        """The data of a GraphQL answer."""
        request = urllib.request.Request(
            f"{self.url}/graphql",
            data=json.dumps({"query": query, "variables": variables}).encode(),
            headers={"content-type": "application/json", "authorization": f"Bearer {self.token}"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            found = json.load(answer)
        assert "errors" not in found, found
        return found["data"]

    def switch(self, sensor: str, on: bool) -> None:
        """Turn a sensor on or off, as a person does in the page; a tick that began before is waited for."""
        selector = {
            "repositoryLocationName": "sync_pipeline",
            "repositoryName": "__repository__",
            "sensorName": sensor,
        }
        if on:
            query = "mutation S($s: SensorSelector!) { startSensor(sensorSelector: $s) { __typename } }"
            assert self.graphql(query, s=selector)["startSensor"]["__typename"] == "Sensor"
            return
        # A tick that is under way stores the state that it began with at its end, and the sensor is on again.
        until(lambda: self._stays_off(selector), f"{sensor} stays off")

    def _stays_off(self, selector: dict[str, str]) -> bool:
        """Turn a sensor off, wait until no tick of it is left, and tell whether it is off then."""
        query = """query S($s: SensorSelector!) {
          sensorOrError(sensorSelector: $s) { ... on Sensor { sensorState { id selectorId status } } }
        }"""
        state = self.graphql(query, s=selector)["sensorOrError"]["sensorState"]
        mutation = "mutation S($id: String!) { stopSensor(id: $id) { __typename } }"
        stopped = self.graphql(mutation, id=state["id"])["stopSensor"]["__typename"]
        assert stopped == "StopSensorMutationResult"
        # A tick that waits for a thread of the daemon begins before those that are asked for from now on.
        [now] = self.installation.rows("SELECT now() AT TIME ZONE 'UTC' AS at")
        later = "SELECT 1 FROM dagster.job_ticks WHERE selector_id <> %(id)s AND create_timestamp > %(at)s"
        values = {"id": state["selectorId"], "at": now["at"]}
        until(lambda: len(self.installation.rows(later, **values)) > 2, "other sensors tick")
        running = "SELECT 1 FROM dagster.job_ticks WHERE selector_id = %(id)s AND status = 'STARTED'"
        until(lambda: not self.installation.rows(running, id=state["selectorId"]), "the tick ends")
        status: str = self.graphql(query, s=selector)["sensorOrError"]["sensorState"]["status"]
        return status == "STOPPED"

    def asset_keys(self) -> list[list[str]]:
        """Path of every asset that the page shows."""
        nodes = self.graphql("{ assetNodes { assetKey { path } } }")["assetNodes"]
        return [node["assetKey"]["path"] for node in nodes]


@contextlib.contextmanager
def running(made: Installation) -> Iterator[Up]:
    """``scm-sync up`` in an installation, with a daemon that looks often."""
    with (made.folder / "up.log").open("a") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "sync_pipeline.cli", "up"],
            env=made.environment,
            cwd=made.folder,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("http"), (made.folder / "up.log").read_text()[-4000:]
        yield Up(made, process, line.strip(), (made.folder / "state" / "ui.token").read_text().strip())
    finally:
        process.send_signal(signal.SIGTERM)
        # Each of its children has half a minute to end, and needs it on a busy machine.
        process.wait(300)
        assert process.stdout is not None
        process.stdout.close()


def quick(folder: Path) -> dict[str, str]:
    """Variables of an installation whose sensors tick often, and that reads a moment later what happens."""
    return {
        "SCM_SENSOR_INTERVAL_SECONDS": "2",
        # Up.switch waits for ticks of another sensor, and this is the only one before there is a repository.
        "SCM_REAPER_INTERVAL_SECONDS": "2",
        "SCM_SAFETY_LAG_SECONDS": "1",
        "SCM_CHUNK_REVISIONS": "100",
        "PYTHONPATH": os.pathsep.join(
            [str(Path(__file__).parent / "fast_daemon"), *filter(None, [os.environ.get("PYTHONPATH")])]
        ),
        **slow_svn(folder),
    }


@pytest.fixture(scope="module")
def up(
    server_url: str, template: str, tmp_path_factory: pytest.TempPathFactory, forge: Forge, warm: Starter
) -> Iterator[Up]:
    """Page, daemon and code server as ``scm-sync up`` starts them, with sensors that tick often."""
    folder = tmp_path_factory.mktemp("up")
    with installation(server_url, template, folder, forge, warm) as made:
        made.variables = quick(folder)
        with running(made) as found:
            # What the scheduler starts by itself would mix with what the tests start.
            found.switch("scheduler", on=False)
            yield found
