"""A real Apache with mod_dav_svn, and something between it and us that breaks its answers.

Belongs here: starting and stopping both. Does not belong here: expectations. Where Apache or one of its
modules is not installed, the fixture ``apache`` skips with a message.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from sync_pipeline_tests.svn_fixtures import SvnRepository, create_repository, free_port

USER, PASSWORD = "ann", "corr3ct horse 'battery\" staple"

_MODULES = {
    "mpm_worker": "mpm_worker_module",
    "authn_core": "authn_core_module",
    "authn_file": "authn_file_module",
    "authz_core": "authz_core_module",
    "authz_user": "authz_user_module",
    "auth_basic": "auth_basic_module",
    "auth_digest": "auth_digest_module",
    "alias": "alias_module",
    "ssl": "ssl_module",
    "dav": "dav_module",
    "dav_svn": "dav_svn_module",
    "authz_svn": "authz_svn_module",
}
_FOLDERS = [Path("/usr/lib/apache2/modules"), Path("/usr/lib64/httpd/modules"), Path("/etc/httpd/modules")]

_CONFIGURATION = """\
ServerRoot {root}
ServerName localhost
PidFile {root}/pid
DefaultRuntimeDir {root}
Mutex file:{root}
ErrorLog {root}/error.log
Listen 127.0.0.1:{http}
Listen 127.0.0.1:{https}
StartServers 1
{modules}
{account}
<Location /open>
 DAV svn
 SVNParentPath {root}/repositories
</Location>
<Location /authz>
 DAV svn
 SVNParentPath {root}/repositories
 AuthzSVNAccessFile {root}/authz
</Location>
<Location /login>
 DAV svn
 SVNParentPath {root}/repositories
 AuthType Basic
 AuthName "Code"
 AuthUserFile {root}/passwords
 Require valid-user
</Location>
<Location /digest>
 DAV svn
 SVNParentPath {root}/repositories
 AuthType Digest
 AuthName "Code"
 AuthUserFile {root}/digest
 Require valid-user
</Location>
Redirect permanent /moved http://localhost:{http}/open
Redirect temp /login-page http://localhost:{http}/open
Redirect permanent /stranger http://127.0.0.1:{stranger}/open
Redirect permanent /circle http://localhost:{http}/circle
<VirtualHost 127.0.0.1:{https}>
 SSLEngine on
 SSLCertificateFile {root}/certificate.pem
 SSLCertificateKeyFile {root}/key.pem
</VirtualHost>
"""


@dataclass
class Apache:
    """A running server. Everything below ``repositories`` is served at ``/open``, at ``/login`` and
    ``/digest`` to :data:`USER`, and at ``/authz`` as the text in ``authz`` allows. ``/moved``,
    ``/login-page``, ``/stranger`` (to the port ``stranger``) and ``/circle`` redirect."""

    root: Path
    http: int
    https: int
    stranger: int
    process: subprocess.Popen[bytes]

    @property
    def certificate(self) -> Path:
        """Its own, which nobody signed but itself; for localhost."""
        return self.root / "certificate.pem"

    def url(self, path: str, *, port: int | None = None, scheme: str = "http") -> str:
        """A URL on it, or on what stands in front of it at ``port``."""
        return f"{scheme}://localhost:{port or (self.https if scheme == 'https' else self.http)}/{path}"

    def repository(self, name: str, dump: bytes | None = None) -> SvnRepository:
        """A new repository that it serves."""
        repository = create_repository(self.root / "repositories" / name)
        if dump is not None:
            repository.load(dump)
        return repository

    def allow(self, authz: str) -> None:
        """Who may read what below ``/authz``."""
        (self.root / "authz").write_text(authz)


@pytest.fixture(scope="module")
def apache() -> Iterator[Apache]:
    """See :class:`Apache`; one for all tests of a module."""
    program = shutil.which("apache2") or shutil.which("httpd")
    folder = next((f for f in _FOLDERS if all((f / f"mod_{m}.so").exists() for m in _MODULES)), None)
    if program is None or folder is None or shutil.which("openssl") is None:
        pytest.skip("Apache with mod_dav_svn is not installed (Debian: apache2 libapache2-mod-svn)")
    root = Path(tempfile.mkdtemp(prefix="apache-"))
    try:
        server = _start(program, folder, root)
        yield server
        # The whole group: a worker may still be busy with a request.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.process.pid, signal.SIGKILL)
        server.process.wait()
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _start(program: str, folder: Path, root: Path) -> Apache:
    root.chmod(0o755)  # as root it works under an account of its own
    (root / "repositories").mkdir()
    (root / "authz").write_text("[/]\n* = r\n")
    _run("openssl", "passwd", "-apr1", "-stdin", stdin=PASSWORD, into=root / "passwords", before=f"{USER}:")
    secret = hashlib.md5(f"{USER}:Code:{PASSWORD}".encode()).hexdigest()
    (root / "digest").write_text(f"{USER}:Code:{secret}\n")
    key, certificate = str(root / "key.pem"), str(root / "certificate.pem")
    _run(
        *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
        *("-keyout", key, "-out", certificate, "-days", "2", "-subj", "/CN=localhost"),
        *("-addext", "subjectAltName=DNS:localhost"),
    )
    account = ""
    if os.geteuid() == 0:
        known = {entry.pw_name for entry in pwd.getpwall()}
        account = f"User {next(name for name in ('www-data', 'apache', 'nobody') if name in known)}"
    for _ in range(5):  # another process may take a port between our look and the server's bind
        http, https, stranger = free_port(), free_port(), free_port()
        (root / "httpd.conf").write_text(
            _CONFIGURATION.format(
                root=root,
                http=http,
                https=https,
                stranger=stranger,
                account=account,
                modules="\n".join(
                    f"LoadModule {name} {folder}/mod_{file}.so" for file, name in _MODULES.items()
                ),
            )
        )
        process = subprocess.Popen(
            [program, "-f", str(root / "httpd.conf"), "-DFOREGROUND"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        if _listens(https, process):
            return Apache(root, http, https, stranger, process)
        process.kill()
        process.wait()
    raise RuntimeError(f"Apache did not start: {(root / 'error.log').read_text()[-2000:]}")


def _listens(port: int, process: subprocess.Popen[bytes]) -> bool:
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return True
        time.sleep(0.02)
    return False


def _run(*command: str, stdin: str = "", into: Path | None = None, before: str = "") -> None:
    done = subprocess.run(command, input=stdin.encode(), capture_output=True, check=True)
    if into is not None:
        into.write_text(before + done.stdout.decode())


@dataclass
class Middleman:
    """Passes everything between svn and a server, as long as ``fault`` is empty.

    ``answer``: questions for a log are answered with ``page``. ``endless``: after it text comes without an
    end. ``cut``, ``reset``: an answer to such a
    question ends, politely or not, after ``after`` bytes. ``stall``: it goes silent there.
    """

    upstream: int
    fault: str = ""
    page: bytes = b""
    after: int = 0
    port: int = 0
    logs: int = 0
    _sockets: list[socket.socket] = field(default_factory=list)
    _threads: list[threading.Thread] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Middleman:
        listener = socket.create_server(("127.0.0.1", 0))
        self.port = listener.getsockname()[1]
        self._sockets.append(listener)
        self._go(self._accept, listener)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for one in self._sockets:
            _close(one)
        for thread in self._threads:
            thread.join(60)

    def _go(self, work: object, *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                server = socket.create_connection(("127.0.0.1", self.upstream))
                self._sockets += [client, server]
                asked = threading.Event()
                self._go(self._questions, client, server, asked)
                self._go(self._is_answering, client, server, asked)

    def _questions(self, client: socket.socket, server: socket.socket, asked: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(1 << 16):
                if b"REPORT " in data or b"( log ( " in data:
                    self.logs += 1
                    asked.set()
                    if self.fault == "answer":
                        client.sendall(self.page)
                        continue
                    if self.fault == "endless":
                        client.sendall(self.page)
                        while not self._over.is_set():
                            client.sendall(b"x" * (1 << 16))
                server.sendall(data)
        _close(server)

    def _is_answering(self, client: socket.socket, server: socket.socket, asked: threading.Event) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while data := server.recv(1 << 12):
                if asked.is_set() and self.fault in ("cut", "reset", "stall"):
                    data = data[: max(0, self.after - passed)]
                    passed += len(data)
                    client.sendall(data)
                    if passed < self.after:
                        continue
                    if self.fault == "stall":
                        self._over.wait(60)
                    if self.fault == "reset":
                        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                        client.shutdown(socket.SHUT_RD)  # wakes the other thread and says nothing
                        client.close()
                        return
                    break
                client.sendall(data)
        _close(client)


def _close(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
