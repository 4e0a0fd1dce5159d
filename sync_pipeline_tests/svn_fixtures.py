"""Real Subversion repositories and servers for tests, made in milliseconds and gone at the end.

Belongs here: creating and damaging repositories, ``svnserve`` with logins and authz, a
server that never answers, a stand-in for the ``svn`` command. Does not belong here: expectations.
"""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import pytest

from sync_pipeline_sandbox import svn_samples

ENVIRONMENT = {**os.environ, "LC_ALL": "C.UTF-8", "LANGUAGE": ""}


def large_repository(path: Path, revisions: int, paths: int = 8, *, huge: int = 0) -> SvnRepository:
    """As :func:`sync_pipeline_sandbox.svn_samples.large`, ready to be looked at and changed."""
    svn_samples.large(path, revisions, paths, huge=huge)
    return SvnRepository(path)


@dataclass
class SvnRepository:
    """A repository on this machine."""

    path: Path

    @property
    def url(self) -> str:
        """Its ``file://`` URL, percent-encoded."""
        return self.path.as_uri()

    @property
    def youngest(self) -> int:
        """Its HEAD."""
        return int(self.svnlook("youngest"))

    @property
    def uuid(self) -> str:
        """Its UUID."""
        return self.svnlook("uuid").strip()

    def svnlook(self, command: str, *arguments: str) -> str:
        """What ``svnlook`` says."""
        return _run(["svnlook", command, *arguments[:-1], str(self.path), *arguments[-1:]]).decode()

    def load(self, dump: bytes | Path) -> SvnRepository:
        """Load a dump as it is, invalid properties included."""
        data = dump if isinstance(dump, bytes) else dump.read_bytes()
        command = ["svnadmin", "load", "-q", "--no-flush-to-disk", "--bypass-prop-validation"]
        _run([*command, str(self.path)], data)
        return self

    def dump(self) -> bytes:
        """Everything, as a dump."""
        return _run(["svnadmin", "dump", "-q", str(self.path)])

    def set_revprop(self, revision: int, name: str, value: str | bytes) -> None:
        """Change a revision property behind everybody's back."""
        file = self.path / "revprop.tmp"
        file.write_bytes(_bytes(value))
        command = ["svnadmin", "setrevprop", "-r", str(revision), str(self.path), name, str(file)]
        _run(command)
        file.unlink()

    def delete_revprop(self, revision: int, name: str) -> None:
        """Remove a revision property."""
        _run(["svnadmin", "delrevprop", "-r", str(revision), str(self.path), name])

    def allow_revprop_changes(self) -> None:
        """Let clients change revision properties."""
        hook = self.path / "hooks" / "pre-revprop-change"
        hook.write_text("#!/bin/sh\nexit 0\n")
        hook.chmod(0o755)

    def revision_file(self, revision: int) -> Path:
        """The file that holds a revision."""
        return self.path / "db" / "revs" / str(revision // 1000) / str(revision)

    def damage(self, revision: int) -> None:
        """Make a revision unreadable; its properties stay."""
        file = self.revision_file(revision)
        file.chmod(0o644)
        file.write_bytes(b"\0" * file.stat().st_size)

    def commit_file(self, path: str, text: bytes = b"x\n", message: str = "Add a file") -> int:
        """Commit one new file by its URL, whatever its name; returns the revision."""
        source = self.path / "import.tmp"
        source.write_bytes(text)
        url = f"{self.url}/{_quoted(path)}"  # import reads no peg
        _run(["svn", "import", "-q", "--non-interactive", "--no-auth-cache", "-m", message, str(source), url])
        source.unlink()
        return self.youngest


@dataclass
class SvnServer:
    """A running ``svnserve``."""

    port: int
    process: subprocess.Popen[bytes]
    root: Path
    log: Path

    def url(self, repository: SvnRepository) -> str:
        """The ``svn://`` URL of a repository below the served folder."""
        return f"svn://127.0.0.1:{self.port}/{_quoted(str(repository.path.relative_to(self.root)))}"

    def stop(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()


@dataclass
class SvnServers:
    """Starts servers and ends them all."""

    root: Path
    running: list[SvnServer] = field(default_factory=list)

    def __call__(
        self,
        repository: SvnRepository,
        *,
        users: Mapping[str, str] | None = None,
        anonymous: str = "read",
        authz: str | None = None,
    ) -> SvnServer:
        """Serve the folder of ``repository``. ``users``: passwords by name. ``anonymous``: none, read or
        write. ``authz``: the text of an authz file."""
        configuration = repository.path / "conf"
        lines = ["[general]", f"anon-access = {anonymous}", "auth-access = write", "realm = tests"]
        if users is not None:
            lines.append("password-db = passwd")
            pairs = "".join(f"{name} = {password}\n" for name, password in users.items())
            (configuration / "passwd").write_text("[users]\n" + pairs)
        if authz is not None:
            lines.append("authz-db = authz")
            (configuration / "authz").write_text(authz)
        (configuration / "svnserve.conf").write_text("\n".join(lines) + "\n")
        server = self._start(repository.path.parent)
        self.running.append(server)
        return server

    def restart(self, server: SvnServer) -> None:
        """Serve again what a stopped server served, at the same port."""
        process = _serve(server.root, server.port, server.log)
        self.running.append(SvnServer(server.port, process, server.root, server.log))
        if not _listens(server.port, process):
            raise RuntimeError("svnserve did not start again")

    def _start(self, root: Path) -> SvnServer:
        for _ in range(5):  # another process may take the port between our look and the server's bind
            port = free_port()
            log = self.root / f"svnserve-{port}.log"
            process = _serve(root, port, log)
            if _listens(port, process):
                return SvnServer(port, process, root, log)
            process.kill()
            process.wait()
        raise RuntimeError("svnserve did not start")


def _serve(root: Path, port: int, log: Path) -> subprocess.Popen[bytes]:
    command = ["svnserve", "-d", "--foreground", "--listen-host", "127.0.0.1", "-T", "-r", str(root)]
    return subprocess.Popen(
        [*command, "--listen-port", str(port), "--log-file", str(log)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=ENVIRONMENT,
    )


def free_port() -> int:
    """A port on which nobody listens at this moment."""
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def svn_repository(tmp_path: Path) -> Callable[..., SvnRepository]:
    """Factory of repositories: ``svn_repository(name="repo", dump=None)``."""

    def make(name: str = "repo", dump: bytes | Path | None = None) -> SvnRepository:
        path = tmp_path / "repositories" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        repository = create_repository(path)
        return repository if dump is None else repository.load(dump)

    return make


def create_repository(path: Path) -> SvnRepository:
    """An empty repository at ``path``. What is stored twice is not looked for, which halves the time of
    loading."""
    _run(["svnadmin", "create", str(path)])
    with (path / "db" / "fsfs.conf").open("a") as file:
        file.write("\n[rep-sharing]\nenable-rep-sharing = false\n")
    return SvnRepository(path)


@pytest.fixture
def svnserve(tmp_path: Path) -> Iterator[SvnServers]:
    """Factory of servers: ``svnserve(repository, users=..., anonymous=..., authz=...)``."""
    servers = SvnServers(tmp_path)
    yield servers
    for server in servers.running:
        server.stop()


@pytest.fixture
def silent_server() -> Iterator[int]:
    """The port of a server that takes connections and never answers."""
    with closing(socket.socket()) as server:
        server.bind(("127.0.0.1", 0))
        server.listen(16)
        yield int(server.getsockname()[1])


@pytest.fixture
def fake_svn(tmp_path: Path) -> Callable[[str], str]:
    """Factory of stand-ins for the command: the body of a shell script, back comes its path."""

    def make(body: str) -> str:
        path = tmp_path / f"fake-svn-{len(list(tmp_path.glob('fake-svn-*')))}"
        path.write_text("#!/bin/sh\n" + body)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return str(path)

    return make


def sample_dumps() -> Iterable[Path]:
    """The dumps that lie beside the project; empty where they are absent."""
    folder = Path(__file__).resolve().parents[2] / "shared" / "data" / "svn"
    return sorted(folder.glob("*.dump"))


SAMPLE_DUMPS = [pytest.param(path, id=path.stem) for path in sample_dumps()] or [
    pytest.param(None, marks=pytest.mark.skip(reason="the sample dumps are not beside the project"))
]
"""Parameters of a test over every sample dump; one that is skipped with a message where they are absent."""


def _listens(port: int, process: subprocess.Popen[bytes]) -> bool:
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        with suppress(OSError), closing(socket.create_connection(("127.0.0.1", port), 1)):
            return True
        time.sleep(0.01)
    return False


def _run(command: list[str], data: bytes | None = None) -> bytes:
    done = subprocess.run(command, input=data, capture_output=True, env=ENVIRONMENT, check=False)
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed: {done.stderr.decode(errors='replace')}")
    return done.stdout


def _quoted(path: str) -> str:

    return quote(path)


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value
