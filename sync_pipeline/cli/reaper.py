"""``scm-sync reaper``: end what nobody works on any more, without a daemon.

Belongs here: the command, its loop, and how a pass looks to a person. Does not belong here: what is lost
(:mod:`sync_pipeline.operations.reaper`), and what is left over in Dagster
(:mod:`sync_pipeline.orchestration.reaper`).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sync_pipeline.cli.shared import (
    AsJson,
    DryRun,
    dagster_instance,
    now,
    open_database,
    print_json,
    print_message,
    say,
    stopped_politely,
)
from sync_pipeline.errors import ConfigurationError, SyncError
from sync_pipeline.exit_codes import FAILED, PARTIAL, SUCCESS

if TYPE_CHECKING:
    from sync_pipeline.operations.reaper import ReapReport
    from sync_pipeline.settings import Settings
    from sync_pipeline.store.database import Database


def reaper_command(
    once: Annotated[bool, typer.Option("--once", help="One pass; the default.")] = False,
    loop: Annotated[bool, typer.Option("--loop", help="Again and again, until it is stopped.")] = False,
    interval: Annotated[
        int | None,
        typer.Option(
            "--interval-seconds",
            min=1,
            max=86_400,
            metavar="N",
            help="Pause between two passes of a loop; default: the setting reaper_interval_seconds.",
        ),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy",
            metavar="failed|pending",
            help="What a job of a lost owner becomes: failed waits before its next attempt, pending is due "
            "at once; default: the setting reaper_policy.",
        ),
    ] = None,
    as_json: AsJson = False,
    dry_run: DryRun = False,
) -> int:
    """End jobs, runs and leases of processes that are gone. It also ends waiting jobs that nobody needs. The
    sensor `reaper` does the same every minute; both at once are harmless."""
    import psycopg

    from sync_pipeline.operations.formatting import counted
    from sync_pipeline.settings import load_settings
    from sync_pipeline.sync.attempt import database_error

    if once and loop:
        raise ConfigurationError("--once and --loop exclude each other; give one of them")
    if policy not in (None, "failed", "pending"):
        raise ConfigurationError(f"--policy: {policy!r} is neither failed nor pending")
    settings = load_settings(reaper_policy=policy, reaper_interval_seconds=interval)
    with open_database(settings) as database, stopped_politely() as stop:
        if not loop:
            return _show(_pass(database, settings, dry_run, once=True), as_json, in_line=False)
        code = SUCCESS
        passes = 0
        while not stop.is_set():
            try:
                code = max(code, _show(_pass(database, settings, dry_run, once=False), as_json, in_line=True))
            except (SyncError, psycopg.Error) as error:
                # What is wrong from the start a person has to set right; later it may pass.
                failure = database_error(error)
                if not passes and isinstance(failure, ConfigurationError):
                    raise failure from None
                code = max(
                    code,
                    print_message(
                        f"{failure}; trying again in {settings.reaper.interval_seconds} s", PARTIAL
                    ),
                )
            passes += 1
            stop.wait(settings.reaper.interval_seconds)
        print_message(f"stopped after {counted(passes, 'pass', 'passes')}")
        return code


def _pass(database: Database, settings: Settings, dry_run: bool, *, once: bool) -> ReapReport:
    from sync_pipeline.operations.reaper import LOOP, reap
    from sync_pipeline.store import heartbeats

    started = time.monotonic()
    with dagster_instance(settings, database) as instance:
        if instance is None:
            report = reap(database, settings, dry_run=dry_run)
        else:
            from sync_pipeline.orchestration.reaper import reap_all

            report = reap_all(database, settings, instance, dry_run=dry_run)
    if not dry_run:
        with database.connection() as conn:
            heartbeats.beat(
                conn,
                heartbeats.named(LOOP, settings.worker.pool),
                seconds=time.monotonic() - started,
                outcome=report.summary(),
                every=None if once else settings.reaper.interval_seconds,
            )
    return report


def _show(report: ReapReport, as_json: bool, *, in_line: bool) -> int:
    """Print a pass and return its exit code: 1 where some of it failed, 2 where all of it did."""
    code = SUCCESS if not report.errors else PARTIAL if report.items else FAILED
    if as_json:
        document: dict[str, Any] = {"at": now().isoformat(), **report.document(), "exit_code": code}
        print_json(document, in_line=in_line)
        return code
    when = f"{now():%Y-%m-%dT%H:%M:%SZ} " if in_line else ""
    for item in report.items:
        say(f"{when}{'would end: ' if report.dry_run else ''}{item.line}", flush=in_line)
    for error in report.errors:
        print_message(error, code)
    say(f"{when}{report.summary()}", flush=in_line)
    return code
