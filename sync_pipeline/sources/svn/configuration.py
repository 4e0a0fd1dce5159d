"""Configuration folders of ``svn`` that are private to one client.

Belongs here: making such a folder, what is written into it, and removing those of processes that were killed.
Does not belong here: running the command.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sync_pipeline.core import clock
from sync_pipeline.core.errors import ConfigurationError
from sync_pipeline.sources.proxies import VARIABLES, proxy_for

SYSTEM = Path("/etc/subversion")
"""Where svn reads what holds for every user of the machine."""

_PREFIX = "svn-config-"
_LOCK = "lock"
# A folder is made a moment before it is locked.
_NEW_SECONDS = 60.0
_PROXY = re.compile(r"^\s*http-proxy-host\s*[=:]", re.MULTILINE)

_cleaned: set[str] = set()
_cleanup_lock = threading.Lock()


class PrivateFolder:
    """A temporary folder with a configuration in which svn stores no password, asks no key ring, trusts
    ``ca_file`` and uses ``proxy``. Only its owner can read it, because ``proxy`` may have a password.

    It is locked as long as the process lives. The first folder of a process removes those that killed
    processes left behind; these are not locked any more. Raises OSError where the disk is full.
    """

    def __init__(self, ca_file: str | Path | None, proxy: str | None) -> None:
        _remove_abandoned(Path(tempfile.gettempdir()))
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self._lock = -1
        try:
            self._lock = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            write_configuration(self.path, ca_file, proxy)
        except BaseException:
            self.remove()
            raise

    def remove(self) -> None:
        """Remove the folder, then end the lock."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _remove_abandoned(directory: Path) -> None:
    """Once in a process: remove the folders in ``directory`` whose owners were killed."""
    with _cleanup_lock:
        if str(directory) in _cleaned:
            return
        _cleaned.add(str(directory))
    for folder in directory.glob(f"{_PREFIX}*"):
        # Another process may remove it at the same time, and it may be another user's.
        with suppress(OSError):
            if clock.now().timestamp() - folder.stat().st_mtime < _NEW_SECONDS:
                continue
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
            finally:
                os.close(lock)


def write_configuration(folder: Path, ca_file: str | Path | None, proxy: str | None = None) -> None:
    """Write a configuration in which svn stores no password, asks no key ring, trusts ``ca_file`` and uses
    the proxy with this URL. Raises ConfigurationError for a proxy that svn cannot use."""
    (folder / "config").write_text("[auth]\npassword-stores =\n")
    servers = "[global]\nstore-passwords = no\nstore-plaintext-passwords = no\n"
    if ca_file is not None:
        servers += f"ssl-authority-files = {Path(ca_file).resolve()}\n"
    if proxy is not None:
        servers += _proxy_lines(proxy)
    (folder / "servers").write_text(servers)


def svn_proxy(url: str) -> str | None:
    """The proxy for ``url`` from the environment. None if there is none, if ``url`` is not of a web server,
    or if the configuration of the machine has one.
    """
    if not url.startswith(("http://", "https://")) or has_proxy(SYSTEM):
        return None
    return proxy_for(url)


def has_proxy(folder: Path) -> bool:
    """True if the configuration in ``folder`` names a proxy."""
    try:
        return _PROXY.search((folder / "servers").read_text("utf-8", "replace")) is not None
    except OSError:
        return False


def _proxy_lines(proxy: str) -> str:
    try:
        parts = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
        host, port = parts.hostname, parts.port or 80
    except ValueError:
        host, port = None, 0
    if host is None or parts.scheme != "http":
        raise ConfigurationError(f"the proxy of the environment cannot be used by svn; {VARIABLES}")
    options = {"host": host, "port": str(port)}
    if parts.username is not None:
        options |= {"username": unquote(parts.username), "password": unquote(parts.password or "")}
    if any(re.search(r"[\r\n\0]", value) for value in options.values()):
        raise ConfigurationError(f"the login of the proxy holds a line end; {VARIABLES}")
    return "".join(f"http-proxy-{name} = {value}\n" for name, value in options.items() if value)
