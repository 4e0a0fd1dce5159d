"""A real PgBouncer in front of the server of the tests.

Belongs here: starting and stopping it. Does not belong here: expectations. Where it is not installed, the
fixture ``pooler`` skips with a message.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from sync_pipeline_tests.conftest import database_of
from sync_pipeline_tests.svn_fixtures import free_port

_CONFIGURATION = """\
[databases]
* = {server}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = {mode}
default_pool_size = 3
ignore_startup_parameters = extra_float_digits{ignored}
logfile = {folder}/log
"""

_TRIES = 3
_PATIENCE = 60.0

Pooler = Callable[..., str]


class _NotStarted(Exception):
    """The pooler ended, or does not answer; with its log."""


def _is_answering(url: str) -> bool:
    with contextlib.suppress(psycopg.Error), psycopg.connect(url, connect_timeout=10) as conn:
        return conn.execute("SELECT 1").fetchone() == (1,)
    return False


@pytest.fixture
def pooler(server_url: str) -> Iterator[Pooler]:
    """Call it with a database URL, and by name with ``mode`` and ``ignored`` (start-up parameters), to get a
    URL of the same database behind a pooler."""
    program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")
    if program is None:
        pytest.skip("pgbouncer is not installed")
    parts = psycopg.conninfo.conninfo_to_dict(server_url)
    known = {name: parts[name] for name in ("host", "port", "user", "password") if parts.get(name)}
    server = " ".join(f"{name}={value}" for name, value in known.items())
    with contextlib.ExitStack() as stack:

        def start(url: str, *, mode: str = "transaction", ignored: str = "") -> str:
            for _ in range(_TRIES - 1):
                with contextlib.suppress(_NotStarted):
                    return try_to_start(url, mode, ignored)
            return try_to_start(url, mode, ignored)

        def try_to_start(url: str, mode: str, ignored: str) -> str:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pooler-")))
            port = free_port()
            text = _CONFIGURATION.format(
                server=server, port=port, mode=mode, ignored=ignored and f",{ignored}", folder=folder
            )
            (folder / "ini").write_text(text)
            command = [program, str(folder / "ini")]
            if os.geteuid() == 0:
                # It refuses to run as root, and only this account may enter the folder of the socket.
                shutil.chown(folder, "postgres", "postgres")
                command[1:1] = ["-u", "postgres"]
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            stack.callback(process.wait)
            stack.callback(process.kill)
            name = str(psycopg.conninfo.conninfo_to_dict(url)["dbname"])
            found = database_of(f"postgresql://postgres@127.0.0.1:{port}/x", name)
            deadline = time.monotonic() + _PATIENCE
            # Its first login at the server takes a while on a busy machine, so its port alone says little.
            while not _is_answering(found):
                if process.poll() is not None or time.monotonic() > deadline:
                    # Another process may have taken the port since.
                    raise _NotStarted((folder / "log").read_text())
                time.sleep(0.05)
            return found

        yield start
