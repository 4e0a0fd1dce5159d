"""What a check finds, and running checks side by side within a limit of time.

Belongs here: the names of the checks, their result, and the promise that each check has one, whatever happens
to it. Does not belong here: any check.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from sync_pipeline.errors import SyncError

CHECKS = (
    "settings",
    "state_folder",
    "disk_space",
    "database",
    "database_version",
    "database_encoding",
    "database_rights",
    "migrations",
    "schema",
    "environment",
    "catalog_snapshot",
    "server_names",
    "dagster_home",
    "dagster_storage",
    "dagster_daemon",
    "dagster_concurrency",
    "dagster_runs",
    "code_server",
    "sensors",
    "pools",
    "assets",
    "gitlab",
    "gitlab_version",
    "gitlab_token",
    "gitlab_user",
    "gitlab_stop",
    "gitlab_clock",
    "gitlab_limits",
    "svn_command",
    "svn_server",
    "certificate",
)
"""Every check, in the order of the report."""


class State(StrEnum):
    """What a check came to. A skipped one had nothing to look at, or something it needs is not there."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report: ``seen`` is what was there, ``remedy`` what to do about it, empty where nothing
    is to be done. ``subject`` says which server or folder it is about where there may be several. Neither
    holds a secret."""

    check: str
    subject: str
    state: State
    seen: str
    remedy: str = ""

    @property
    def order(self) -> tuple[int, str]:
        """Sorts findings as the report shows them."""
        return CHECKS.index(self.check), self.subject


def ok(check: str, seen: str, subject: str = "") -> Finding:
    """All is well."""
    return Finding(check, subject, State.OK, seen)


def skipped(check: str, seen: str, subject: str = "") -> Finding:
    """There was nothing to look at."""
    return Finding(check, subject, State.SKIPPED, seen)


def warning(check: str, seen: str, remedy: str, subject: str = "") -> Finding:
    """It works, and somebody should do something."""
    return Finding(check, subject, State.WARNING, seen, remedy)


def failed(check: str, seen: str, remedy: str, subject: str = "") -> Finding:
    """It does not work."""
    return Finding(check, subject, State.FAILED, seen, remedy)


def error_text(error: SyncError, remedy: str) -> tuple[str, str]:
    """What happened and what to do about it, from the one line of ``error``, which ends with the remedy after
    a semicolon; ``remedy`` is for those that do not."""
    seen, _, advice = str(error).rpartition("; ")
    # A semicolon may also be in what a server said, which stands in brackets.
    if not seen or advice.count("(") != advice.count(")"):
        return str(error), remedy
    return seen, advice


@dataclass(frozen=True, slots=True)
class Task:
    """Some checks about one subject that are done one after the other; ``run`` finds something of each."""

    checks: Sequence[str]
    run: Callable[[], Sequence[Finding]]
    subject: str = ""

    @property
    def title(self) -> str:
        """What a person waits for."""
        return self.subject or self.checks[0]


Progress = Callable[[Sequence[str]], None]
"""Is told the titles of the tasks that are not done yet, whenever that changes."""


def run_in_parallel(
    tasks: Sequence[Task], seconds: float, progress: Progress = lambda _: None
) -> Iterator[Finding]:
    """The findings of all tasks, as each is done. A task that fails, or is not done in ``seconds``, has its
    first check failed and the others skipped."""
    done: queue.SimpleQueue[tuple[int, Sequence[Finding]]] = queue.SimpleQueue()
    for number, task in enumerate(tasks):
        # A daemon, because nothing can end a thread that waits for the network or for a name server.
        threading.Thread(target=_run, args=(task, number, done), daemon=True).start()
    deadline = time.monotonic() + seconds
    waiting = dict(enumerate(tasks))
    while waiting:
        progress([task.title for task in waiting.values()])
        try:
            number, found = done.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            for task in waiting.values():
                yield from _without_result(
                    task, f"no result within {seconds:g} s", "try again; is the machine or the network slow?"
                )
            return
        del waiting[number]
        yield from found


def _run(task: Task, number: int, done: queue.SimpleQueue[tuple[int, Sequence[Finding]]]) -> None:
    try:
        found = task.run()
    except SyncError as error:
        found = _without_result(
            task, *error_text(error, "try again; scm-sync status tells what the workers met")
        )
    except Exception as error:
        # The message may hold anything.
        found = _without_result(
            task, f"unexpected {type(error).__name__}", "report it with the output of scm-sync --version"
        )
    done.put((number, found))


def _without_result(task: Task, seen: str, remedy: str) -> list[Finding]:
    first, *others = task.checks
    return [
        failed(first, seen, remedy, task.subject),
        *(skipped(check, f"not looked at, because of {first}", task.subject) for check in others),
    ]
