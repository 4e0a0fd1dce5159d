"""One run of the ``svn`` command: its environment, its limits, its end.

Belongs here: starting the command that plumbum finds, passing questions and replies, and killing the whole
process group. Also watching clock, size, memory and cancel, and the answer as a temporary file. Does not
belong here: what the arguments mean, the replies (:mod:`~sync_pipeline.sources.svn.prompts`), parsing the
answer.
"""

from __future__ import annotations

import errno
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from plumbum import CommandNotFound, local

from sync_pipeline.core.child_environment import NETWORK, child_environment
from sync_pipeline.core.errors import Cancelled, ConfigurationError, Transient, WindowTooHard

STDERR_CAP = 64 * 1024
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN})
"""Error numbers that say that disk, open files, memory or processes are used up."""
POLL_SECONDS = 0.05
# svn writes this in the middle of its answer before it aborts.
_LAST_WORDS = b"Out of memory"


class OutputFile:
    """The output of a command, in an unnamed temporary file that is closed with the last reference.

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
    def end(self) -> tuple[int, int]:
        """Where its last few words are."""
        return max(0, self.size - 200), self.size

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
class CommandResult:
    """The result of one command: exit status, answer and the start of its error text."""

    status: int
    file: OutputFile
    stderr: str


@dataclass(frozen=True)
class CommandLimits:
    """Limits of one command: seconds of wall clock, bytes of answer, bytes of memory (address space)."""

    seconds: float
    answer_bytes: int
    memory_bytes: int


def environment(*, tunnel: bool) -> Mapping[str, str]:
    """The environment of the command: UTF-8, English, and no program that could ask a question. Without
    ``tunnel`` it cannot start ssh: a web server's redirect must not log us in elsewhere."""
    ssh = (os.environ.get("SVN_SSH") or "ssh -q") if tunnel else "false"
    if Path(ssh.split()[0]).name == "ssh" and "BatchMode" not in ssh:
        ssh += " -o BatchMode=yes"
    return child_environment(
        NETWORK,
        LC_ALL="C.UTF-8",
        LANG="C.UTF-8",
        LANGUAGE="",
        SVN_SSH=ssh,
        SSH_ASKPASS="",
        SSH_ASKPASS_REQUIRE="never",
        DISPLAY="",
        GPG_TTY="",
    )


def run(
    command: str,
    arguments: Sequence[str],
    *,
    limits: CommandLimits,
    environment: Mapping[str, str],
    reply: Callable[[str], bytes | None] | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> CommandResult:
    """Run ``command`` and wait for its end.

    ``reply`` gets the text that the command wrote to its standard error since the last reply. It returns the
    text for its standard input: None for nothing yet, empty for its end. Without ``reply`` the standard input
    is empty. On every error, also an interrupt or an exception of ``reply``, the whole process group is
    killed and reaped.

    Raises ConfigurationError if the command is not installed, WindowTooHard (code ``timeout``, ``too_large``
    or ``out_of_memory``), and Cancelled. Raises Transient (code ``no_room``) if this machine has no room for
    another file or process.
    """
    try:
        answer = OutputFile()
        process = subprocess.Popen(
            local[command][tuple(arguments)].formulate(),
            stdin=subprocess.DEVNULL if reply is None else subprocess.PIPE,
            stdout=answer.fd,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
    except (CommandNotFound, FileNotFoundError, PermissionError):
        raise ConfigurationError(
            f"cannot run the command {command!r}; install the package subversion or correct the path"
        ) from None
    except OSError as error:
        raise no_room(error) from None
    try:
        _limit_memory(process.pid, limits.memory_bytes)
        stderr = _wait(process, answer, reply, limits, cancelled)
    except BaseException:
        _kill(process)
        raise
    finally:
        for pipe in (process.stdin, process.stderr):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
    if answer.size > limits.answer_bytes:
        raise _too_large(limits)
    if process.returncode == -signal.SIGABRT and _LAST_WORDS in answer.read(*answer.end) + stderr.encode():
        raise _out_of_memory(limits)
    if process.returncode and not stderr and answer.fills_its_disk:
        raise no_room(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    return CommandResult(process.returncode, answer, stderr)


def no_room(error: OSError) -> Exception:
    """The error to raise for ``error``: itself, or Transient where it says that something is used up."""
    if error.errno not in NO_ROOM:
        return error
    return Transient(
        f"no room for what svn answers: {error.strerror}; make room in {tempfile.gettempdir()}, or for open "
        "files and processes of this machine",
        code="no_room",
    )


def _limit_memory(pid: int, size: int) -> None:
    """Limit the address space of a process that has just begun, where the system can do that from outside."""
    if sys.platform == "linux":
        with suppress(ProcessLookupError, PermissionError):
            resource.prlimit(pid, resource.RLIMIT_AS, (size, size))


def _wait(
    process: subprocess.Popen[bytes],
    answer: OutputFile,
    reply: Callable[[str], bytes | None] | None,
    limits: CommandLimits,
    cancelled: Callable[[], bool] | None,
) -> str:
    """Wait for the end, within the limits. Returns what came on standard error after the last reply."""
    deadline = time.monotonic() + limits.seconds
    stderr = b""
    with _Watch(process) as watch:
        while True:
            ended = process.poll() is not None
            news = watch.read()
            if news:
                stderr = (stderr + news)[:STDERR_CAP]
                if reply is not None and not ended:
                    sent = reply(stderr.decode("utf-8", "replace"))
                    if sent is not None:
                        _send(process, sent)
                        stderr = b""
            if ended:
                return stderr.decode("utf-8", "replace")
            if cancelled is not None and cancelled():
                raise Cancelled("svn was stopped because the work was cancelled")
            if answer.size > limits.answer_bytes:
                raise _too_large(limits)
            left = deadline - time.monotonic()
            if left <= 0:
                raise WindowTooHard(
                    f"svn did not finish within {limits.seconds:.3g} s and was stopped", code="timeout"
                )
            watch.wait(min(left, POLL_SECONDS))


def _send(process: subprocess.Popen[bytes], sent: bytes) -> None:
    """Write the reply to a question; an empty one ends the standard input."""
    if process.stdin is None or process.stdin.closed:
        return
    with suppress(BrokenPipeError):
        if sent:
            process.stdin.write(sent)
            process.stdin.flush()
        else:
            process.stdin.close()


class _Watch:
    """Waits for the end of a process and for what it writes to its standard error. The end is seen without
    delay where the kernel offers that, else by short sleeps."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stderr is not None
        self._stderr = process.stderr.fileno()
        os.set_blocking(self._stderr, False)
        self._ending = -1
        self._poll = select.poll()
        self._poll.register(self._stderr, select.POLLIN)
        with suppress(AttributeError, OSError):
            self._ending = os.pidfd_open(process.pid)
            self._poll.register(self._ending, select.POLLIN)

    def __enter__(self) -> _Watch:
        return self

    def __exit__(self, *_: object) -> None:
        if self._ending >= 0:
            os.close(self._ending)

    def read(self) -> bytes:
        """The bytes that are there, without waiting."""
        parts = []
        with suppress(BlockingIOError):
            while part := os.read(self._stderr, STDERR_CAP):
                parts.append(part)
            # Its other end is closed: nothing more will come, and poll would not wait any more.
            with suppress(KeyError):
                self._poll.unregister(self._stderr)
        return b"".join(parts)

    def wait(self, seconds: float) -> None:
        """Wait until the process ends or writes, at most so long."""
        self._poll.poll(max(1, int(min(seconds, seconds if self._ending >= 0 else 0.01) * 1000)))


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _too_large(limits: CommandLimits) -> WindowTooHard:
    return WindowTooHard(
        f"the answer of svn is larger than {limits.answer_bytes} bytes (SCM_SVN_MAX_ANSWER_BYTES)",
        code="too_large",
    )


def _out_of_memory(limits: CommandLimits) -> WindowTooHard:
    return WindowTooHard(
        f"svn needed more than {limits.memory_bytes} bytes of memory and was stopped; if the server's answer "
        "is right, raise SCM_SVN_MAX_MEMORY_BYTES",
        code="out_of_memory",
    )
