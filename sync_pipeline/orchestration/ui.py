"""The Dagster web page behind its guard, and the whole of it with daemon and code server.

Belongs here: what ``scm-sync ui`` and ``scm-sync up`` start, the token, and the note ``ui.json`` that tells
other commands where it runs. What is let through is decided in :mod:`sync_pipeline.orchestration.guard`.

``up`` runs three children: the code server (so that one reload reaches page and daemon alike), the daemon
with the sensors, and the page. The code server executes whatever it is sent, so it listens on a socket in a
folder of its owner only.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import secrets
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
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

from sync_pipeline.errors import ConfigurationError
from sync_pipeline.operations.environment import config_file, environment_variables, resolve_urls
from sync_pipeline.orchestration.guard import TOKEN_PARAMETER, Guard
from sync_pipeline.orchestration.order import POOLS_VARIABLE
from sync_pipeline.safe_text import one_line
from sync_pipeline.settings import Settings, load_settings
from sync_pipeline.store.database import describe

LOCATION_NAME = "sync_pipeline"
"""Name of the code location; Dagster keeps the state of sensors by it."""

_START_SECONDS = 120.0
_STOP_SECONDS = 30.0
# What ends so often in so many seconds needs a person.
_MOST_ENDS = 5
_ENDS_SECONDS = 600.0
_ASK_SECONDS = 5.0
_SILENT_SECONDS = 15.0
_DATABASE_ANSWERS_MS = 15_000
_POOL_RECYCLE = 3600
_POOL_MAX_OVERFLOW = 20
_POLL_MS = 2000
# Becomes a program that ends when its parent ends. A function between fork and exec could do the same, but a
# fork meets the threads of gRPC in any state: seen to hang for ever, and to abort.
_WITH_PARENT = """import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


@dataclass(frozen=True, slots=True)
class Running:
    """What ``ui.json`` says of a page that runs. ``code_server`` is the socket of ``up``, None for ``ui``."""

    url: str
    pid: int
    code_server: str | None


def token(settings: Settings) -> str:
    """The secret of this state folder, made at the first use; only its owner can read the file."""
    path = settings.state_dir / "ui.token"
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
    from dagster._core.workspace.context import WorkspaceProcessContext
    from dagster._core.workspace.load_target import WorkspaceFileTarget
    from dagster_webserver.version import __version__
    from dagster_webserver.webserver import DagsterWebserver

    secret = token(settings)
    listener = _listen(host, port)
    port = int(listener.getsockname()[1])
    os.environ.update(environment_variables(settings))
    from sync_pipeline.orchestration.build import quiet_dagster

    with quiet_dagster(), DagsterInstance.get() as instance:
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
                    _announce(url, secret)
                # The access log would hold the token of the first visit.
                config = uvicorn.Config(guarded, log_level="warning", access_log=False)
                # When it has stopped, uvicorn raises the signal again; we still have to tidy up then.
                signal.signal(signal.SIGTERM, signal.default_int_handler)
                with contextlib.suppress(KeyboardInterrupt):
                    uvicorn.Server(config).run(sockets=[listener])


def up(settings: Settings, host: str = "127.0.0.1", port: int = 0, read_only: bool = False) -> None:
    """Run page, daemon and code server until SIGINT or SIGTERM, then stop them all. What runs print goes to
    ``runs.log`` in the state folder. One of them that ends by itself is started again. Raises
    ConfigurationError if it runs already, or if one of them cannot be kept running."""
    secret = token(settings)
    environment = {**os.environ, **environment_variables(settings), POOLS_VARIABLE: "1"}
    place_of_rows = describe(resolve_urls(settings).database_url)
    stop = threading.Event()
    with _only_one(settings, secret), _signals(stop), _private_folder(settings) as folder:
        place = folder / "code.sock"
        workspace = folder / "workspace.yaml"
        workspace.write_text(
            f"load_from:\n  - grpc_server:\n      socket: {json.dumps(str(place))}\n"
            f"      host: localhost\n      location_name: {LOCATION_NAME}\n"
        )
        children: dict[str, subprocess.Popen[bytes]] = {}
        try:
            # Runs are its children, and say more than fits between our lines.
            log = settings.state_dir / "runs.log"
            _say(
                f"starting UI, daemon with sensors, and code server; database {place_of_rows}; "
                f"what runs print goes to {log}; the address of the UI follows, Ctrl-C stops all"
            )
            arguments: dict[str, Any] = {"host": host, "port": port, "read_only": read_only}
            arguments |= {"workspace": str(workspace), "code_server": str(place)}
            begin = {
                "code server": lambda: _child(_code_server(place), environment, log),
                "daemon": lambda: _child(_daemon(workspace), environment),
                "page": lambda: _child(_page(arguments), environment),
            }
            children["code server"] = begin["code server"]()
            _wait(lambda: _answers(place), children, stop)
            children["daemon"] = begin["daemon"]()
            children["page"] = begin["page"]()
            _wait(lambda: _is_page(settings, children["page"].pid), children, stop)
            there = running(settings)
            if there is not None and not stop.is_set():
                _announce(there.url, secret)
                # Started again, the page is where it was.
                arguments["port"] = urlsplit(there.url).port or port
            _keep_running(children, begin, place, stop)
        finally:
            if stop.is_set():
                _say("stopping the UI, the daemon and the code server; runs stop between two batches")
            _stop(children)


@contextlib.contextmanager
def _only_one(settings: Settings, secret: str) -> Iterator[None]:
    """Two daemons on one state folder would both start runs: the second one is told where the first is."""
    with (settings.state_dir / "up.lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            there = running(settings)
            where = f"at {there.url}/?token={secret}" if there else "and is just starting"
            raise ConfigurationError(
                f"it runs already {where} (process {lock.read().strip() or 'unknown'})"
            ) from None
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield


# The children -------------------------------------------------------------------------------------------


def _code_server(place: Path) -> list[str]:
    return [
        *(sys.executable, "-m", "dagster", "code-server", "start", "-m", "sync_pipeline.definitions"),
        *("--socket", str(place), "--location-name", LOCATION_NAME),
        *("--log-level", "warning", "--use-python-environment-entry-point"),
    ]


def _daemon(workspace: Path) -> list[str]:
    return [
        *(sys.executable, "-m", "dagster._daemon", "run", "-w", str(workspace)),
        *("--log-level", "warning"),
    ]


def _page(arguments: Mapping[str, Any]) -> list[str]:
    return [sys.executable, "-m", "sync_pipeline.orchestration.ui", json.dumps(arguments)]


def _child(
    command: Sequence[str], environment: Mapping[str, str], log: Path | None = None
) -> subprocess.Popen[bytes]:
    """A child in a process group of its own that does not outlive us, however we end. It writes to ``log``,
    begun anew, or to where we write."""
    if sys.platform == "linux":
        command = [sys.executable, "-I", "-S", "-c", _WITH_PARENT, str(os.getpid()), *command]
    with contextlib.nullcontext() if log is None else log.open("wb") as output:
        return subprocess.Popen(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=None if output is None else subprocess.STDOUT,
            start_new_session=True,
        )


def _wait(
    ready: Callable[[], bool],
    children: Mapping[str, subprocess.Popen[bytes]],
    stop: threading.Event,
    limit: float = _START_SECONDS,
) -> None:
    """Until ``ready`` or asked to stop. Raises ConfigurationError if a child ends, or after ``limit``."""
    started = time.monotonic()
    while not stop.is_set() and not ready():
        for name, child in children.items():
            if child.poll() is not None and not stop.is_set():
                raise _ended(name, child)
        if time.monotonic() - started > limit:
            raise ConfigurationError(f"no answer after {limit:.0f} s; the lines above may say why")
        stop.wait(0.3)


def _ended(name: str, child: subprocess.Popen[bytes]) -> ConfigurationError:
    return ConfigurationError(
        f"the {name} ended by itself with {child.returncode}; the lines above, or runs.log in the state "
        "folder, say why",
        code="child_ended",
    )


def _keep_running(
    children: dict[str, subprocess.Popen[bytes]],
    begin: Mapping[str, Callable[[], subprocess.Popen[bytes]]],
    place: Path,
    stop: threading.Event,
) -> None:
    """Until asked to stop: start again what ended by itself, and let the code server load anew where it does
    not answer: it does not notice that the process is gone in which the code is. Raises ConfigurationError
    where something ends again and again."""
    ends: deque[float] = deque(maxlen=_MOST_ENDS)
    answered = time.monotonic()
    while not stop.wait(0.5):
        for name, child in children.items():
            if child.poll() is None:
                continue
            if len(ends) == _MOST_ENDS and time.monotonic() - ends[0] < _ENDS_SECONDS:
                raise _ended(name, child)
            ends.append(time.monotonic())
            _say(f"the {name} ended by itself with {child.returncode}; starting it again")
            _signal(child, signal.SIGKILL)
            children[name] = begin[name]()
            if name == "code server":
                # It has its time to load.
                answered = time.monotonic() + _START_SECONDS
        if time.monotonic() - answered < _ASK_SECONDS:
            continue
        if _answers(place):
            answered = time.monotonic()
        elif time.monotonic() - answered > _SILENT_SECONDS:
            _say("the code server does not answer; loading it anew")
            _load_anew(place)
            answered = time.monotonic()


def _load_anew(place: Path) -> None:
    from dagster._grpc.client import DagsterGrpcClient

    # What does not load now is tried again: whoever broke it may be mending it.
    with contextlib.suppress(Exception):
        DagsterGrpcClient(socket=str(place)).reload_code(timeout=int(_START_SECONDS))


def _stop(children: Mapping[str, subprocess.Popen[bytes]]) -> None:
    """Page first, code server last: it has the runs, which stop between two batches."""
    for child in list(children.values())[::-1]:
        _signal(child, signal.SIGTERM)
        if child is not next(iter(children.values())):
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(_STOP_SECONDS)
    deadline = time.monotonic() + _STOP_SECONDS
    for child in children.values():
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(max(0.0, deadline - time.monotonic()))
        # Whatever is left of the group: nobody watches it any more.
        _signal(child, signal.SIGKILL)
        child.wait()


def _signal(child: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, number)


def _answers(place: Path) -> bool:
    from dagster._grpc.client import DagsterGrpcClient

    if not place.exists():
        return False
    try:
        DagsterGrpcClient(socket=str(place)).ping("ready")
    except Exception:  # every failure means the same here: not yet
        return False
    return True


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
def _private_folder(settings: Settings) -> Iterator[Path]:
    """A folder with a short name that only its owner can enter: a socket's path ends at 107 bytes. It is the
    same at every start, because Dagster knows sensors and their ticks by the place of the code server."""
    mark = hashlib.sha256(f"{os.getuid()} {settings.state_dir}".encode()).hexdigest()[:12]
    folder = Path("/tmp") / f"scm-up-{mark}"
    folder.mkdir(mode=0o700, exist_ok=True)
    there = folder.lstat()
    if not stat.S_ISDIR(there.st_mode) or there.st_uid != os.getuid() or there.st_mode & 0o077:
        raise ConfigurationError(f"{folder} belongs to somebody else; remove it")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


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


def _say(line: str) -> None:
    """For a person; on stdout stands the address only, for scripts."""
    with contextlib.suppress(BrokenPipeError):
        print(f"scm-sync: {one_line(line)}", file=sys.stderr, flush=True)  # noqa: T201


def _announce(url: str, secret: str) -> None:
    print(f"{url}/?{TOKEN_PARAMETER}={secret}", flush=True)  # noqa: T201


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
