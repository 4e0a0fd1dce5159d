"""``scm-sync admin jobs``: what waits, runs or died, and what a person does about it.

Belongs here: the commands, and how a job looks to a person. Does not belong here: what they do
(:mod:`sync_pipeline.operations.jobs`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from sync_pipeline.cli.shared import (
    NAMES,
    AsJson,
    DryRun,
    actor,
    group,
    length_of,
    open_database,
    print_facts,
    print_json,
    print_rows,
    read_settings,
    say,
)
from sync_pipeline.errors import ConfigurationError
from sync_pipeline.exit_codes import PARTIAL, SUCCESS

if TYPE_CHECKING:
    from sync_pipeline.operations.jobs import Action
    from sync_pipeline.store.database import Database
    from sync_pipeline.store.job_actions import Filters

app = group(
    "Jobs that wait, run or died.",
    examples=(
        "scm-sync admin jobs list --status dead",
        "scm-sync admin jobs reset --repo gitlab:platform/api --reason 'new token'",
    ),
)

Ids = Annotated[list[str] | None, typer.Argument(metavar="ID", help="Jobs by their ids.")]
Repo = Annotated[str | None, typer.Option("--repo", metavar="SPEC", help=f"Of this repository: {NAMES}")]
Instance = Annotated[str | None, typer.Option("--instance", metavar="HOST", help="Of this server.")]
Tenant = Annotated[str | None, typer.Option("--tenant", metavar="NAME", help="Of this tenant.")]
Job = Annotated[str | None, typer.Option("--job", metavar="TYPE", help="Of this job type.")]
InMode = Annotated[
    str | None, typer.Option("--mode", metavar="MODE", help="incremental, backfill, repair or probe.")
]
Worker = Annotated[
    str | None, typer.Option("--worker", metavar="HOST:PID", help="That this worker is at work on.")
]
Older = Annotated[
    str | None, typer.Option("--older-than", metavar="LENGTH", help="Made so long ago: 90s, 30m, 2h or 3d.")
]
Why = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; it is kept with your name.")]


@app.command("list")
def jobs_list(
    status: Annotated[
        list[str] | None,
        typer.Option("--status", metavar="STATUS", help="pending, running, failed, dead or completed."),
    ] = None,
    repo: Repo = None,
    instance: Instance = None,
    tenant: Tenant = None,
    job: Job = None,
    mode: InMode = None,
    worker: Worker = None,
    older: Older = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Also what is done: completed, given up, or done by a later job.")
    ] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000, help="Jobs that are printed.")] = 50,
    as_json: AsJson = False,
) -> None:
    """List jobs that run, are dead or wait. They come in this order, the most urgent first."""
    from dataclasses import replace

    from sync_pipeline.model import JobStatus
    from sync_pipeline.operations import jobs

    statuses = None if status is None else [_one_of(JobStatus, text, "--status") for text in status]
    with open_database(read_settings()) as database:
        filters = _filters(database, None, repo, instance, tenant, job, mode, worker, older)
        all_of_it = everything or (statuses is not None and JobStatus.COMPLETED in statuses)
        filters = replace(filters, statuses=statuses, everything=all_of_it)
        document = jobs.listing(database, filters, limit)
    if as_json:
        print_json(document)
        return
    print_rows([_row(one) for one in document["jobs"]])
    more = f"; {document['more']:,} more, see --limit" if document["more"] else ""
    say(f"{jobs.summary(document)}{more}")


@app.command("show")
def jobs_show(
    job_id: Annotated[str, typer.Argument(metavar="ID", help="The job.")], as_json: AsJson = False
) -> None:
    """Show one job, its reason, settings, attempts, and what people did."""
    from sync_pipeline.operations import jobs

    wanted = _uuid(job_id)
    with open_database(read_settings()) as database:
        document = jobs.show(database, wanted)
    if as_json:
        print_json(document)
        return
    apart = ("configuration", "history", "events")
    print_facts({name: value for name, value in document.items() if name not in apart})
    if (kept := document["configuration"]) is not None:
        say(f"configuration: {kept['hash']}, {_changed(kept['changed'])}")
    for one in document["history"]:
        end = f"{one['finished_at']:%Y-%m-%d %H:%M:%S}" if one["finished_at"] else "now"
        say(
            f"attempt {one['attempt']}: {one['started_at']:%Y-%m-%d %H:%M:%S} to {end}, {one['status']}, "
            f"{one['rows_read']:,} rows, {one['calls']:,} requests, by {one['worker']}"
            + (f": {one['error']}" if one["error"] else "")
            + f" (scm-sync admin runs show {one['run_id']})"
        )
    for one in document["events"]:
        say(
            f"{one['action']} at {one['created_at']:%Y-%m-%d %H:%M:%S} by {one['actor']}: "
            f"{one['old_status']} -> {one['new_status']} ({one['reason']})"
        )


@app.command("reset")
def jobs_reset(
    reason: Why,
    ids: Ids = None,
    repo: Repo = None,
    instance: Instance = None,
    tenant: Tenant = None,
    job: Job = None,
    mode: InMode = None,
    older: Older = None,
    everything: Annotated[bool, typer.Option("--all", help="Every dead or failed job.")] = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> int:
    """Try dead and failed jobs again, as often as new ones. Mend the cause first."""
    from sync_pipeline.operations.jobs import RESET

    with open_database(read_settings()) as database:
        filters = _filters(database, ids, repo, instance, tenant, job, mode, None, older)
        return _handle(database, RESET, filters, reason, dry_run, as_json, everything=everything)


@app.command("drop")
def jobs_drop(
    reason: Why,
    ids: Ids = None,
    repo: Repo = None,
    instance: Instance = None,
    tenant: Tenant = None,
    job: Job = None,
    mode: InMode = None,
    older: Older = None,
    everything: Annotated[bool, typer.Option("--all", help="Every job that waits.")] = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> int:
    """Give waiting jobs up. Nothing stored is touched; what they had to read stays a gap that shows."""
    from sync_pipeline.operations.jobs import DROP

    with open_database(read_settings()) as database:
        filters = _filters(database, ids, repo, instance, tenant, job, mode, None, older)
        return _handle(database, DROP, filters, reason, dry_run, as_json, everything=everything)


@app.command("release")
def jobs_release(
    reason: Why,
    ids: Ids = None,
    worker: Worker = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> int:
    """Take jobs from a worker that hangs. They wait again, and whatever it still writes is refused. What it
    committed stays."""
    from sync_pipeline.operations.jobs import RELEASE

    with open_database(read_settings()) as database:
        filters = _filters(database, ids, None, None, None, None, None, worker, None)
        return _handle(database, RELEASE, filters, reason, dry_run, as_json, everything=False)


def _filters(
    database: Database,
    ids: list[str] | None,
    repo: str | None,
    instance: str | None,
    tenant: str | None,
    job: str | None,
    mode: str | None,
    worker: str | None,
    older: str | None,
) -> Filters:
    from sync_pipeline.model import JobType, Mode
    from sync_pipeline.operations.registration import find_repository
    from sync_pipeline.store.job_actions import Filters

    try:
        job_type = None if job is None else JobType.parse(job)
    except ValueError as error:
        raise ConfigurationError(f"--job: {error}") from None
    return Filters(
        job_ids=[_uuid(text) for text in ids] if ids else None,
        repo_id=None if repo is None else find_repository(database, repo).repo_id,
        instance=instance,
        tenant=tenant,
        job_type=job_type,
        mode=None if mode is None else _one_of(Mode, mode, "--mode"),
        worker=worker,
        older=None if older is None else length_of("--older-than", older),
    )


def _handle(
    database: Database,
    action: Action,
    filters: Filters,
    reason: str,
    dry_run: bool,
    as_json: bool,
    *,
    everything: bool,
) -> int:
    from dataclasses import fields

    from sync_pipeline.operations import jobs
    from sync_pipeline.store.job_actions import By

    named = filters.job_ids is not None
    filtered = any(
        getattr(filters, one.name) is not None for one in fields(filters) if one.name not in _NO_FILTER
    )
    if sum((named, filtered, everything)) != 1:
        also = "" if action is jobs.RELEASE else " or --all"
        raise ConfigurationError(f"give ids, or options that choose jobs{also}; one of these, not several")
    attempts = read_settings().jobs.max_attempts
    document = jobs.handle(database, action, filters, By(actor(), reason), attempts=attempts, dry_run=dry_run)
    code = PARTIAL if document["left"] else SUCCESS
    if as_json:
        print_json({**document, "exit_code": code})
        return code
    for one in document["jobs"]:
        what = f"would {action.name}" if dry_run else action.done
        line = what if one["done"] else f"left as it is: {one['why_not']}"
        say(f"{one['job_id']} {one['repo']} {one['job']} {one['mode']}: {line}")
    say(jobs.handled(document))
    return code


_NO_FILTER = ("job_ids", "statuses", "everything")


def _uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise ConfigurationError(f"{text!r} is no id of a job; see `scm-sync admin jobs list`") from None


def _one_of(kind: Any, text: str, option: str) -> Any:
    try:
        return kind(text.strip().lower())
    except ValueError:
        raise ConfigurationError(f"{option}: {text!r} is none of {', '.join(kind)}") from None


def _changed(changed: Mapping[str, Any] | None) -> str:
    if changed is None:
        return "kept without its settings by an earlier version"
    if not changed:
        return "every number, switch and date at its default"
    return ", ".join(f"{name} = {str(value).lower()}" for name, value in sorted(changed.items()))


def _row(one: Mapping[str, Any]) -> dict[str, object]:
    from sync_pipeline.operations.formatting import age

    if one["status"] == "running":
        why = f"{one['worker']}, claimed until {one['claim_expires_at']:%H:%M:%S} unless renewed"
    elif one["error"]:
        why = one["error"]
    else:
        why = one["reason"]
    if one["status"] == "failed" and one["not_before"]:
        why = f"next at {one['not_before']:%H:%M:%S}; {why}"
    window = one["window"]
    return {
        "id": one["job_id"],
        "repo": one["repo"],
        "job": one["job"],
        "mode": one["mode"],
        "window": window and "..".join(str(value)[:16] for value in window.values()),
        "status": one["status"],
        "priority": one["priority"],
        "attempts": f"{one['attempts']} of {one['max_attempts']}",
        "age": age(one["age_seconds"]),
        "why": why,
    }
