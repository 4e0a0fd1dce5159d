"""The program: one command line from its arguments to its exit code.

Belongs here: the command groups put together, the options before the command, and what becomes of errors,
interruptions and a closed pipe. Does not belong here: a command.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from sync_pipeline import __version__
from sync_pipeline.cli import (
    admin,
    database,
    health,
    installation,
    jobs,
    limits,
    pauses,
    reconcile,
    repair,
    repositories,
    resync,
    retention,
    roots,
    runner,
    runs,
    settings,
    unattended,
    watermarks,
)
from sync_pipeline.cli.options import INSPECT, OPERATE, SYNC, group
from sync_pipeline.cli.output import print_line, print_message, print_raw
from sync_pipeline.core.errors import Cancelled, ConfigurationError, SyncError
from sync_pipeline.core.exit_codes import CLOSED_PIPE, CONFIGURATION, FAILED, INTERRUPTED, SUCCESS
from sync_pipeline.core.safe_text import visible

COMPLETION = "_SCM_SYNC_COMPLETE"
"""The variable by which a shell asks for completion."""

app = group(
    "A complete, provable copy of source-control activity in PostgreSQL.",
    examples=(
        "scm-sync repo add gitlab:platform/api svn:https://svn.example.com/tools",
        "scm-sync runner incremental --repo gitlab:platform/api",
        "scm-sync status",
        "scm-sync up",
    ),
    completion=True,
)
app.add_typer(repositories.app, name="repo", rich_help_panel=SYNC)
app.add_typer(roots.app, name="root", rich_help_panel=SYNC)
app.add_typer(runner.app, name="runner", rich_help_panel=SYNC)
app.command("up", rich_help_panel=SYNC)(installation.up_command)
app.command("scheduler", rich_help_panel=SYNC)(unattended.scheduler_command)
app.command("worker", rich_help_panel=SYNC, epilog=unattended.WORKER_EXAMPLES)(unattended.worker_command)
app.command("reaper", rich_help_panel=SYNC)(unattended.reaper_command)
app.command("status", rich_help_panel=INSPECT, epilog=installation.STATUS_EXAMPLES)(
    installation.status_command
)
app.command("doctor", rich_help_panel=INSPECT)(installation.doctor_command)
app.command("health", rich_help_panel=INSPECT)(health.health_command)
app.command("completeness", rich_help_panel=INSPECT)(installation.completeness_command)
app.command("reconcile", rich_help_panel=INSPECT)(reconcile.reconcile_command)
app.command("settings", rich_help_panel=INSPECT)(settings.settings_command)
app.command("ui", rich_help_panel=INSPECT)(installation.ui_command)
app.command("env", rich_help_panel=OPERATE)(installation.env_command)
app.add_typer(database.app, name="db", rich_help_panel=OPERATE)
app.add_typer(repositories.catalog_app, name="catalog", rich_help_panel=OPERATE)
app.add_typer(watermarks.app, name="watermark", rich_help_panel=OPERATE)
app.add_typer(repair.app, name="repair", rich_help_panel=OPERATE)
app.add_typer(admin.app, name="admin", rich_help_panel=OPERATE)
admin.app.command("retention")(retention.retention_command)
admin.app.command("full-sync")(resync.full_sync_command)
admin.app.command("repair-recent")(resync.repair_recent_command)
admin.app.command("pause")(pauses.pause_command)
admin.app.command("resume")(pauses.resume_command)
admin.app.command("pauses")(pauses.pauses_command)
admin.app.command("breakers")(pauses.breakers_command)
admin.app.command("breaker-reset")(pauses.breaker_reset_command)
# Its earlier name, for scripts.
database.app.command("verify", hidden=True)(admin.admin_verify)
admin.app.add_typer(jobs.app, name="jobs")
admin.app.add_typer(runs.app, name="runs")
admin.app.add_typer(limits.app, name="limits")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and end the process with its exit code."""
    if sys.stdout is None:  # closed by the shell: >&-
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 (for the life of the process)
    # SIGTERM does the same as Ctrl-C: a stop between two batches, and the job is given back.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # Only our own logs are printed; the setting log_level chooses them.
    logging.getLogger().addHandler(logging.NullHandler())
    logging.getLogger("sync_pipeline").addHandler(_Lines())
    code = run(sys.argv[1:] if arguments is None else arguments)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = _pipe_closed()
    except OSError as error:
        code = print_message(f"the output cannot be written: {error.strerror}", FAILED)
        _pipe_closed()
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; every error is one line on stderr, and what has to be set
    right a line each."""
    command = typer.main.get_command(app)
    if COMPLETION in os.environ:  # a shell asks for what a word may become; this ends the process
        command.main(list(arguments), prog_name="scm-sync")
    try:
        # Not through the command's own main(), which has its own mind about interruptions and closed pipes.
        with command.make_context("scm-sync", list(arguments)) as context:
            return int(command.invoke(context) or SUCCESS)
    except typer.Exit as done:
        return done.exit_code
    except BrokenPipeError:
        return _pipe_closed()
    except Exception as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # a group alone asks which commands it has
            print_raw(f"{error.ctx.get_help()}\n")  # type: ignore[attr-defined]
            return SUCCESS
        return _explain(error, arguments)
    except KeyboardInterrupt:
        return print_message("interrupted; what was committed stays", INTERRUPTED)


class _Lines(logging.Handler):
    """The log of our modules, each record as one line without a traceback."""

    def emit(self, record: logging.LogRecord) -> None:
        print_message(f"{record.levelname.lower()}: {record.getMessage()}")


def _explain(error: Exception, arguments: Sequence[str]) -> int:
    if os.environ.get("SCM_DEBUG", "") not in ("", "0"):
        for line in traceback.format_exception(error):
            sys.stderr.write(visible(line, keep="\n"))
    if isinstance(error, Cancelled):
        return print_message(str(error), INTERRUPTED)
    if isinstance(error, OSError) and error.filename is None and error.errno == errno.ENOSPC:
        return print_message("the output cannot be written: no space left on device", FAILED)
    if isinstance(error, ConfigurationError):
        for problem in error.problems:
            print_message(problem)
        return CONFIGURATION
    if isinstance(error, SyncError):
        return print_message(str(error), FAILED)
    if type(error).__module__.startswith("psycopg"):
        from sync_pipeline.sync.attempt import database_error

        return print_message(str(database_error(error)), CONFIGURATION if _is_away(error) else FAILED)
    if type(error).__module__.startswith(("sqlalchemy", "dagster_postgres")):
        from sync_pipeline.orchestration.storage import storage_problem

        if (problem_line := storage_problem(error)) is not None:
            return print_message(problem_line, CONFIGURATION)
    if isinstance(error, typer.Abort):
        return print_message("interrupted; nothing was changed", INTERRUPTED)
    # Python hands bytes that are no text on as surrogates, which no database takes.
    if isinstance(error, UnicodeEncodeError) and (wrong := [a for a in arguments if not _is_text(a)]):
        return print_message(f"the argument {wrong[0]} is not UTF-8; write it in UTF-8", CONFIGURATION)
    # Usage errors of the option parser have a message for people; their class moved between its versions.
    if callable(format_message := getattr(error, "format_message", None)):
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "scm-sync"
        return print_message(f"{format_message().rstrip('.')}; see: {command} --help", CONFIGURATION)
    return print_message(
        f"unexpected {type(error).__name__}: {error}; run scm-sync --debug for the traceback", FAILED
    )


def _is_text(argument: str) -> bool:
    return argument == argument.encode(errors="replace").decode()


def _is_away(error: Exception) -> bool:
    """Whether the database is not there, or not to be written to: a person has to correct it first."""
    import psycopg

    is_gone = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return is_gone or isinstance(error, psycopg.errors.ReadOnlySqlTransaction)


def _pipe_closed() -> int:
    """The reader of our output went away, as ``head`` does; the exit code is that of SIGPIPE."""
    # Otherwise the interpreter prints an error when it flushes at its end.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return CLOSED_PIPE


def _show_version(wanted: bool) -> None:
    if wanted:
        print_line(f"scm-sync {__version__}")
        raise typer.Exit


@app.callback()
def _global(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Set a setting for this command; may be repeated."),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    if debug:
        os.environ["SCM_DEBUG"] = "1"
    for assignment in assignments or []:
        name, separator, value = assignment.partition("=")
        name = name.strip().lower().replace("-", "_")
        if not separator or not re.fullmatch(r"[a-z0-9_]+", name):
            raise ConfigurationError("--set: write NAME=VALUE, such as --set chunk_revisions=500")
        from sync_pipeline.settings import FIELDS, SECRETS
        from sync_pipeline.settings.given import ONLY_IN_FILE, advice, current_name

        name = current_name(name, f"--set {name}")
        if name not in FIELDS or name in ONLY_IN_FILE:
            hint = advice(name.removeprefix("scm_"), FIELDS)
            raise ConfigurationError(f"--set {name}: there is no such setting; {hint}")
        if name in SECRETS or re.search(r"://[^/\s:@]*:[^\s@]+@", value):
            raise ConfigurationError(
                f"--set {name}: a command line is seen by everybody; use the environment or the file"
            )
        # Through the environment it also reaches the processes that this command starts.
        os.environ[f"SCM_{name.upper()}"] = value
        os.environ["SCM_SET"] = ",".join([*filter(None, [os.environ.get("SCM_SET")]), name])
