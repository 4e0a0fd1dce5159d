"""The Dagster web page behind its guard, alone or with daemon and code server.

Belongs here: what ``scm-sync ui`` and ``scm-sync up`` start, the token, and the note ``ui.json`` that tells
other commands where it runs. Does not belong here: which requests are let through
(:mod:`sync_pipeline.orchestration.guard`).

``up`` runs three children: the code server (so that one reload reaches page and daemon alike), the daemon
with the sensors, and the page. The code server executes whatever it is sent, so it listens on a socket in a
folder of its owner only. A child is started again when its process has ended, never because it is slow.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import secrets
import shlex
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

from sync_pipeline.core.errors import ConfigurationError
from sync_pipeline.core.safe_text import one_line
from sync_pipeline.database.connecting import describe
from sync_pipeline.orchestration import code_server
from sync_pipeline.orchestration.dagster_internals import DAEMON_MODULE
from sync_pipeline.orchestration.guard import TOKEN_PARAMETER, Guard
from sync_pipeline.orchestration.run_spec import POOLS_VARIABLE
from sync_pipeline.reports import slowness
from sync_pipeline.runtime.environment import config_file, environment_variables, resolve_urls
from sync_pipeline.settings import Settings, load_settings
from sync_pipeline.settings.given import RENAMED_LOGGED

TOKEN_FILE = "ui.token"
"""In the state folder: the token of the page."""

_STOP_SECONDS = 30.0
# A process that ends this often in this many seconds needs a person.
_MAX_ENDS = 5
_ENDS_SECONDS = 600.0
_STILL_STARTING_SECONDS = 60.0
# A busy machine makes calls slow, and Dagster fails the run or tick whose call it gave up. The end of a
# server has a limit of its own, which would follow.
_PATIENCE = {"DAGSTER_GRPC_TIMEOUT_SECONDS": "300", "DAGSTER_GRPC_SHUTDOWN_GRACE_PERIOD": "30"}
_DATABASE_ANSWERS_MS = 15_000
_POOL_RECYCLE = 3600
_POOL_MAX_OVERFLOW = 20
_POLL_MS = 2000
# Becomes a program that ends when its parent ends. A function between fork and exec is no alternative. A fork
# meets the threads of gRPC in any state: it hung for ever, or aborted.
_WITH_PARENT = """import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


@dataclass(frozen=True, slots=True)
class Running:
    """The content of ``ui.json`` about a running page. ``code_server`` is the socket of ``up``, None for
    ``ui``.
    """

    url: str
    pid: int
    code_server: str | None


def token(settings: Settings) -> str:
    """The secret of this state folder, made at the first use; only its owner can read the file."""
    path = settings.state_dir / TOKEN_FILE
    settings.state_dir.mkdir(parents=True, exist_ok=True)
    fresh = secrets.token_urlsafe(32)
    with (
        contextlib.suppress(FileExistsError),
        tempfile.NamedTemporaryFile("w", dir=settings.state_dir, prefix=".ui.token.") as file,
    ):
        file.write(fresh)
        file.flush()
        # Complete from the moment it has its name.
        os.link(file.name, path)
    found = path.stat()
    if found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise ConfigurationError(f"{path} can be read by others; delete it, a new one is made")
    return path.read_text().strip()


def running(settings: Settings) -> Running | None:
    """The page that runs on this state folder, or None."""
    try:
        note = json.loads((settings.state_dir / "ui.json").read_text())
        found = Running(note["url"], int(note["pid"]), note.get("code_server"))
        # The number may belong to another process by now.
        if psutil.Process(found.pid).create_time() == note["started"]:
            return found
    except (OSError, ValueError, KeyError, TypeError, psutil.Error):
        pass
    return None


def serve(
    settings: Settings,
    host: str = "127.0.0.1",
    port: int = 0,
    read_only: bool = False,
    *,
    workspace: Path | None = None,
    code_server: str | None = None,
    announce: bool = True,
) -> None:
    """Serve the page until a signal ends it. ``port`` 0 takes a free one. Raises ConfigurationError if the
    address cannot be used."""
    import uvicorn
    from dagster import DagsterInstance
    from dagster_webserver.version import __version__

    from sync_pipeline.orchestration.dagster_internals import (
        DagsterWebserver,
        WorkspaceFileTarget,
        WorkspaceProcessContext,
    )

    secret = token(settings)
    listener = _listen(host, port)
    port = int(listener.getsockname()[1])
    os.environ.update(environment_variables(settings))
    from sync_pipeline.orchestration.instance import quiet_dagster

    with _private_sockets(), quiet_dagster(), DagsterInstance.get() as instance:
        instance.optimize_for_webserver(_DATABASE_ANSWERS_MS, _POOL_RECYCLE, _POOL_MAX_OVERFLOW)
        target = WorkspaceFileTarget(paths=[str(workspace or config_file("workspace.yaml"))])
        with WorkspaceProcessContext(
            instance, version=__version__, read_only=read_only, workspace_load_target=target
        ) as process:
            page = DagsterWebserver(process, live_data_poll_rate=_POLL_MS).create_asgi_app()
            guarded = Guard(page, token=secret, host=host, port=port)
            url = f"http://{_name(host)}:{port}"
            with _note(settings, url, code_server):
                if announce:
                    _announce(settings, url, secret)
                # The access log would hold the token of the first visit.
                config = uvicorn.Config(guarded, log_level="warning", access_log=False)
                # When it has stopped, uvicorn raises the signal again; we still have to tidy up then.
                signal.signal(signal.SIGTERM, signal.default_int_handler)
                with contextlib.suppress(KeyboardInterrupt):
                    uvicorn.Server(config).run(sockets=[listener])


def up(settings: Settings, host: str = "127.0.0.1", port: int = 0, read_only: bool = False) -> None:
    """Run page, daemon and code server until SIGINT or SIGTERM, then stop them all. The output of runs goes
    to ``runs.log`` in the state folder. A process that ends by itself is started again. Raises
    ConfigurationError if it runs already, or if a process cannot be kept running.
    """
    secret = token(settings)
    environment = {**_PATIENCE, **os.environ, **environment_variables(settings)}
    environment |= {POOLS_VARIABLE: "1", RENAMED_LOGGED: "1"}
    database_url = resolve_urls(settings).database_url
    stop = threading.Event()
    with _only_one(settings), _signals(stop), _private_folder(settings) as folder:
        socket_path = folder / "code.sock"
        workspace = folder / "workspace.yaml"
        workspace.write_text(
            f"load_from:\n  - grpc_server:\n      socket: {json.dumps(str(socket_path))}\n"
            f"      host: localhost\n      location_name: {code_server.LOCATION_NAME}\n"
        )
        log = _fresh_log(settings)
        _print_line(
            f"starting UI, daemon with sensors, and code server; database {describe(database_url)}; "
            f"what runs print goes to {log}; the address of the UI follows, Ctrl-C stops all"
        )
        arguments: dict[str, Any] = {"host": host, "port": port, "read_only": read_only}
        arguments |= {"workspace": str(workspace), "code_server": str(socket_path)}
        commands = {
            "code server": lambda: code_server.command(socket_path, log),
            "daemon": lambda: _daemon(workspace),
            "UI": lambda: _page(arguments),
        }
        # Each command is made when it is needed: the port of the page is known after its first start.
        begin = {name: partial(_start, command, environment) for name, command in commands.items()}
        children = _Children(begin | {"daemon": partial(_start_daemon, settings, begin["daemon"])})
        watch = slowness.CodeServerWatch(lambda: code_server.is_answering(socket_path))
        writing = None
        try:
            children.start("code server")
            _wait("code server", lambda: code_server.is_answering(socket_path), children, stop)
            children.start("daemon")
            children.start("UI")
            _wait("UI", lambda: _is_page(settings, children.pid("UI")), children, stop)
            there = running(settings)
            if there is not None and not stop.is_set():
                _announce(settings, there.url, secret)
                # Started again, the page is where it was.
                arguments["port"] = urlsplit(there.url).port or port
            watch.keep_asking(stop)
            writing = slowness.keep_writing(database_url, settings, watch, stop)
            _keep_running(children, watch, stop)
        finally:
            if stop.is_set():
                _print_line("stopping the UI, the daemon and the code server; runs stop between two batches")
            stop.set()
            children.stop()
            if writing is not None:
                writing.join(_STOP_SECONDS)


@contextlib.contextmanager
def _only_one(settings: Settings) -> Iterator[None]:
    """Refuse a second process on this state folder and name the first: two daemons would both start runs."""
    with (settings.state_dir / "up.lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            there = running(settings)
            pid = lock.read().strip() or "unknown"
            # Programs that start us may log this line, so it says where the token is, not what it is.
            where = f"and is just starting (process {pid})"
            if there is not None:
                address = _address_command(settings, there.url)
                where = f"at {there.url} (process {pid}); its address with the token: {address}"
            raise ConfigurationError(f"it runs already {where}") from None
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield


# The children -------------------------------------------------------------------------------------------


def _daemon(workspace: Path) -> list[str]:
    return [
        *(sys.executable, "-m", DAEMON_MODULE, "run", "-w", str(workspace)),
        *("--log-level", "warning"),
    ]


def _start_daemon(
    settings: Settings, start: Callable[[], subprocess.Popen[bytes]]
) -> subprocess.Popen[bytes]:
    """Start the daemon, after ending the runs that a former daemon left in the middle of their start. They
    would never continue, and Dagster would wait for ``start_timeout_seconds``. A process that such a run has
    after all sees that the run has ended, and ends too.
    """
    from dagster import DagsterInstance, DagsterRunStatus, RunsFilter

    from sync_pipeline.orchestration.instance import dagster_environment, quiet_dagster
    from sync_pipeline.orchestration.processes import end_lost_run

    try:
        with dagster_environment(settings), quiet_dagster(), DagsterInstance.get() as instance:
            for run in instance.get_runs(RunsFilter(statuses=[DagsterRunStatus.STARTING])):
                if end_lost_run(instance, run.run_id, "the daemon ended while it started this run"):
                    _print_line(f"run {run.run_id} has ended: the former daemon ended while it started it")
    except Exception as error:
        # The daemon says what is wrong with its database, and tries again.
        _print_line(f"runs that were starting could not be looked at: {type(error).__name__}")
    return start()


def _page(arguments: Mapping[str, Any]) -> list[str]:
    return [sys.executable, "-m", "sync_pipeline.orchestration.ui", json.dumps(arguments)]


def _start(command: Callable[[], Sequence[str]], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """A child in a process group of its own that does not outlive us, however we end. It writes to our
    stderr."""
    arguments = list(command())
    if sys.platform == "linux":
        arguments = [sys.executable, "-I", "-S", "-c", _WITH_PARENT, str(os.getpid()), *arguments]
    return subprocess.Popen(
        arguments, env=dict(environment), stdin=subprocess.DEVNULL, stdout=2, start_new_session=True
    )


class _Children:
    """The children of ``up`` by name, and what those left behind that ended by themselves."""

    def __init__(self, begin: Mapping[str, Callable[[], subprocess.Popen[bytes]]]) -> None:
        self._begin = begin
        self._there: dict[str, subprocess.Popen[bytes]] = {}
        self._orphans: list[psutil.Process] = []
        self._ends: deque[float] = deque(maxlen=_MAX_ENDS)

    def start(self, name: str) -> None:
        """Start a child; one that ended by itself is replaced."""
        if name in self._there:
            self._orphans += _members(self._there[name].pid)
        self._there[name] = self._begin[name]()

    def pid(self, name: str) -> int:
        """The number of a child's process."""
        return self._there[name].pid

    def ended(self) -> Iterator[tuple[str, int]]:
        """Name and exit code of each child that has ended by itself."""
        for name, child in self._there.items():
            if child.poll() is not None:
                yield name, child.returncode

    def start_again(self) -> None:
        """Start again what ended. Raises ConfigurationError where something ends again and again."""
        for name, code in list(self.ended()):
            if len(self._ends) == _MAX_ENDS and time.monotonic() - self._ends[0] < _ENDS_SECONDS:
                raise _ended(name, code)
            self._ends.append(time.monotonic())
            _print_line(f"the {name} ended with exit code {code}; starting it again")
            # Its group is left alone: the runs in it do their work to the end.
            self.start(name)

    def stop(self) -> None:
        """Page first, code server last: it has the runs, which stop between two batches."""
        children = list(self._there.values())
        for orphan in self._orphans:
            with contextlib.suppress(psutil.Error):
                orphan.terminate()
        for child in children[::-1]:
            _signal(child, signal.SIGTERM)
            if child is not children[0]:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(_STOP_SECONDS)
        deadline = time.monotonic() + _STOP_SECONDS
        for child in children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(max(0.0, deadline - time.monotonic()))
            # End the rest of the process group, which has no parent now.
            _signal(child, signal.SIGKILL)
            child.wait()
        for orphan in psutil.wait_procs(self._orphans, max(0.0, deadline - time.monotonic()))[1]:
            with contextlib.suppress(psutil.Error):
                orphan.kill()


def _members(group: int) -> list[psutil.Process]:
    """The processes that are left of a process group whose leader ended."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(OSError, psutil.Error):
            if process.pid != group and os.getpgid(process.pid) == group:
                found.append(process)
    return found


def _wait(name: str, ready: Callable[[], bool], children: _Children, stop: threading.Event) -> None:
    """Until ``ready`` or asked to stop, however long it takes. Raises ConfigurationError if a child ends."""
    printed_at = time.monotonic()
    while not stop.is_set() and not ready():
        for ended, code in children.ended():
            if not stop.is_set():
                raise _ended(ended, code)
        if time.monotonic() - printed_at > _STILL_STARTING_SECONDS:
            printed_at = time.monotonic()
            load, cores = slowness.machine()
            _print_line(f"the {name} is still starting; the load is {load:.1f} on {cores} cores")
        stop.wait(0.3)


def _ended(name: str, code: int) -> ConfigurationError:
    return ConfigurationError(
        f"the {name} ended with exit code {code}; the lines above, or runs.log in the state folder, say why",
        code="child_ended",
    )


def _keep_running(children: _Children, watch: slowness.CodeServerWatch, stop: threading.Event) -> None:
    """Until asked to stop: start again what ended by itself, and say when the code server gets slow. Raises
    ConfigurationError where something ends again and again."""
    slow = False
    while not stop.wait(0.5):
        children.start_again()
        waiting = watch.waiting
        if (waiting >= slowness.SLOW_SECONDS) != slow:
            slow = not slow
            if slow:
                lines = "; ".join(slowness.lines(waiting, *slowness.machine()))
                _print_line(f"{lines}; scm-sync up waits for it; you need not do anything")
            else:
                _print_line("the code server answers again")


def _signal(child: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, number)


def _is_page(settings: Settings, pid: int) -> bool:
    there = running(settings)
    return there is not None and there.pid == pid


# Small things -------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _signals(stop: threading.Event) -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, lambda *_: stop.set())
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _private_sockets() -> Iterator[None]:
    """Where the page starts a code server of its own, it listens in a folder of this account only."""
    with tempfile.TemporaryDirectory(prefix="scm-ui-", dir="/tmp") as folder:
        before, tempfile.tempdir = tempfile.tempdir, folder
        try:
            yield
        finally:
            tempfile.tempdir = before


@contextlib.contextmanager
def _private_folder(settings: Settings) -> Iterator[Path]:
    """A folder that only its owner can enter, for sockets. Their paths have at most 107 bytes, so it is below
    /tmp.

    Its name is random, so that no other account can have made it before. It is kept in the state folder,
    because Dagster knows the code location by the path of its socket. If another account took it since, the
    next one is used.
    """
    kept = settings.state_dir / "sockets"
    folder = _made(kept.read_text().strip()) if kept.exists() else None
    while folder is None:
        folder = _made(f"scm-up-{secrets.token_hex(8)}")
        if folder is not None:
            kept.unlink(missing_ok=True)
            with os.fdopen(os.open(kept, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(f"{folder.name}\n")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _made(name: str) -> Path | None:
    """The folder of this name, made or found as we left it; None where it is not ours alone."""
    if not re.fullmatch(r"scm-up-[0-9a-f]{16}", name):
        return None
    folder = Path("/tmp") / name
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    there = folder.lstat()
    ours = stat.S_ISDIR(there.st_mode) and there.st_uid == os.geteuid() and not there.st_mode & 0o077
    return folder if ours else None


def _fresh_log(settings: Settings) -> Path:
    """``runs.log``, empty, for its owner only: what runs print may quote what a server said."""
    path = settings.state_dir / "runs.log"
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)) as file:
        os.fchmod(file.fileno(), 0o600)
    return path


@contextlib.contextmanager
def _note(settings: Settings, url: str, code_server: str | None) -> Iterator[None]:
    """``ui.json`` for as long as the page runs."""
    path = settings.state_dir / "ui.json"
    content = {
        "url": url,
        "pid": os.getpid(),
        "started": psutil.Process().create_time(),
        "code_server": code_server,
    }
    fresh = path.with_name(f"ui.json.{os.getpid()}")
    fresh.write_text(json.dumps(content) + "\n")
    fresh.replace(path)
    try:
        yield
    finally:
        there = running(settings)
        if there is not None and there.pid == os.getpid():
            path.unlink(missing_ok=True)


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(128)
    except OSError as error:
        raise ConfigurationError(
            f"cannot listen on {host}:{port}: {error.strerror}; choose another --port or --host"
        ) from None
    return listener


def _name(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _print_line(line: str) -> None:
    """For a person; on stdout stands the address only, for scripts."""
    with contextlib.suppress(BrokenPipeError):
        print(f"scm-sync: {one_line(line)}", file=sys.stderr, flush=True)  # noqa: T201


def _announce(settings: Settings, url: str, secret: str) -> None:
    """Print the address, on a terminal with the token. Other outputs may be a journal or a log that others
    read. They get the address alone, and stderr says where the token is."""
    if sys.stdout.isatty():
        print(f"{url}/?{TOKEN_PARAMETER}={secret}", flush=True)  # noqa: T201
        return
    print(url, flush=True)  # noqa: T201
    _print_line(f"its address with the token: {_address_command(settings, url)}")


def _address_command(settings: Settings, url: str) -> str:
    path = shlex.quote(str(settings.state_dir / TOKEN_FILE))
    return f'echo "{url}/?{TOKEN_PARAMETER}=$(cat {path})"'


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    serve(
        load_settings(),
        given["host"],
        given["port"],
        given["read_only"],
        workspace=Path(given["workspace"]),
        code_server=given["code_server"],
        announce=False,
    )
