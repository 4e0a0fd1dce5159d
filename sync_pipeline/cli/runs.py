"""``scm-sync admin runs``: what an attempt at a job read, batch by batch, and the same read again.

Belongs here: the commands, and how runs and batches look to a person. Does not belong here: which windows a
replay reads (:mod:`sync_pipeline.operations.runs`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any
from uuid import UUID

import typer

from sync_pipeline.cli.shared import (
    NAMES,
    AsJson,
    DryRun,
    actor,
    group,
    open_database,
    print_facts,
    print_json,
    print_message,
    print_rows,
    read_settings,
    say,
)
from sync_pipeline.errors import ConfigurationError

_LARGEST = 2**63 - 1

app = group("Runs: what an attempt read, batch by batch; read it again.")

Run = Annotated[str, typer.Argument(metavar="RUN", help="The run, by its id.")]


@app.command("list")
def runs_list(
    repo: Annotated[
        str | None, typer.Option("--repo", metavar="SPEC", help=f"Of this repository: {NAMES}")
    ] = None,
    job: Annotated[str | None, typer.Option("--job", metavar="TYPE", help="Of this job type.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000, help="Runs that are printed.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List the newest runs."""
    from sync_pipeline.model import JobType
    from sync_pipeline.operations import runs
    from sync_pipeline.operations.registration import find_repository

    try:
        job_type = None if job is None else JobType.parse(job)
    except ValueError as error:
        raise ConfigurationError(f"--job: {error}") from None
    with open_database(read_settings()) as database:
        repo_id = None if repo is None else find_repository(database, repo).repo_id
        found = runs.listing(database, repo_id=repo_id, job_type=job_type, limit=limit)
    if as_json:
        print_json({"runs": found})
        return
    print_rows([_run_row(one) for one in found])
    if not found:
        say("no run of it")


@app.command("show")
def runs_show(
    run: Run,
    limit: Annotated[int, typer.Option("--limit", min=1, max=100_000, help="Batches that are printed.")] = 50,
    as_json: AsJson = False,
) -> None:
    """Show one run with its batches: where each was read, its first and last key, and what became of its
    rows."""
    from sync_pipeline.operations import runs

    with open_database(read_settings()) as database:
        document = runs.show(database, _uuid(run), limit)
    if as_json:
        print_json(document)
        return
    facts = {name: value for name, value in document.items() if name not in ("batches", "more")}
    print_facts({**facts, "window": _where(document["window"])})
    print_rows([_batch_row(one) for one in document["batches"]])
    if document["more"]:
        say(f"{document['more']:,} more batches, see --limit")


@app.command("replay")
def runs_replay(
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; it is kept with your name.")],
    run: Annotated[str | None, typer.Argument(metavar="[RUN]", help="The run, by its id.")] = None,
    batch: Annotated[
        int | None,
        typer.Option(
            "--batch", metavar="ID", min=1, max=_LARGEST, help="Only this batch, by its id of `runs show`."
        ),
    ] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> int:
    """Read again from the source what a run or a batch read, and store what differs. Exit codes as those of
    the runner."""
    from sync_pipeline.model import JobReport, Kind, Mode
    from sync_pipeline.operations import runs
    from sync_pipeline.sync.readers import Readers

    settings = read_settings()
    with open_database(settings) as database:
        run_id = None if run is None else _uuid(run)
        replay = runs.plan_replay(database, run_id=run_id, batch_id=batch, actor=actor(), reason=reason)
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
    code = int(document["exit_code"])
    if as_json:
        print_json(document)
    else:
        if dry_run:
            print_rows([{"window": _where(window)} for window in document["windows"]])
        say(runs.replay_line(document))
    if document.get("error"):
        print_message(f"{document['repo']} {document['job']}: {document['error']}", code)
    return code


def _uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise ConfigurationError(f"{text!r} is no id of a run; see `scm-sync admin runs list`") from None


def _where(window: Mapping[str, Any] | None) -> str:
    """A window of a document in one word."""
    if window is None:
        return ""
    first, last = window.values()
    return f"r{first}..r{last}" if "start_rev" in window else f"{_time(first)}..{_time(last)}"


def _time(text: str) -> str:
    return text[:19]


def _run_row(one: Mapping[str, Any]) -> dict[str, object]:
    return {
        "run": one["run_id"],
        "started": f"{one['started_at']:%Y-%m-%d %H:%M:%S}",
        "repo": one["repo"],
        "job": one["job"],
        "mode": one["mode"],
        "window": _where(one["window"]),
        "status": one["status"],
        "rows": one["rows_read"],
        "changed": one["inserted"] + one["updated"],
        "batches": one["batch_count"],
        "error": one["error"],
    }


def _batch_row(one: Mapping[str, Any]) -> dict[str, object]:
    # The name of a commit is known by its beginning.
    keys = [key[:12] for key in (one["first_key"], one["last_key"]) if key is not None]
    return {
        "batch": one["batch_id"],
        "position": one["position"],
        "keys": "..".join(dict.fromkeys(keys)),
        "complete": _where(one["covered"]),
        "status": one["status"],
        "rows": one["rows_read"],
        "changed": one["inserted"] + one["updated"],
        "owed": one["owed"],
        "requests": one["calls"],
        "seconds": one["seconds"],
    }
