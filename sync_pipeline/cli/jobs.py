"""``scm-sync admin jobs``: what waits, runs or died, and what a person does about it.

Belongs here: the commands, and how a job looks to a person. Does not belong here: what they do
(:mod:`sync_pipeline.admin.jobs`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from sync_pipeline.cli import options, output, shared
from sync_pipeline.core.errors import ConfigurationError
from sync_pipeline.core.formatting import age, second
from sync_pipeline.core.model import JobStatus, Mode

if TYPE_CHECKING:
    from sync_pipeline.admin.jobs import Action
    from sync_pipeline.core.documents.ledger import Job, JobAction, JobList, ShownJob
    from sync_pipeline.database.pool import Database
    from sync_pipeline.ledger.job_actions import Filters

app = options.group(
    "Jobs that wait, run or died.",
    examples=(
        "scm-sync admin jobs list --status dead",
        "scm-sync admin jobs reset --repo gitlab:platform/api --reason 'new token'",
    ),
)

_job_id = options.uuid_of("job")
Ids = Annotated[list[UUID] | None, typer.Argument(metavar="ID", help="Jobs by their ids.", parser=_job_id)]
OfMode = Annotated[
    Mode | None, options.word("--mode", Mode, "incremental, backfill, repair or probe.", "MODE")
]
OfWorker = Annotated[
    str | None, typer.Option("--worker", metavar="HOST:PID", help="That this worker is at work on.")
]
Older = Annotated[
    str | None, typer.Option("--older-than", metavar="LENGTH", help="Made so long ago: 90s, 30m, 2h or 3d.")
]


@app.command("list")
def jobs_list(
    status: Annotated[
        list[JobStatus] | None,
        options.word("--status", JobStatus, "pending, running, failed, dead or completed.", "STATUS"),
    ] = None,
    repo: options.OfRepo = None,
    instance: options.OfInstance = None,
    tenant: options.OfTenant = None,
    job: options.OfJob = None,
    mode: OfMode = None,
    worker: OfWorker = None,
    older: Older = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Also what is done: completed, given up, or done by a later job.")
    ] = False,
    limit: Annotated[int, options.limit("Jobs that are printed.", 10_000)] = 50,
    as_json: options.AsJson = False,
) -> int:
    """List jobs that run, are dead or wait. They come in this order, the most urgent first."""
    from sync_pipeline.admin import jobs
    from sync_pipeline.ledger.job_actions import Filters

    with shared.settings_and_database() as (_, database):
        filters = Filters(
            instance=instance,
            tenant=tenant,
            job_type=job,
            mode=mode,
            worker=worker,
            statuses=status,
            everything=everything or JobStatus.COMPLETED in (status or ()),
        )
        document = jobs.listing(database, _narrowed(database, filters, repo, older), limit)
    return output.print_document(document, as_json, _print_list)


def _print_list(document: JobList) -> None:
    from sync_pipeline.admin import jobs

    output.print_rows([_row(one) for one in document["jobs"]])
    more = f"; {document['more']:,} more, see --limit" if document["more"] else ""
    output.print_line(f"{jobs.summary(document)}{more}")


@app.command("show")
def jobs_show(
    job_id: Annotated[UUID, typer.Argument(metavar="ID", help="The job.", parser=_job_id)],
    as_json: options.AsJson = False,
) -> int:
    """Show one job, its reason, settings, attempts, and what people did."""
    from sync_pipeline.admin import jobs

    with shared.settings_and_database() as (_, database):
        document = jobs.show(database, job_id)
    return output.print_document(document, as_json, _print_job)


def _print_job(document: ShownJob) -> None:
    apart = ("configuration", "history", "events")
    output.print_facts({name: value for name, value in document.items() if name not in apart})
    if (kept := document["configuration"]) is not None:
        output.print_line(f"configuration: {kept['hash']}, {_changed(kept['changed'])}")
    for attempt in document["history"]:
        end = second(attempt["finished_at"]) if attempt["finished_at"] else "now"
        output.print_line(
            f"attempt {attempt['attempt']}: {second(attempt['started_at'])} to {end}, "
            f"{attempt['status']}, {attempt['rows_read']:,} rows, {attempt['calls']:,} requests, "
            f"by {attempt['worker']}"
            + (f": {attempt['error']}" if attempt["error"] else "")
            + f" (scm-sync admin runs show {attempt['run_id']})"
        )
    for event in document["events"]:
        output.print_line(
            f"{event['action']} at {second(event['created_at'])} by {event['actor']}: "
            f"{event['old_status']} -> {event['new_status']} ({event['reason']})"
        )


@app.command("reset")
def jobs_reset(
    reason: options.Reason,
    ids: Ids = None,
    repo: options.OfRepo = None,
    instance: options.OfInstance = None,
    tenant: options.OfTenant = None,
    job: options.OfJob = None,
    mode: OfMode = None,
    older: Older = None,
    everything: Annotated[bool, typer.Option("--all", help="Every dead or failed job.")] = False,
    dry_run: options.DryRun = False,
    as_json: options.AsJson = False,
) -> int:
    """Try dead and failed jobs again, as often as new ones. Mend the cause first."""
    from sync_pipeline.admin.jobs import RESET
    from sync_pipeline.ledger.job_actions import Filters

    filters = Filters(ids or None, instance=instance, tenant=tenant, job_type=job, mode=mode)
    return _handle(RESET, filters, repo, older, reason, dry_run, as_json, everything=everything)


@app.command("drop")
def jobs_drop(
    reason: options.Reason,
    ids: Ids = None,
    repo: options.OfRepo = None,
    instance: options.OfInstance = None,
    tenant: options.OfTenant = None,
    job: options.OfJob = None,
    mode: OfMode = None,
    older: Older = None,
    everything: Annotated[bool, typer.Option("--all", help="Every job that waits.")] = False,
    dry_run: options.DryRun = False,
    as_json: options.AsJson = False,
) -> int:
    """Give waiting jobs up. Nothing stored is touched; what they had to read stays a gap that shows."""
    from sync_pipeline.admin.jobs import DROP
    from sync_pipeline.ledger.job_actions import Filters

    filters = Filters(ids or None, instance=instance, tenant=tenant, job_type=job, mode=mode)
    return _handle(DROP, filters, repo, older, reason, dry_run, as_json, everything=everything)


@app.command("release")
def jobs_release(
    reason: options.Reason,
    ids: Ids = None,
    worker: OfWorker = None,
    dry_run: options.DryRun = False,
    as_json: options.AsJson = False,
) -> int:
    """Take jobs from a worker that hangs. They wait again, and later writes of that worker are refused. Its
    committed rows stay.
    """
    from sync_pipeline.admin.jobs import RELEASE
    from sync_pipeline.ledger.job_actions import Filters

    return _handle(RELEASE, Filters(ids or None, worker=worker), None, None, reason, dry_run, as_json)


def _narrowed(database: Database, filters: Filters, repo: str | None, older: str | None) -> Filters:
    """The filters, also of a repository and of an age."""
    from sync_pipeline.registry.registration import find_repository

    return replace(
        filters,
        repo_id=None if repo is None else find_repository(database, repo).repo_id,
        older=None if older is None else options.length_of("--older-than", older),
    )


def _handle(
    action: Action,
    filters: Filters,
    repo: str | None,
    older: str | None,
    reason: str,
    dry_run: bool,
    as_json: bool,
    *,
    everything: bool = False,
) -> int:
    from sync_pipeline.admin import jobs
    from sync_pipeline.ledger.job_actions import By, Filters

    with shared.settings_and_database() as (settings, database):
        filters = _narrowed(database, filters, repo, older)
        is_filtered = replace(filters, job_ids=None) != Filters()
        if sum((bool(filters.job_ids), is_filtered, everything)) != 1:
            also = "" if action is jobs.RELEASE else " or --all"
            raise ConfigurationError(
                f"give ids, or options that choose jobs{also}; one of these, not several"
            )
        by = By(shared.actor(), reason)
        attempts = settings.jobs.max_attempts
        document = jobs.handle(database, action, filters, by, attempts=attempts, dry_run=dry_run)
    return output.print_document(document, as_json, lambda found: _print_handled(found, action))


def _print_handled(document: JobAction, action: Action) -> None:
    from sync_pipeline.admin import jobs

    for one in document["jobs"]:
        what = f"would {action.name}" if document["dry_run"] else action.done
        line = what if one["done"] else f"left as it is: {one['why_not']}"
        output.print_line(f"{one['job_id']} {one['path']} {one['job']} {one['mode']}: {line}")
    output.print_line(jobs.handled(document))


def _changed(changed: dict[str, object] | None) -> str:
    if changed is None:
        return "kept without its settings by an earlier version"
    if not changed:
        return "every number, switch and date at its default"
    return ", ".join(f"{name} = {str(value).lower()}" for name, value in sorted(changed.items()))


def _row(one: Job) -> dict[str, object]:
    if one["status"] == "running":
        claimed = f"{one['worker']}, claimed until {one['claim_expires_at']:%H:%M:%S} unless renewed"
        why = f"{one['reason']}; {claimed}" if one["reason"] else claimed
    else:
        why = one["error"] or one["reason"]
    if one["status"] == "failed" and one["not_before"]:
        why = f"next at {one['not_before']:%H:%M:%S}; {why}"
    window = one["window"]
    return {
        "id": one["job_id"],
        "repo": one["path"],
        "job": one["job"],
        "mode": one["mode"],
        "window": window and "..".join(str(value)[:16] for value in window.values()),
        "status": one["status"],
        "priority": one["priority"],
        "attempts": f"{one['attempts']} of {one['max_attempts']}",
        "age": age(one["age_seconds"]),
        "why": why,
    }
