"""``scm-sync repair``: mend what is stored.

Belongs here: what needs no source, such as deriving facts anew from their raw. Does not belong here: reading
again what may have changed at the source (:mod:`sync_pipeline.cli.runner`).
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sync_pipeline.cli.shared import (
    AsJson,
    DryRun,
    Repo,
    actor,
    finish_runner,
    group,
    now,
    open_database,
    print_json,
    read_settings,
    say,
    stopped_politely,
)
from sync_pipeline.exit_codes import SUCCESS

if TYPE_CHECKING:
    from sync_pipeline.model import JobType, Repository
    from sync_pipeline.settings import Settings
    from sync_pipeline.store.database import Database

app = group(
    "Derive what is stored anew, without asking a source.",
    examples=("scm-sync repair remap --repo gitlab:platform/api --dry-run",),
)


@app.command("remap")
def repair_remap(
    repo: Repo,
    job: Annotated[
        str | None,
        typer.Option(
            "--job",
            metavar="TYPE",
            help="commits, merge_requests (mrs) or reviews; default: all that the repository has.",
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            metavar="TIME",
            help="Only facts whose time at the source is this or later, and those without one; UTC without a "
            "zone. Default: all.",
        ),
    ] = None,
    as_json: AsJson = False,
    dry_run: DryRun = False,
) -> int:
    """Derive facts of GitLab anew from the stored JSON. It asks no server."""
    from sync_pipeline.operations import registration, runner
    from sync_pipeline.sync import remap

    settings = read_settings()
    with open_database(settings) as database:
        repository = registration.find_repository(database, repo)
        remap.require_raw(repository)
        wanted = runner.job_types_for(repository, job)
        start = None if since is None else runner.time_window(runner.Bounds(since=since), now()).since
        derive = _would_remap if dry_run else _remap
        documents = [derive(settings, database, repository, one, start, as_json) for one in wanted]
    document = runner.together(documents)
    if not dry_run:
        return finish_runner(document, as_json)
    if as_json:
        print_json(document)
    else:
        for one in documents:
            rest = f", {one['rows_unreadable']} cannot be read" if one["rows_unreadable"] else ""
            what = f"{one['rows_to_change']} of {one['rows_read']} rows would change"
            say(f"{one['repo']} {one['job']}: {what}{rest}")
    return SUCCESS


def _remap(
    settings: Settings,
    database: Database,
    repository: Repository,
    job_type: JobType,
    since: datetime | None,
    as_json: bool,
) -> dict[str, Any]:
    from sync_pipeline.cli.progress import shown
    from sync_pipeline.operations import runner
    from sync_pipeline.sync import remap
    from sync_pipeline.sync.engine import Syncer

    reason = "scm-sync repair remap"
    request = remap.request(repository, job_type, since, actor=actor(), reason=reason)
    started_at = now()
    with shown("remap", quiet=as_json, changed="changed") as show, stopped_politely() as cancel:
        report = Syncer(database, settings).run(request, cancel=cancel, progress=show)
    return runner.remap_document(
        repository, job_type, report, since=since, started_at=started_at, finished_at=now()
    )


def _would_remap(
    settings: Settings,
    database: Database,
    repository: Repository,
    job_type: JobType,
    since: datetime | None,
    as_json: bool,
) -> dict[str, Any]:
    from sync_pipeline.cli.progress import shown
    from sync_pipeline.operations import runner
    from sync_pipeline.sync import remap

    with shown("remap", quiet=as_json, changed="would change") as show, stopped_politely() as cancel:
        counts = remap.look_ahead(database, repository, job_type, since, cancel=cancel, progress=show)
    return runner.remap_plan_document(repository, job_type, counts, since=since)
