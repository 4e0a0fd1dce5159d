"""Real processes that start warm: forked from one that has imported what all of them import.

Belongs here: the process that is forked from, and what a test holds of one that it started. Importing Dagster
takes seconds of CPU, most of what a short command needs. A process from here has its own number, environment,
folder and streams, runs the module as ``python -m`` does, and gets signals as any other. It cannot show what
the interpreter does before the first line: tests of that (a first start, ``PYTHONPATH``) start theirs cold.

Only packages of others are imported beforehand, and of these none that keeps what it finds in its
environment. Our own modules are compiled once for all, into a folder of the run.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

_BEFOREHAND = (
    "dagster",
    "dagster._cli",
    "dagster._cli.job",
    "dagster_postgres",
    "gitlab",
    "lxml.etree",
    "psutil",
    "psycopg",
    "psycopg_pool",
    "psycopg2.extras",
    "pydantic_settings",
    "requests",
    "rich.progress",
    "sqlalchemy.dialects.postgresql.psycopg2",
    "tenacity",
    "typer",
    "upath",
    "yoyo",
)
_REQUEST_BYTES = 1 << 17


class Process:
    """A process that was started warm: of ``subprocess.Popen`` with pipes and text what tests need."""

    def __init__(self, pid: int, report: int, stdout: IO[str] | None, stderr: IO[str] | None) -> None:
        self.pid = pid
        self.stdout = stdout
        self.stderr = stderr
        self.returncode: int | None = None
        self._report = report

    def poll(self) -> int | None:
        """The exit code, None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit code, that of a signal negative. Raises
        ``subprocess.TimeoutExpired``."""
        if self.returncode is None:
            if not select.select([self._report], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
            answer = os.read(self._report, 16)
            os.close(self._report)
            assert answer, "the process that others are forked from has ended"
            self.returncode = int(answer)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What it says until its end; an empty text for a stream that is no pipe."""
        deadline = None if timeout is None else time.monotonic() + timeout
        outputs: dict[IO[str], str] = {}

        def read(stream: IO[str]) -> None:
            outputs[stream] = stream.read()

        streams = [stream for stream in (self.stdout, self.stderr) if stream is not None]
        readers = [threading.Thread(target=read, args=(stream,), daemon=True) for stream in streams]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(None if deadline is None else max(deadline - time.monotonic(), 0))
            if reader.is_alive():
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
        self.wait(None if deadline is None else max(deadline - time.monotonic(), 0))
        for stream in streams:
            stream.close()
        out, err = (outputs.get(stream, "") if stream else "" for stream in (self.stdout, self.stderr))
        return out, err

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it without asking."""
        self.send_signal(signal.SIGKILL)

    def close(self) -> None:
        """End it without asking, wait for that, and close its streams."""
        self.kill()
        self.wait(60)
        for stream in (self.stdout, self.stderr):
            if stream is not None:
                stream.close()


class Starter:
    """Starts processes warm. The one that they are forked from starts with the first of them."""

    def __init__(self, compiled: Path) -> None:
        self._compiled = compiled
        self._server: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def start(
        self,
        module: str,
        *arguments: str,
        env: Mapping[str, str],
        cwd: Path,
        stdout: int = subprocess.PIPE,
        stderr: int = subprocess.PIPE,
    ) -> Process:
        """``python -m module arguments`` with this environment in this folder. ``stdout`` and ``stderr`` are
        file descriptors or PIPE, ``stderr`` may be STDOUT."""
        with contextlib.ExitStack() as ours:
            out, out_end = self._stream(stdout, ours)
            err, err_end = (None, out_end) if stderr == subprocess.STDOUT else self._stream(stderr, ours)
            report, report_end = os.pipe()
            ours.callback(os.close, report_end)
            request = {"argv": [module, *arguments], "env": dict(env), "cwd": str(cwd)}
            connection = self._connection()
            socket.send_fds(connection, [json.dumps(request).encode()], [out_end, err_end, report_end])
            answer = connection.recv(32)
            assert answer, "the process that others are forked from has ended"
            return Process(int(answer), report, out, err)

    def run(
        self, module: str, *arguments: str, env: Mapping[str, str], cwd: Path, timeout: float = 120
    ) -> subprocess.CompletedProcess[str]:
        """The same, to its end."""
        process = self.start(module, *arguments, env=env, cwd=cwd)
        try:
            out, err = process.communicate(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        return subprocess.CompletedProcess([module, *arguments], process.wait(), out, err)

    def close(self) -> None:
        """End the process that others are forked from."""
        if self._socket is not None and self._server is not None:
            self._socket.close()
            self._server.wait(60)

    @staticmethod
    def _stream(wanted: int, ours: contextlib.ExitStack) -> tuple[IO[str] | None, int]:
        if wanted != subprocess.PIPE:
            return None, wanted
        reading, writing = os.pipe()
        ours.callback(os.close, writing)
        return os.fdopen(reading, encoding="utf-8"), writing

    def _connection(self) -> socket.socket:
        if self._socket is None:
            self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                command = [sys.executable, "-m", __name__, str(theirs.fileno()), str(self._compiled)]
                self._server = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    cwd=Path(__file__).parents[1],
                )
        return self._socket


def _serve(connection: socket.socket) -> list[str] | None:
    """Fork for each request. Returns in the child, with its arguments, and at the end with None."""
    running: dict[int, tuple[int, int]] = {}
    while True:
        ready = select.select([connection.fileno(), *running], [], [])[0]
        for pidfd in running.keys() & set(ready):
            pid, report = running.pop(pidfd)
            os.close(pidfd)
            os.write(report, str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())
            os.close(report)
        if connection.fileno() in ready:
            request, streams, _, _ = socket.recv_fds(connection, _REQUEST_BYTES, 3)
            if not request:
                return None
            pid = os.fork()
            if pid == 0:
                for pidfd, (_, report) in running.items():
                    os.close(pidfd)
                    os.close(report)
                connection.close()
                return _become(json.loads(request), streams)
            out, err, report = streams
            os.close(out)
            os.close(err)
            running[os.pidfd_open(pid)] = pid, report
            connection.send(str(pid).encode())


def _become(request: dict[str, object], streams: Sequence[int]) -> list[str]:
    out, err, report = streams
    os.dup2(out, 1)
    os.dup2(err, 2)
    for stream in {out, err, report}:
        os.close(stream)
    sys.stdout.reconfigure(line_buffering=os.isatty(1))  # type: ignore[union-attr]
    env, argv = request["env"], request["argv"]
    assert isinstance(env, dict)
    assert isinstance(argv, list)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(str(request["cwd"]))
    sys.path[0] = os.getcwd()
    if action := os.environ.get("PYTHONWARNINGS"):
        # The interpreter reads it at its start; of what it may hold, an action for all of them.
        warnings.simplefilter(action)  # type: ignore[arg-type]
    return argv


if __name__ == "__main__":
    for name in _BEFOREHAND:
        __import__(name)
    sys.dont_write_bytecode = False
    sys.pycache_prefix = sys.argv[2]
    # What is there stays as it is in all of them, in memory that they share.
    gc.collect()
    gc.freeze()
    if (words := _serve(socket.socket(fileno=int(sys.argv[1])))) is not None:
        sys.argv = words
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
