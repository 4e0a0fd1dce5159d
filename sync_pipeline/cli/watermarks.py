"""``scm-sync watermark``: what counts as covered, and a person's decisions about it.

Belongs here: setting and resetting coverage, and its history. Does not belong here: reading anything from a
source (:mod:`sync_pipeline.cli.runner`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from sync_pipeline.cli import options, output, shared
from sync_pipeline.core import clock

if TYPE_CHECKING:
    from sync_pipeline.core.model import Window
    from sync_pipeline.reports.runner import Bounds

app = options.group(
    "Coverage, and changes of it by hand.",
    examples=(
        "scm-sync watermark events gitlab:platform/api --job reviews",
        "scm-sync watermark reset gitlab:platform/api --job mrs --reason 'restored'",
    ),
)


@app.command("reset")
def watermark_reset(
    repo: options.RepoArgument,
    reason: options.Reason,
    job: options.Job = None,
    as_json: options.AsJson = False,
    dry_run: options.DryRun = False,
) -> int:
    """Count nothing as covered any more. Everything is read and compared again. Rows stay; jobs that run at
    this moment can write no more."""
    document = _set_coverage(repo, job, None, reason, dry_run=dry_run)
    return output.print_document(document, as_json, _print)


@app.command("set")
def watermark_set(
    repo: options.RepoArgument,
    reason: options.Reason,
    start_rev: options.StartRev = None,
    end_rev: options.EndRev = None,
    since: options.Since = None,
    until: options.Until = None,
    job: options.Job = None,
    as_json: options.AsJson = False,
    dry_run: options.DryRun = False,
) -> int:
    """Count exactly this window as covered. Everything outside is read again."""
    from sync_pipeline.reports.runner import Bounds

    bounds = Bounds(start_rev=start_rev, end_rev=end_rev, since=since, until=until)
    document = _set_coverage(repo, job, bounds, reason, dry_run=dry_run)
    return output.print_document(document, as_json, _print)


@app.command("events")
def watermark_events(
    repo: options.RepoArgument,
    job: options.Job = None,
    limit: Annotated[int, options.limit("The newest so many.")] = 20,
    as_json: options.AsJson = False,
) -> int:
    """Show every change of the coverage, with actor, reason and run."""
    from sync_pipeline.ledger import watermarks
    from sync_pipeline.registry.registration import find_repository
    from sync_pipeline.reports.runner import job_types_for

    with shared.settings_and_database() as (_, database):
        repository = find_repository(database, repo)
        with database.connection() as conn:
            rows = [
                {"job_type": str(job_type), **row}
                for job_type in job_types_for(repository, job)
                for row in watermarks.events(conn, repository.repo_id, job_type, limit)
            ]
    rows = sorted(rows, key=lambda row: row["event_id"], reverse=True)[:limit]
    return output.print_document(rows, as_json, output.print_rows)


def _set_coverage(
    repo: str, job: str | None, bounds: Bounds | None, reason: str, *, dry_run: bool
) -> dict[str, Any]:
    from sync_pipeline.ledger import watermarks
    from sync_pipeline.registry.registration import find_repository
    from sync_pipeline.reports import runner

    with shared.settings_and_database() as (_, database):
        repository = find_repository(database, repo)
        job_type = runner.job_type_for(repository, job)
        key = repository.repo_id, job_type
        with database.connection() as conn:
            before = watermarks.get(conn, *key)
            covered: tuple[Window, ...] = ()
            if bounds is not None:
                head = before.head_rev or 0
                covered = (runner.coverage_to_set(repository, job_type, bounds, head, clock.now()),)
            if not dry_run:
                watermarks.replace(
                    conn,
                    repo_id=repository.repo_id,
                    job_type=job_type,
                    covered=covered,
                    actor=shared.actor(),
                    reason=reason,
                )
            after = watermarks.get(conn, *key)
    return {
        "spec": repository.spec,
        "job_type": str(job_type),
        "covered_before": [str(window) for window in before.covered],
        "covered_after": [str(window) for window in covered],
        "watermark_before": before.watermark,
        "watermark_after": None if dry_run else after.watermark,
        "dry_run": dry_run,
    }


def _print(document: Mapping[str, Any]) -> None:
    lists = {
        name: ", ".join(value) or "nothing" for name, value in document.items() if isinstance(value, list)
    }
    output.print_facts({**document, **lists})
