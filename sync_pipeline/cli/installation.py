"""The commands about the installation as a whole: ``env``, ``ui``, ``up``, ``doctor``, ``status`` and
``completeness``.

Belongs here: what has no group of its own. Does not belong here: how the reports look to a person
(:mod:`sync_pipeline.cli.reports`).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sync_pipeline.cli import options, output, shared

if TYPE_CHECKING:
    from sync_pipeline.reports.doctor import DagsterChecks, Finding

STATUS_EXAMPLES = options.examples_text(
    "scm-sync status --repo gitlab:platform/api",
    "scm-sync status --job mrs --json",
)
"""The end of its help."""

Host = Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Address to listen on.")]
Port = Annotated[int, typer.Option("--port", min=0, max=65535, help="0 takes a free one.")]
ReadOnly = Annotated[bool, typer.Option("--read-only", help="For viewers: nothing can be started.")]


def env_command(as_json: options.AsJson = False) -> int:
    """Print what a shell needs: eval "$(scm-sync env)"."""
    from sync_pipeline.runtime import environment

    variables = environment.environment_variables(shared.read_settings())
    return output.print_document(
        variables, as_json, lambda _: output.print_raw(environment.shell_exports(variables))
    )


def ui_command(host: Host = "127.0.0.1", port: Port = 0, read_only: ReadOnly = False) -> None:
    """Serve the Dagster UI behind a token."""
    settings = shared.read_settings()
    with shared.open_database(settings):
        pass  # one clear line now instead of a page full of errors later
    from sync_pipeline.orchestration import ui

    ui.serve(settings, host=host, port=port, read_only=read_only)


def up_command(host: Host = "127.0.0.1", port: Port = 0, read_only: ReadOnly = False) -> None:
    """Serve the Dagster UI and run the daemon with its sensors."""
    settings = shared.read_settings()
    with shared.open_database(settings):
        pass
    from sync_pipeline.orchestration import ui

    ui.up(settings, host=host, port=port, read_only=read_only)


def doctor_command(as_json: options.AsJson = False) -> int:
    """Check the installation, with a remedy for what is wrong. Exit code 0: all is well, 1: warnings, 2:
    failures."""
    from sync_pipeline.orchestration.diagnosis import dagster_checks
    from sync_pipeline.reports import doctor

    document = doctor.document(_examined(dagster_checks, quiet=as_json or not sys.stderr.isatty()))
    return output.print_document(document, as_json, _print_doctor)


def _print_doctor(document: Mapping[str, Any]) -> None:
    from sync_pipeline.cli import reports

    if sys.stdout.isatty():
        output.print_table(reports.doctor_table(document))
        output.print_line(reports.doctor_summary(document))
    else:
        output.print_rows(reports.doctor_rows(document))


def _examined(dagster_checks: DagsterChecks, *, quiet: bool) -> list[Finding]:
    """The findings of the doctor. On a terminal it prints the names of the checks that it awaits."""
    from sync_pipeline.reports import doctor

    if quiet:
        return list(doctor.examine(dagster_checks))
    from rich.console import Console

    with Console(stderr=True).status("looking") as line:

        def show(waiting: Sequence[str]) -> None:
            line.update(output.cell(f"looking at {', '.join(dict.fromkeys(waiting))}"))

        return list(doctor.examine(dagster_checks, show))


def status_command(
    repo: options.OfRepo = None,
    job: options.OfJob = None,
    as_json: options.AsJson = False,
) -> int:
    """Show how complete and how fresh each repository is. A summary of each server comes first, then each
    (repository, job type), the worst first."""
    from sync_pipeline.registry.registration import find_repository
    from sync_pipeline.reports import configuration, runner, status

    settings, given = shared.read_explained_settings()
    job_types = None if job is None else (job,)
    with shared.open_database(settings) as database:
        repository = None if repo is None else find_repository(database, repo)
        if repository is not None and job is not None:
            runner.job_types_for(repository, job)  # refuses one that it does not have
        sources = configuration.credential_sources(settings, given)
        document = status.status(database, settings, repository, job_types, sources)
    return output.print_document(document, as_json, _print_status)


def _print_status(document: Mapping[str, Any]) -> None:
    from sync_pipeline.cli import reports

    if not document["units"]:
        output.print_line("no repositories; add one: scm-sync repo add <spec>", error=True)
        return
    parts = [reports.status_levels, reports.status_obstacles, reports.status_limits, reports.status_liveness]
    if sys.stdout.isatty():
        output.print_table(reports.server_summary(document))
        output.print_line()
        output.print_table(reports.status_table(document, output.terminal_width()))
        parts = [reports.status_left_out, reports.status_explanations, reports.status_running, *parts]
    else:
        output.print_rows(reports.server_rows(document))
        output.print_line()
        output.print_rows(reports.status_rows(document))
    for lines in parts:
        for line in lines(document):
            output.print_wrapped(line)
    output.print_wrapped(reports.status_summary(document))


class GroupedBy(StrEnum):
    """The grouping of the statement."""

    INSTANCE = "instance"
    TENANT = "tenant"
    JOB_TYPE = "job_type"


def completeness_command(
    by: Annotated[GroupedBy, typer.Option("--by", help="Grouping of the lines.")] = GroupedBy.JOB_TYPE,
    as_json: options.AsJson = False,
) -> int:
    """Compare the rows that are expected with those that are stored. It also counts what is not known, for
    all active repositories."""
    from sync_pipeline.reports.completeness import completeness

    with shared.settings_and_database() as (settings, database):
        document = completeness(database, settings)
    return output.print_document(document, as_json, lambda found: _print_completeness(found, by))


def _print_completeness(document: Mapping[str, Any], by: GroupedBy) -> None:
    from sync_pipeline.cli import reports

    rows = reports.completeness_rows(document, by)
    if not sys.stdout.isatty():
        output.print_rows(rows)
    elif output.fits_terminal(table := reports.completeness_table(document, by)):
        output.print_table(table)
    else:  # a line for each value: words of a table that is too wide break anywhere
        output.print_rows(reports.without_zeros(rows))
    for line in reports.unreadable_lines(document):
        output.print_line(line)
    output.print_line(reports.completeness_summary(document))
