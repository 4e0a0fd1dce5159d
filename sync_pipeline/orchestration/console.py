"""The output of a command of Dagster on a terminal or in the log of a CI job.

Belongs here: failures without call stacks where a person has to change something, and the reason as the last
line of ``dagster job execute``. Does not belong here: the failures themselves. The event log keeps every call
stack.
"""

from __future__ import annotations

import atexit
import logging
import sys
from collections.abc import Iterable
from typing import NoReturn

import click
import dagster as dg

from sync_pipeline.core.exit_codes import CONFIGURATION
from sync_pipeline.core.safe_text import one_line
from sync_pipeline.orchestration.dagster_internals import SerializableErrorInfo

_IN_PROCESS = ("job execute", "asset materialize")
"""Commands of ``dagster`` that load the definitions themselves and do a person's or a CI job's bidding."""

_reasons: dict[str, None] = {}


def is_command() -> bool:
    """Whether a command of ``dagster`` is being carried out that loads the definitions in its own process."""
    context = click.get_current_context(silent=True)
    return context is not None and context.command_path.endswith(_IN_PROCESS)


def print_line(text: str) -> None:
    """One line of ours on stderr."""
    print(f"scm-sync: {one_line(text)}", file=sys.stderr)  # noqa: T201


def end_command(problems: Iterable[str]) -> NoReturn:
    """End the command with a line for each problem and the exit code for configuration."""
    for problem in problems:
        print_line(problem)
    sys.exit(CONFIGURATION)


def explain_failures() -> None:
    """Print failures of this process, without the call stacks of those that have a description. Print their
    reasons as its last lines, because Dagster itself ends with ``Run ... resulted in failure``.
    """
    # Dagster makes the logger of the console for each run; a job can replace it only by run configuration.
    logging.setLoggerClass(_Console)
    atexit.register(_print_reasons)


class _Console(logging.Logger):
    def __init__(self, name: str, level: int = logging.NOTSET) -> None:
        super().__init__(name, level)
        self.addFilter(_shorten)


def _print_reasons() -> None:
    for reason in _reasons:
        print_line(reason)


def _shorten(record: logging.LogRecord) -> bool:
    """Remember the reason of a failure, and remove the call stack of a failure that has a description."""
    event: dg.DagsterEvent | None = getattr(record, "dagster_event", None)
    if event is None:
        return True
    if event.is_step_failure:
        reason, is_described = _reason(event)
        _reasons.setdefault(reason)
        if is_described:
            record.msg = f"{_without_stack(record).removesuffix('.')}: {reason}"
    elif event.is_job_failure:
        first = event.job_failure_data.first_step_failure_event
        if first is None:
            error = event.job_failure_data.error
            _reasons.setdefault(cause_of(error) if error else event.message or "the run failed")
        elif _reason(first)[1]:
            record.msg = _without_stack(record)
    return True


def _without_stack(record: logging.LogRecord) -> str:
    return str(record.msg).partition("\n\n")[0]


def _reason(event: dg.DagsterEvent) -> tuple[str, bool]:
    """Why a step failed, and whether that is a description for people; else it is the text of an
    exception."""
    data = event.step_failure_data
    failure = data.user_failure_data
    if failure is not None and failure.description:
        return failure.description, True
    return cause_of(data.error) if data.error else event.message or "the step failed", False


def cause_of(error: SerializableErrorInfo) -> str:
    """The text of the exception that led to ``error``."""
    while error.cause is not None:
        error = error.cause
    return error.message
