"""``scm-sync admin retention``: delete records of finished work that are older than they are kept.

Belongs here: the command and how its report looks to a person. Does not belong here: what may go
(:mod:`sync_pipeline.operations.retention`, :mod:`sync_pipeline.orchestration.retention`).
"""

from __future__ import annotations

from typing import Annotated

import typer

from sync_pipeline.cli.shared import (
    AsJson,
    dagster_instance,
    open_database,
    print_json,
    print_message,
    print_rows,
    read_settings,
    say,
    stopped_politely,
)
from sync_pipeline.exit_codes import PARTIAL, SUCCESS


def retention_command(
    execute: Annotated[
        bool,
        typer.Option("--execute/--dry-run", help="Delete, or only count what would go; default: count."),
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Delete records that are older than they are kept. These are finished jobs, old events, and runs and
    ticks of Dagster (settings retention_...). The schedule `retention` does it every Sunday at 03:00 UTC."""
    from sync_pipeline.operations.retention import Until, retain

    settings = read_settings()
    with (
        open_database(settings) as database,
        stopped_politely() as stop,
        dagster_instance(settings, database) as instance,
    ):
        if instance is None:
            report = retain(database, settings, execute=execute, until=Until(stop))
        else:
            from sync_pipeline.orchestration.retention import retain_all

            report = retain_all(database, settings, instance, execute=execute, until=Until(stop))
    code = PARTIAL if report.errors or report.stopped else SUCCESS
    if as_json:
        print_json({**report.document(), "exit_code": code})
        return code
    print_rows(
        [
            {
                "records": one.name,
                "kept": f"{one.days:g} days" if one.days else "for ever",
                "older": one.found,
                "deleted": one.deleted if execute else "",
                "still needed": one.kept or "",
            }
            for one in report.kinds
        ]
    )
    for error in report.errors:
        print_message(error, code)
    say(report.summary() + ("" if execute else "; --execute deletes"))
    return code
