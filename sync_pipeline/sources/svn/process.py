"""One run of the ``svn`` command: its environment, its limits, its end.

Belongs here: starting the command through plumbum, feeding the password, watching clock, size and cancel,
killing the whole process group, and the answer as a temporary file. Does not belong here: what the
arguments mean and what the answer says.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import subprocess
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plumbum import CommandNotFound, local

from sync_pipeline.errors import Cancelled, ConfigurationError, Transient, WindowTooHard

STDERR_CAP = 64 * 1024
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN})
"""What the system says when disk, open files, memory or processes are used up."""
POLL_SECONDS = 0.05


class AnswerFile:
    """What a command wrote, in an unnamed temporary file that is closed when the last reference goes.

    Readers use positions of their own, so any number of them may read at the same time.
    """

    def __init__(self) -> None:
        with tempfile.TemporaryFile(prefix="svn-answer-") as file:
            self.fd = os.dup(file.fileno())
        self.close = weakref.finalize(self, os.close, self.fd)

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return os.fstat(self.fd).st_size

    @property
    def fills_its_disk(self) -> bool:
        """Whether nothing more can be written where it lies."""
        disk = os.fstatvfs(self.fd)
        return disk.f_bavail * disk.f_frsize < disk.f_bsize

    def read(self, start: int, end: int) -> bytes:
        """The bytes ``[start, end)``, fewer only at the end of the file."""
        parts: list[bytes] = []
        while start < end:
            part = os.pread(self.fd, end - start, start)
            if not part:
                break
            parts.append(part)
            start += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def blocks(self, start: int, end: int, size: int, cut: bytes) -> Iterator[tuple[int, bytes]]:
        """``[start, end)`` as (position, bytes) of about ``size`` bytes, each cut right after a ``cut``.

        A block grows until it holds a ``cut``; only the last one may end without.
        """
        held = bytearray()
        while start < end:
            data = self.read(start + len(held), min(start + len(held) + size, end))
            seen = max(0, len(held) - len(cut) + 1)
            held += data
            at = held.rfind(cut, seen)
            keep = at + len(cut) if at >= 0 else len(held) if start + len(held) >= end or not data else 0
            if keep:
                yield start, bytes(held[:keep])
                start += keep
                del held[:keep]
            elif not data:
                return


@dataclass(frozen=True)
class Answer:
    """What one command left behind: its exit status, the answer and the start of its error text."""

    status: int
    file: AnswerFile
    stderr: str


def environment() -> dict[str, str]:
    """What the command sees beside our own environment: UTF-8, English, and nobody who could ask a
    question."""
    tunnel = os.environ.get("SVN_SSH") or "ssh -q"
    if Path(tunnel.split()[0]).name == "ssh" and "BatchMode" not in tunnel:
        tunnel += " -o BatchMode=yes"
    return {
        "LC_ALL": "C.UTF-8",
        "LANG": "C.UTF-8",
        "LANGUAGE": "",
        "SVN_SSH": tunnel,
        "SSH_ASKPASS": "",
        "SSH_ASKPASS_REQUIRE": "never",
        "DISPLAY": "",
        "GPG_TTY": "",
    }


def run(
    command: str,
    arguments: Sequence[str],
    *,
    secret: str | None,
    timeout: float,
    max_bytes: int,
    cancelled: Callable[[], bool] | None = None,
) -> Answer:
    """Run ``command`` and wait for its end, at most ``timeout`` seconds and ``max_bytes`` of answer.

    ``secret`` is written to its standard input, which then ends; without one the input is empty. Whatever
    goes wrong, also an interrupt, the whole process group is killed and reaped. Raises ConfigurationError
    when the command is not installed, WindowTooHard (code ``timeout`` or ``too_large``), Cancelled, and
    Transient (code ``no_room``) when this machine has no room for another file or process.
    """
    try:
        answer, errors = AnswerFile(), AnswerFile()
        process: Any = local[command][tuple(arguments)].popen(
            stdin=subprocess.DEVNULL if secret is None else subprocess.PIPE,
            stdout=answer.fd,
            stderr=errors.fd,
            env=environment(),
            new_session=True,
        )
    except (CommandNotFound, FileNotFoundError, PermissionError):
        raise ConfigurationError(
            f"cannot run the command {command!r}; install the package subversion or correct the path"
        ) from None
    except OSError as error:
        raise no_room(error) from None
    try:
        if secret is not None:
            with suppress(BrokenPipeError):
                process.stdin.write(secret.encode() + b"\n")
            with suppress(BrokenPipeError):
                process.stdin.close()
        _wait(process, answer, timeout=timeout, max_bytes=max_bytes, cancelled=cancelled)
    except BaseException:
        _kill(process)
        raise
    if answer.size > max_bytes:
        raise _too_large(max_bytes)
    said = errors.read(0, STDERR_CAP).decode("utf-8", "replace")
    if process.returncode and not said and answer.fills_its_disk:
        raise no_room(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    return Answer(process.returncode, answer, said)


def no_room(error: OSError) -> Exception:
    """What to raise for ``error``: itself, or Transient where it only says that something is used up."""
    if error.errno not in NO_ROOM:
        return error
    return Transient(
        f"no room for what svn answers: {error.strerror}; make room in {tempfile.gettempdir()}, or for open "
        "files and processes of this machine",
        code="no_room",
    )


def _wait(
    process: Any,
    answer: AnswerFile,
    *,
    timeout: float,
    max_bytes: int,
    cancelled: Callable[[], bool] | None,
) -> None:
    deadline = time.monotonic() + timeout
    with _Ending(process.pid) as ending:
        while process.poll() is None:
            if cancelled is not None and cancelled():
                raise Cancelled("svn was stopped because the work was cancelled")
            if answer.size > max_bytes:
                raise _too_large(max_bytes)
            left = deadline - time.monotonic()
            if left <= 0:
                raise WindowTooHard(
                    f"svn did not finish within {timeout:g} s and was stopped", code="timeout"
                )
            ending.wait(min(left, POLL_SECONDS))


class _Ending:
    """Waits for the end of a process without delay where the kernel offers it, else by short sleeps."""

    def __init__(self, pid: int) -> None:
        self._fd = -1
        self._poll = select.poll()
        with suppress(AttributeError, OSError):
            self._fd = os.pidfd_open(pid)
            self._poll.register(self._fd, select.POLLIN)

    def __enter__(self) -> _Ending:
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def wait(self, seconds: float) -> None:
        if self._fd >= 0:
            self._poll.poll(max(1, int(seconds * 1000)))
        else:
            time.sleep(min(seconds, 0.01))


def _kill(process: Any) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    if process.stdin is not None:
        with suppress(OSError):
            process.stdin.close()
    process.wait()


def _too_large(max_bytes: int) -> WindowTooHard:
    return WindowTooHard(f"the answer of svn is larger than {max_bytes} bytes", code="too_large")
