"""``scm-sync admin retention``: delete records of finished work that are older than they are kept.

Belongs here: the command and how its report looks to a person. Does not belong here: what may go
(:mod:`sync_pipeline.admin.retention`, :mod:`sync_pipeline.orchestration.retention`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sync_pipeline.cli import options, output, shared
from sync_pipeline.core.exit_codes import PARTIAL, SUCCESS

if TYPE_CHECKING:
    from sync_pipeline.admin.retention import RetentionReport


def retention_command(execute: options.Execute = False, as_json: options.AsJson = False) -> int:
    """Delete records that are older than they are kept. These are finished jobs, old events, and runs and
    ticks of Dagster (settings retention_...). The schedule `retention` does it every Sunday at 03:00 UTC."""
    from sync_pipeline.admin.retention import Until, retain

    with (
        shared.settings_and_database() as (settings, database),
        shared.stopped_politely() as stop,
        shared.dagster_instance(settings, database) as instance,
    ):
        if instance is None:
            report = retain(database, settings, execute=execute, until=Until(stop))
        else:
            from sync_pipeline.orchestration.retention import retain_all

            report = retain_all(database, settings, instance, execute=execute, until=Until(stop))
    code = PARTIAL if report.errors or report.stopped else SUCCESS
    document = {**report.document(), "exit_code": code}
    return output.print_document(document, as_json, lambda _: _print(report, execute))


def _print(report: RetentionReport, execute: bool) -> None:
    output.print_rows(
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
        output.print_message(error)
    output.print_line(report.summary() + ("" if execute else "; --execute deletes"))
