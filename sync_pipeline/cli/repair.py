"""``scm-sync repair``: mend what is stored.

Belongs here: what needs no source, such as deriving facts anew from their raw. Does not belong here: reading
again what may have changed at the source (:mod:`sync_pipeline.cli.runner`).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sync_pipeline.cli import options, output, reports, shared
from sync_pipeline.cli.progress import shown
from sync_pipeline.core import clock

if TYPE_CHECKING:
    from sync_pipeline.core.model import JobType, Repository
    from sync_pipeline.database.pool import Database
    from sync_pipeline.settings import Settings

app = options.group(
    "Derive what is stored anew, without asking a source.",
    examples=("scm-sync repair remap --repo gitlab:platform/api --dry-run",),
)


@app.command("remap")
def repair_remap(
    repo: options.Repo,
    job: options.Job = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            metavar="TIME",
            help="Only facts whose time at the source is this or later, and those without one; UTC without a "
            "zone. Default: all.",
        ),
    ] = None,
    as_json: options.AsJson = False,
    dry_run: options.DryRun = False,
) -> int:
    """Derive facts of GitLab anew from the stored JSON. It asks no server."""
    from sync_pipeline.registry import registration
    from sync_pipeline.reports import runner
    from sync_pipeline.sync import remap

    with shared.settings_and_database() as (settings, database):
        repository = registration.find_repository(database, repo)
        remap.require_raw(repository)
        wanted = runner.job_types_for(repository, job)
        start = None if since is None else runner.time_window(runner.Bounds(since=since), clock.now()).since
        documents = [
            _plan(database, repository, one, start, as_json)
            if dry_run
            else _remap(settings, database, repository, one, start, as_json)
            for one in wanted
        ]
    document = runner.together(documents)
    if dry_run:
        return output.print_document(document, as_json, _print_plan)
    return reports.finish_runner(document, as_json)


def _print_plan(document: Mapping[str, Any]) -> None:
    for one in document.get("jobs", [document]):
        rest = f", {one['rows_unreadable']} cannot be read" if one["rows_unreadable"] else ""
        what = f"{one['rows_to_change']} of {one['rows_read']} rows would change"
        output.print_line(f"{one['repo']} {one['job']}: {what}{rest}")


def _remap(
    settings: Settings,
    database: Database,
    repository: Repository,
    job_type: JobType,
    since: datetime | None,
    as_json: bool,
) -> dict[str, Any]:
    from sync_pipeline.reports import runner
    from sync_pipeline.sync import remap
    from sync_pipeline.sync.engine import Syncer

    reason = "scm-sync repair remap"
    request = remap.request(repository, job_type, since, actor=shared.actor(), reason=reason)
    started_at = clock.now()
    with shown("remap", quiet=as_json, changed="changed") as show, shared.stopped_politely() as cancel:
        report = Syncer(database, settings).run(request, cancel=cancel, progress=show)
    return runner.remap_document(
        repository, job_type, report, since=since, started_at=started_at, finished_at=clock.now()
    )


def _plan(
    database: Database, repository: Repository, job_type: JobType, since: datetime | None, as_json: bool
) -> dict[str, Any]:
    from sync_pipeline.reports import runner
    from sync_pipeline.sync import remap

    with shown("remap", quiet=as_json, changed="would change") as show, shared.stopped_politely() as cancel:
        counts = remap.estimate(database, repository, job_type, since, cancel=cancel, progress=show)
    return runner.remap_plan_document(repository, job_type, counts, since=since)
