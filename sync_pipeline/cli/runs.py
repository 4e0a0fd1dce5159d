"""``scm-sync admin runs``: what an attempt at a job read, batch by batch, and the same read again.

Belongs here: the commands, and how runs and batches look to a person. Does not belong here: which windows a
replay reads (:mod:`sync_pipeline.reports.runs`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from sync_pipeline.cli import options, output, shared
from sync_pipeline.core.formatting import second

if TYPE_CHECKING:
    from sync_pipeline.core.documents.common import WindowRange
    from sync_pipeline.core.documents.ledger import Batch, Run, RunList, ShownRun
    from sync_pipeline.core.model import JobReport

app = options.group(
    "Runs: what an attempt read, batch by batch; read it again.",
    examples=(
        "scm-sync admin runs list --repo gitlab:platform/api",
        "scm-sync admin runs replay RUN --reason 'rows look wrong' --dry-run",
    ),
)

_run_id = options.uuid_of("run")


@app.command("list")
def runs_list(
    repo: options.OfRepo = None,
    job: options.OfJob = None,
    limit: Annotated[int, options.limit("Runs that are printed.", 10_000)] = 20,
    as_json: options.AsJson = False,
) -> int:
    """List the newest runs."""
    from sync_pipeline.registry.registration import find_repository
    from sync_pipeline.reports import runs

    with shared.settings_and_database() as (_, database):
        repo_id = None if repo is None else find_repository(database, repo).repo_id
        document = runs.listing(database, repo_id=repo_id, job_type=job, limit=limit)
    return output.print_document(document, as_json, _print_list)


def _print_list(document: RunList) -> None:
    output.print_rows([_run_row(one) for one in document["runs"]])
    if not document["runs"]:
        output.print_line("no run of it")


@app.command("show")
def runs_show(
    run: Annotated[UUID, typer.Argument(metavar="RUN", help="The run, by its id.", parser=_run_id)],
    limit: Annotated[int, options.limit("Batches that are printed.", 100_000)] = 50,
    as_json: options.AsJson = False,
) -> int:
    """Show one run with its batches. Each names where it was read, its first and last key, and what became
    of its rows."""
    from sync_pipeline.reports import runs

    with shared.settings_and_database() as (_, database):
        document = runs.show(database, run, limit)
    return output.print_document(document, as_json, _print_run)


def _print_run(document: ShownRun) -> None:
    facts = {name: value for name, value in document.items() if name not in ("batches", "more")}
    output.print_facts({**facts, "window": _window(document["window"])})
    output.print_rows([_batch_row(one) for one in document["batches"]])
    if document["more"]:
        output.print_line(f"{document['more']:,} more batches, see --limit")


@app.command("replay")
def runs_replay(
    reason: options.Reason,
    run: Annotated[str | None, typer.Argument(metavar="RUN", help="The run, by its id.")] = None,
    batch: Annotated[
        int | None,
        typer.Option(
            "--batch",
            metavar="ID",
            min=1,
            max=options.MAX_ID,
            help="Only this batch, by its id of `runs show`.",
        ),
    ] = None,
    dry_run: options.DryRun = False,
    as_json: options.AsJson = False,
) -> int:
    """Read again what a run or a batch read, and store what differs. The source is asked; exit codes are
    those of the runner."""
    from sync_pipeline.core.model import Kind, Mode
    from sync_pipeline.reports import runs
    from sync_pipeline.sync.readers import Readers

    with shared.settings_and_database() as (settings, database):
        run_id = None if run is None else _run_id(run)
        replay = runs.plan_replay(
            database, run_id=run_id, batch_id=batch, actor=shared.actor(), reason=reason
        )
        repository = replay.repository
        if repository.kind is Kind.GITLAB:
            # Refused early where the settings have no server or no token for it.
            Readers(settings).fingerprint(repository.instance)
    reports: list[JobReport] | None = None
    if not dry_run:
        from sync_pipeline.orchestration.run import execute

        reports = execute(
            settings,
            repo_ids=[repository.repo_id],
            job_types=[replay.job_type],
            mode=Mode.REPAIR,
            windows=replay.windows,
            actor=replay.actor,
            reason=replay.reason,
        )
    document = runs.replay_document(replay, reports)
    code = output.print_document(document, as_json, _print_replay)
    if not document["dry_run"] and document["error"]:
        output.print_message(f"{document['repo']} {document['job']}: {document['error']}", code)
    return code


def _print_replay(document: Any) -> None:
    from sync_pipeline.reports import runs

    if document["dry_run"]:
        output.print_rows([{"window": _window(window)} for window in document["windows"]])
    output.print_line(runs.replay_line(document))


def _window(window: WindowRange | None) -> str:
    """A window of a document in one word."""
    if window is None:
        return ""
    first, last = window.values()
    return f"r{first}..r{last}" if "start_rev" in window else f"{str(first)[:19]}..{str(last)[:19]}"


def _run_row(one: Run) -> output.Row:
    return {
        "run": one["run_id"],
        "started": second(one["started_at"]),
        "repo": one["path"],
        "job": one["job"],
        "mode": one["mode"],
        "window": _window(one["window"]),
        "status": one["status"],
        "rows": one["rows_read"],
        "changed": one["inserted"] + one["updated"],
        "batches": one["batch_count"],
        "level": one["level"] or "",
        "error": one["error"],
    }


def _batch_row(one: Batch) -> output.Row:
    # The name of a commit is known by its beginning.
    keys = [key[:12] for key in (one["first_key"], one["last_key"]) if key is not None]
    return {
        "batch": one["batch_id"],
        "position": one["position"],
        "keys": "..".join(dict.fromkeys(keys)),
        "covered": _window(one["covered"]),
        "status": one["status"],
        "rows": one["rows_read"],
        "changed": one["inserted"] + one["updated"],
        "owed": one["owed"],
        "requests": one["calls"],
        "seconds": one["seconds"],
    }
