"""What every test shares: one PostgreSQL server for the whole run, a migrated database for each test, and an
environment in which nothing of the user's shows through.

Belongs here: fixtures that more than one folder of tests uses. Real Subversion repositories are made by
:mod:`sync_pipeline_tests.svn_fixtures`.

The server is an embedded one in a temporary folder, or the one that ``SCM_TEST_DATABASE_URL`` names (an
account that may create databases). The first test that needs it starts it; the process that began the run
stops it, and ends every process that tests left behind. A run that was killed is cleaned up by the next one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import signal
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import hypothesis
import psutil
import psycopg
import pytest
from psycopg import sql

from sync_pipeline.database import migrations
from sync_pipeline.database.pool import Database
from sync_pipeline.runtime import environment
from sync_pipeline_tests.warm import Starter

pytest_plugins = ["sync_pipeline_tests.gitlab_site", "sync_pipeline_tests.svn_fixtures"]

ENVIRONMENT = "test"
_RUN = "SCM_TEST_RUN"
_SERVER = "SCM_TEST_DATABASE_URL"
_PREFIX = "scm-tests-"
_LOCKS: dict[Path, int] = {}
_KEPT = threading.local()


# Every landing tries the same examples; ``long`` is for a night, or ten minutes under a seed of one's own.
# A busy machine is no defect, so that nothing is judged by its time.
_UNTIMED: dict[str, Any] = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
hypothesis.settings.register_profile(
    "default", derandomize=True, max_examples=100, print_blob=True, **_UNTIMED
)
hypothesis.settings.register_profile("long", max_examples=100_000, print_blob=True, **_UNTIMED)
hypothesis.settings.load_profile("default")


# --- Long tests -------------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--long``: also the tests that are marked ``long``."""
    parser.addoption("--long", action="store_true", help="also the tests that take many minutes")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what takes many minutes, unless it is asked for."""
    if config.getoption("--long"):
        return
    left_out = [item for item in items if item.get_closest_marker("long")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("long")]


# --- The run ----------------------------------------------------------------------------------------------


def pytest_configure(config: pytest.Config) -> None:
    """Give the run a folder of its own. xdist workers inherit its name from the process that began the
    run."""
    if not hasattr(config, "workerinput"):
        _clean_up_after_killed_runs()
        # It gets its name when it is locked: what has the name and no lock is a leftover.
        fresh = Path(tempfile.mkdtemp(prefix=f"new-{_PREFIX}{os.geteuid()}-", dir=_roomy()))
        fresh.chmod(0o755)
        handle = _hold(fresh)
        run = fresh.rename(fresh.with_name(fresh.name.removeprefix("new-")))
        _LOCKS[run] = handle
        (run / "home").mkdir()
        _isolate(run)


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the run: its server, its processes, its folder."""
    if not hasattr(config, "workerinput"):
        for run in list(_LOCKS):
            _end(run)
            os.close(_LOCKS.pop(run))
    _close_administrators()


def _roomy() -> Path:
    """Memory where there is plenty: copies of databases are made much faster there, and evenly so."""
    memory = Path("/dev/shm")
    if os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 4 * 1024**3:
        return memory
    return Path(tempfile.gettempdir())


def _isolate(run: Path) -> None:
    keep = {_SERVER}
    for name in list(os.environ):
        if name.startswith(("SCM_", "DAGSTER_", "PG", "SVN_", "GITLAB_")) and name not in keep:
            del os.environ[name]
    # Tests start programs by name: those of the environment that runs the tests come first.
    ours = [str(Path(sys.executable).parent), str(environment.postgresql_programs())]
    os.environ["PATH"] = os.pathsep.join([*ours, os.environ.get("PATH", os.defpath)])
    # Hundreds of processes start: without files of compiled code each compiles our modules again, for a
    # second of CPU, and each process of the run every test module.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    os.environ[_RUN] = str(run)
    os.environ["HOME"] = str(run / "home")
    # Small servers of our own are asked as fast as they answer; what is slower says so.
    os.environ["SCM_GITLAB_POSTGRES_RATE_LIMIT_RATE"] = "100000"
    os.environ["SCM_GITLAB_POSTGRES_RATE_LIMIT_BURST"] = "100000"
    os.environ["SCM_SVN_RATE"] = "100000"


def _hold(run: Path) -> int:
    """Take the lock that says that the run is alive; it ends with this process, however that ends."""
    handle = os.open(run / "alive", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise
    return handle


def _clean_up_after_killed_runs() -> None:
    folders = {Path("/dev/shm"), Path(tempfile.gettempdir())}
    for run in (run for folder in folders for run in folder.glob(f"{_PREFIX}{os.geteuid()}-*")):
        with contextlib.suppress(OSError):
            handle = _hold(run)
            _end(run)
            os.close(handle)


def _end(run: Path) -> None:
    with contextlib.suppress(Exception):
        environment.remove_server(run / "state")
        if _SERVER in os.environ:
            _drop_databases(os.environ[_SERVER], _database_prefix(run))
    leftovers = [process for process in psutil.process_iter() if _belongs_to(process, run)]
    for process in leftovers:
        with contextlib.suppress(psutil.Error):
            process.send_signal(signal.SIGKILL)
    psutil.wait_procs(leftovers, timeout=5)
    shutil.rmtree(run, ignore_errors=True)


def _drop_databases(url: str, prefix: str) -> None:
    with psycopg.connect(url, autocommit=True) as conn:
        query = "SELECT datname FROM pg_database WHERE starts_with(datname, %(prefix)s)"
        names = [name for (name,) in conn.execute(query, {"prefix": prefix})]
    for name in names:
        _administer(url, "DROP DATABASE {} WITH (FORCE)", name)


def _belongs_to(process: psutil.Process, run: Path) -> bool:
    with contextlib.suppress(psutil.Error, OSError):
        return process.pid != os.getpid() and process.environ().get(_RUN) == str(run)
    return False


@pytest.fixture(scope="session")
def warm(run_folder: Path) -> Iterator[Starter]:
    """Starts processes of ours without the seconds that importing Dagster takes."""
    starter = Starter(run_folder / "compiled")
    yield starter
    starter.close()


# --- Databases --------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def run_folder() -> Path:
    """The folder of the whole run, shared by all its processes and removed at its end."""
    return Path(os.environ[_RUN])


@pytest.fixture(scope="session")
def server_url(run_folder: Path) -> str:
    """URL of the run's server, with an account that may create databases."""
    if _SERVER in os.environ:
        return os.environ[_SERVER]
    return environment.ensure_server(run_folder / "state", durable=False)


@pytest.fixture(scope="session")
def template(server_url: str, run_folder: Path) -> str:
    """Name of a migrated database that nobody connects to; databases of tests are copies of it."""
    name = _database_prefix(run_folder) + "template"
    with _locked(run_folder / "template.lock") as marker:
        if not marker.read_text():
            _administer(server_url, "CREATE DATABASE {}", name)
            migrations.migrate(database_of(server_url, name), ENVIRONMENT)
            marker.write_text(name)
    return name


class Clones:
    """Copies of the template for the tests of one process. A thread makes the next ones and drops the used
    ones while a test runs."""

    def __init__(self, server_url: str, template: str, prefix: str) -> None:
        self._server_url = server_url
        self._template = template
        self._prefix = prefix
        self._thread = ThreadPoolExecutor(1)
        self._ready: deque[Future[str]] = deque()
        self._dropped: list[Future[None]] = []

    def take(self) -> str:
        """The name of a copy that nobody used."""
        while len(self._ready) < 2:
            self._ready.append(self._thread.submit(self._make))
        try:
            return self._ready.popleft().result()
        except psycopg.Error:  # the test before stopped the server meanwhile
            return self._thread.submit(self._make).result()

    def give_back(self, name: str) -> None:
        """Drop a copy. An error of it fails a later test."""
        while self._dropped and self._dropped[0].done():
            self._dropped.pop(0).result()
        self._dropped.append(self._thread.submit(self._drop, name))

    def close(self) -> None:
        """Wait for what is under way. Copies that nobody used end with the server, or with the run."""
        self._thread.submit(_close_administrators).result()
        self._thread.shutdown()

    def _make(self) -> str:
        name = self._prefix + secrets.token_hex(6)
        _administer(
            self._server_url, "CREATE DATABASE {} TEMPLATE {} STRATEGY file_copy", name, self._template
        )
        return name

    def _drop(self, name: str) -> None:
        _administer(self._server_url, "DROP DATABASE {} WITH (FORCE)", name)


@pytest.fixture(scope="session")
def clones(server_url: str, template: str, run_folder: Path) -> Iterator[Clones]:
    """See :class:`Clones`."""
    made = Clones(server_url, template, _database_prefix(run_folder))
    yield made
    made.close()


@pytest.fixture
def database_url(clones: Clones, server_url: str) -> Iterator[str]:
    """URL of a database of the test's own: migrated, empty, marked for the environment ``test``."""
    name = clones.take()
    yield database_of(server_url, name)
    clones.give_back(name)


@pytest.fixture
def empty_database_url(server_url: str, run_folder: Path) -> Iterator[str]:
    """URL of a database of the test's own that has no tables."""
    name = _database_prefix(run_folder) + secrets.token_hex(6)
    _administer(server_url, "CREATE DATABASE {}", name)
    yield database_of(server_url, name)
    _administer(server_url, "DROP DATABASE {} WITH (FORCE)", name)


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """A pool on :func:`database_url`."""
    with Database(database_url) as opened:
        yield opened


def _database_prefix(run: Path) -> str:
    return f"scm_{run.name.rsplit('-', 1)[1]}_"


def database_of(url: str, name: str) -> str:
    """The same server's URL for another database."""
    return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))


def _administer(url: str, statement: str, *names: str) -> None:
    """Run a statement over a connection that the thread keeps: two new ones for each test cost more than the
    copy."""
    query = sql.SQL(statement).format(*map(sql.Identifier, names))
    kept: dict[str, psycopg.Connection[Any]] = _KEPT.__dict__
    if url in kept:
        try:
            kept[url].execute(query)
        except psycopg.OperationalError:
            kept[url].close()  # a test ended it, or ended the server
        else:
            return
    kept[url] = psycopg.connect(url, autocommit=True)
    kept[url].execute(query)


def _close_administrators() -> None:
    while _KEPT.__dict__:
        _KEPT.__dict__.popitem()[1].close()


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[Path]:
    """One process of the run at a time; what it leaves in the file is for the others."""
    with path.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield path
