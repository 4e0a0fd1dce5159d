"""The mock GitLab of the demo: where it listens, and how far its history has come.

Belongs here: its address, its token and the file that keeps them. ``./dev demo`` reads from it, and
``./dev up`` starts it again beside the UI, so that what the demo registered goes on syncing. Run as a program
it prints what a shell has to export to use it too. What people do in it is
:mod:`sync_pipeline_sandbox.sample_activity`'s.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

from sync_pipeline.core import clock
from sync_pipeline.core.errors import ConfigurationError, SyncError
from sync_pipeline.settings import load_settings
from sync_pipeline_sandbox.gitlab import GitLab, Server, serve
from sync_pipeline_sandbox.sample_activity import Activity

_FILE = "gitlab.json"
_CHANGES_TAKE = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Address:
    """Address and token of the server, and the time up to which the first sync sees it (UTC). ``changed``: it
    has continued after that.
    """

    port: int
    token: str
    anchor: datetime
    changed: bool = False

    @property
    def url(self) -> str:
        """Address of the instance."""
        return f"http://127.0.0.1:{self.port}"


class Sample:
    """The running server. ``address`` has its address, and how far it has come."""

    def __init__(self, folder: Path, address: Address, server: Server, activity: Activity) -> None:
        self.address = address
        self.server = server
        self._folder = folder
        self._activity = activity
        self._advance()

    def go_on(self) -> None:
        """Do the changes that the second sync finds. From here on the server has the time of this machine."""
        self.address = replace(self.address, changed=True)
        # First the file: a demo that is killed goes on from here.
        _write(self._folder, self.address)
        self._advance()

    def _advance(self) -> None:
        with self.server.gitlab.lock:
            self._activity.advance(self.address.anchor)
            if self.address.changed:
                self._activity.advance(self.address.anchor + _CHANGES_TAKE)
                self.server.gitlab.clock.fixed = None


def address(folder: Path) -> Address | None:
    """The place that was chosen when the demo first ran in ``folder``; None if it never did."""
    file = folder / _FILE
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        if "since" in found:
            raise ConfigurationError(
                f"{folder} holds the samples of an older version; give the demo a new state folder: "
                "export SCM_STATE_DIR=.state/demo"
            )
        anchor = datetime.fromisoformat(found["anchor"])
        return Address(int(found["port"]), str(found["token"]), anchor, bool(found["changed"]))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        raise ConfigurationError(f"{file} is damaged; delete it and run: ./dev demo") from None


def choose_address(folder: Path, now: datetime | None = None) -> Address:
    """The place of the server, chosen ``now`` (UTC) if it was not before."""
    known = address(folder)
    if known is not None:
        return known
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "gitlab.lock").open("w") as lock, socket.socket() as free:
        # Two demos with two ports would write the same repositories.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (known := address(folder)) is not None:
            return known
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        # The changes after the anchor take less than the remaining hour.
        hour = (now or clock.now()).replace(minute=0, second=0, microsecond=0)
        fresh = Address(port, f"glpat-{secrets.token_hex(10)}", hour - _CHANGES_TAKE)
        _write(folder, fresh)
        return fresh


def begin_again(folder: Path) -> None:
    """Reset the server to the state of the first sync, for an empty database."""
    known = address(folder)
    if known is not None:
        _write(folder, replace(known, changed=False))


def _write(folder: Path, content: Address) -> None:
    """Write the file atomically and readable by its owner only, because it holds the token."""
    text = json.dumps(
        {
            "port": content.port,
            "token": content.token,
            "anchor": content.anchor.isoformat(),
            "changed": content.changed,
        }
    )
    handle, name = tempfile.mkstemp(prefix=f"{_FILE}.", dir=folder)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(name, folder / _FILE)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(name)
        raise


@contextmanager
def start(folder: Path) -> Iterator[Sample]:
    """Serve the sample whose repositories are below ``folder``. Raises ConfigurationError if its port is in
    use.
    """
    where = choose_address(folder)
    gitlab = GitLab(first_id=1001)
    with ExitStack() as stack:
        # The port comes first: whoever has it may make the repositories anew. Requests wait for the lock.
        with gitlab.lock:
            try:
                server = stack.enter_context(serve(gitlab, port=where.port))
            except OSError as error:
                raise ConfigurationError(
                    f"the GitLab of the demo cannot listen on {where.url} ({error.strerror}); is another "
                    f"demo or ./dev up running? Else delete {folder / _FILE}"
                ) from None
            sample = Sample(folder, where, server, Activity(gitlab, folder, where.anchor, where.token))
        yield sample


def main() -> int:
    """Print the variables that a shell needs for ``scm-sync`` with the demo's GitLab while ``./dev up``
    serves it; 3 before the demo has run.
    """
    try:
        where = address(load_settings().state_dir / "samples")
    except SyncError as error:
        print(f"sample_gitlab: {error}", file=sys.stderr)
        return 3
    if where is None:
        print("sample_gitlab: the demo has not run yet; run: ./dev demo", file=sys.stderr)
        return 3
    print(f"export SCM_GITLAB_URL={where.url} SCM_GITLAB_TOKEN={where.token}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
