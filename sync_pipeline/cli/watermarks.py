"""``scm-sync watermark``: what counts as complete, and a person's decisions about it.

Belongs here: setting and resetting coverage, and its history. Does not belong here: reading anything from a
source (:mod:`sync_pipeline.cli.runner`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sync_pipeline.cli.shared import (
    AsJson,
    DryRun,
    EndRev,
    Job,
    RepoArgument,
    Since,
    StartRev,
    Until,
    actor,
    group,
    now,
    open_database,
    print_facts,
    print_json,
    print_rows,
    read_settings,
)

if TYPE_CHECKING:
    from sync_pipeline.model import Window
    from sync_pipeline.operations.runner import Bounds

app = group(
    "What counts as complete, and a person's decisions about it.",
    examples=(
        "scm-sync watermark events gitlab:platform/api --job reviews",
        "scm-sync watermark reset gitlab:platform/api --job mrs --reason 'restored'",
    ),
)


@app.command("reset")
def watermark_reset(
    repo: RepoArgument,
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Why; it is recorded with your name.")
    ],
    job: Job = None,
    as_json: AsJson = False,
    dry_run: DryRun = False,
) -> None:
    """Count nothing as complete any more. Everything is read and compared again. Rows stay; jobs that run at
    this moment can write no more."""
    _set_coverage(repo, job, None, reason, as_json=as_json, dry_run=dry_run)


@app.command("set")
def watermark_set(
    repo: RepoArgument,
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Why; it is recorded with your name.")
    ],
    start_rev: StartRev = None,
    end_rev: EndRev = None,
    since: Since = None,
    until: Until = None,
    job: Job = None,
    as_json: AsJson = False,
    dry_run: DryRun = False,
) -> None:
    """Count exactly this window as complete. What lies outside is read again."""
    from sync_pipeline.operations.runner import Bounds

    bounds = Bounds(start_rev=start_rev, end_rev=end_rev, since=since, until=until)
    _set_coverage(repo, job, bounds, reason, as_json=as_json, dry_run=dry_run)


@app.command("events")
def watermark_events(
    repo: RepoArgument,
    job: Job = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="The newest so many.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Show every change of the coverage, with actor, reason and run."""
    from sync_pipeline.operations.registration import find_repository
    from sync_pipeline.operations.runner import job_types_for
    from sync_pipeline.store import watermarks

    with open_database(read_settings()) as database:
        repository = find_repository(database, repo)
        with database.connection() as conn:
            rows = [
                {"job_type": str(job_type), **row}
                for job_type in job_types_for(repository, job)
                for row in watermarks.events(conn, repository.repo_id, job_type, limit)
            ]
    rows = sorted(rows, key=lambda row: row["event_id"], reverse=True)[:limit]
    if as_json:
        print_json(rows)
    else:
        print_rows(rows)


def _set_coverage(
    repo: str,
    job: str | None,
    bounds: Bounds | None,
    reason: str,
    *,
    as_json: bool,
    dry_run: bool,
) -> None:
    from sync_pipeline.operations import runner
    from sync_pipeline.operations.registration import find_repository
    from sync_pipeline.store import watermarks

    with open_database(read_settings()) as database:
        repository = find_repository(database, repo)
        job_type = runner.job_type_for(repository, job)
        with database.connection() as conn:
            before = watermarks.get(conn, repository.repo_id, job_type)
            covered: tuple[Window, ...] = ()
            if bounds is not None:
                covered = (runner.coverage_to_set(repository, job_type, bounds, before.head_rev or 0, now()),)
            if not dry_run:
                watermarks.replace(
                    conn,
                    repo_id=repository.repo_id,
                    job_type=job_type,
                    covered=covered,
                    actor=actor(),
                    reason=reason,
                )
                after = watermarks.get(conn, repository.repo_id, job_type)
    document = {
        "spec": repository.spec,
        "job_type": str(job_type),
        "covered_before": [str(window) for window in before.covered],
        "covered_after": [str(window) for window in covered],
        "watermark_before": before.watermark,
        "watermark_after": None if dry_run else after.watermark,
        "dry_run": dry_run,
    }
    if as_json:
        print_json(document)
    else:
        shown = {
            name: ", ".join(v) or "nothing" if isinstance(v, list) else v for name, v in document.items()
        }
        print_facts(shown)
