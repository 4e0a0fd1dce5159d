"""The findings of checks, and running checks in parallel with a time limit.

Belongs here: the names of the checks, their result, and the guarantee that each check has a result. Does not
belong here: any check.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from sync_pipeline.core.errors import SyncError

DATABASE_CHECKS = (
    "database",
    "database_version",
    "database_encoding",
    "database_rights",
    "migrations",
    "schema",
    "environment",
)
DAGSTER_CHECKS = ("dagster_home", "dagster_storage", "dagster_daemon", "dagster_concurrency", "dagster_runs")
LEDGER_CHECKS = ("code_server", "sensors", "pools", "assets")
"""Checks of rows that the program keeps."""
GITLAB_CHECKS = (
    "gitlab",
    "gitlab_version",
    "gitlab_token",
    "gitlab_user",
    "gitlab_stop",
    "gitlab_clock",
    "gitlab_limits",
)
CHECKS = (
    "settings",
    "state_folder",
    "disk_space",
    *DATABASE_CHECKS,
    "catalog_snapshot",
    "server_names",
    *DAGSTER_CHECKS,
    *LEDGER_CHECKS,
    *GITLAB_CHECKS,
    "svn_command",
    "svn_server",
    "certificate",
)
"""Every check, in the order of the report."""


class State(StrEnum):
    """The result of a check. A skipped one had nothing to check, or needs something that is not there."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report: ``seen`` is the observation, ``remedy`` the advice, empty where none is
    needed. ``subject`` is the server or folder where there may be several. Neither holds a secret. The
    runner sets ``check``."""

    state: State
    seen: str
    remedy: str = ""
    subject: str = ""
    check: str = ""

    @property
    def order(self) -> tuple[int, str]:
        """Sorts findings as the report shows them."""
        return CHECKS.index(self.check), self.subject


def ok(seen: str, subject: str = "") -> Finding:
    """All is well."""
    return Finding(State.OK, seen, "", subject)


def skipped(seen: str, subject: str = "") -> Finding:
    """There was nothing to check."""
    return Finding(State.SKIPPED, seen, "", subject)


def warning(seen: str, remedy: str, subject: str = "") -> Finding:
    """It works, but a person should do something."""
    return Finding(State.WARNING, seen, remedy, subject)


def failed(seen: str, remedy: str, subject: str = "") -> Finding:
    """It does not work."""
    return Finding(State.FAILED, seen, remedy, subject)


def error_text(error: SyncError, remedy: str) -> tuple[str, str]:
    """The finding and the remedy from the one line of ``error``, which ends with the remedy after a
    semicolon. ``remedy`` is for errors without one.
    """
    seen, _, advice = str(error).rpartition("; ")
    # A semicolon may also be in what a server said, which stands in brackets.
    if not seen or advice.count("(") != advice.count(")"):
        return str(error), remedy
    return seen, advice


Result = Finding | Sequence[Finding] | Mapping[str, Finding]
"""One or several findings of one check, or one finding for each of several checks."""


@dataclass(frozen=True, slots=True)
class Task:
    """One check, or several that are done one after the other, about one subject."""

    checks: Sequence[str]
    run: Callable[[], Result]
    subject: str = ""

    @property
    def title(self) -> str:
        """The name that a person reads while it is awaited."""
        return self.subject or self.checks[0]

    def named(self, result: Result) -> Iterator[Finding]:
        """The findings with check and subject."""
        if isinstance(result, Finding):
            result = [result]
        if not isinstance(result, Mapping):
            pairs = [(self.checks[0], one) for one in result]
        else:
            pairs = list(result.items())
        for check, one in pairs:
            yield replace(one, check=check, subject=one.subject or self.subject)

    def without_result(self, seen: str, remedy: str) -> dict[str, Finding]:
        """The first check failed, and the others are skipped."""
        first, *others = self.checks
        return {
            first: failed(seen, remedy),
            **{check: skipped(f"not looked at, because of {first}") for check in others},
        }


Progress = Callable[[Sequence[str]], None]
"""Is called with the titles of the tasks that are not done yet, whenever that changes."""


def run_in_parallel(
    tasks: Sequence[Task], seconds: float, progress: Progress = lambda _: None
) -> Iterator[Finding]:
    """The findings of all tasks, as each is done. A task that fails, or is not done in ``seconds``, has its
    first check failed and the others skipped."""
    done: queue.SimpleQueue[tuple[int, Result]] = queue.SimpleQueue()
    for number, task in enumerate(tasks):
        # A daemon, because nothing can end a thread that waits for the network or for a name server.
        threading.Thread(target=_run, args=(task, number, done), daemon=True).start()
    deadline = time.monotonic() + seconds
    waiting = dict(enumerate(tasks))
    while waiting:
        progress([task.title for task in waiting.values()])
        try:
            number, result = done.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            seen = f"no result within {seconds:g} s"
            for task in waiting.values():
                late = task.without_result(seen, "try again; is the machine or the network slow?")
                yield from task.named(late)
            return
        yield from waiting.pop(number).named(result)


def _run(task: Task, number: int, done: queue.SimpleQueue[tuple[int, Result]]) -> None:
    try:
        result = task.run()
    except SyncError as error:
        advice = "try again; scm-sync status tells what the workers met"
        result = task.without_result(*error_text(error, advice))
    except Exception as error:
        # The message may hold anything.
        seen = f"unexpected {type(error).__name__}"
        result = task.without_result(seen, "report it with the output of scm-sync --version")
    done.put((number, result))
