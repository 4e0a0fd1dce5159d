"""``scm-sync reconcile``: compare what is stored with the source, and heal what differs.

Belongs here: the command and how its document looks to a person. Does not belong here: what is in the
document (:mod:`sync_pipeline.reports.reconciliation`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from sync_pipeline.cli import options, output, shared
from sync_pipeline.cli.progress import shown
from sync_pipeline.core import clock
from sync_pipeline.core.errors import ConfigurationError
from sync_pipeline.core.formatting import age, counted, moment

_NEXT = {
    "read": "is read again by a repair",
    "delete": "becomes a tombstone at the next repair",
    "escalate": "repairs did not help: look at it",
}


def reconcile_command(
    repo: options.Repo,
    job: options.Job = None,
    since: options.Since = None,
    until: options.Until = None,
    start_rev: options.StartRev = None,
    end_rev: options.EndRev = None,
    last_days: options.LastDays = None,
    last_hours: options.LastHours = None,
    lists_only: Annotated[
        bool | None,
        typer.Option(
            "--lists-only/--full",
            help="Read single rows only where lists or GraphQL show a difference, or read all details of all "
            "rows; default: lists for merge requests and reviews, all details for others.",
        ),
    ] = None,
    repair: Annotated[
        bool | None,
        typer.Option(
            "--repair/--no-repair",
            help="Heal what differs now and compare again, or do nothing about it; default: queue a repair "
            "for the scheduler.",
        ),
    ] = None,
    limit: Annotated[
        int,
        typer.Option("--limit", min=0, help="Differences of a job type that are listed; all are counted."),
    ] = 100,
    max_requests: Annotated[
        int | None,
        typer.Option(
            "--max-requests",
            min=1,
            metavar="N",
            help="Stop a job type at the end of the page at which so many are sent.",
        ),
    ] = None,
    as_json: options.AsJson = False,
    dry_run: options.DryRun = False,
) -> int:
    """Compare what is stored with the source, value by value. It names what is missing, extra or changed.
    Without bounds everything that has been read."""
    from sync_pipeline.core import catalog
    from sync_pipeline.core.model import Depth, Kind, Trigger
    from sync_pipeline.registry import registration
    from sync_pipeline.reports import reconciliation, runner
    from sync_pipeline.scheduling.comparisons import Starter
    from sync_pipeline.scheduling.credentials import in_force
    from sync_pipeline.sync.engine import Syncer
    from sync_pipeline.sync.readers import Readers

    given = runner.Bounds(start_rev, end_rev, since, until, last_days, last_hours)
    comparison = reconciliation.ComparisonOptions(
        depth=None if lists_only is None else Depth.LISTING if lists_only else Depth.DETAILS,
        repair_differences=repair is True,
        queue=repair is None,
        shown=limit,
        max_calls=max_requests,
    )
    with shared.settings_and_database() as (settings, database):
        repository = catalog.require_active(registration.find_repository(database, repo))
        with database.connection() as conn:
            windows = [
                (job_type, reconciliation.window_for(conn, repository, job_type, given, clock.now()))
                for job_type in runner.job_types_for(repository, job)
            ]
            readers = Readers(settings, database)
            if repository.kind is Kind.GITLAB and not dry_run:
                problem = in_force(conn, readers).problem(repository.instance)
                if problem is not None:
                    raise ConfigurationError(problem)
        if dry_run:
            document = reconciliation.plan(database, settings, repository, windows, comparison)
        else:
            starter = Starter(Trigger.RUNNER, shared.actor(), "scm-sync reconcile")
            with shown("reconcile", quiet=as_json) as show, shared.stopped_politely() as cancel:
                syncer = Syncer(database, settings, readers)
                document = reconciliation.reconcile(
                    database,
                    settings,
                    syncer,
                    repository,
                    windows,
                    comparison,
                    starter,
                    cancel=cancel,
                    progress=show,
                )
    return output.print_document(document, as_json, _print_plan if dry_run else _print)


def _print_plan(document: Mapping[str, Any]) -> None:
    for one in document["results"]:
        output.print_line(
            f"{one['job']}: {_window(one['window'])} would be compared, {counted(one['stored'], 'row')} "
            f"stored: about {counted(one['calls'], 'request')}"
        )


def _print(document: Mapping[str, Any]) -> None:
    for one in document["results"]:
        for line in _lines(one):
            output.print_line(line)
        last = one["after"] or one
        output.print_rows(
            [
                {
                    "kind": d["kind"],
                    "key": d["key"],
                    "differs": ", ".join(d["fields"]),
                    "since": moment(d["found_at"]),
                    "what follows": _follows(d),
                }
                for d in last["differences"]
            ]
        )
        left = last["missing"] + last["extra"] + last["changed"] - len(last["differences"])
        if left > 0:
            output.print_message(f"{left:,} more are not listed; see --limit and scm.discrepancies")


def _lines(one: Mapping[str, Any]) -> Iterator[str]:
    yield f"{one['job']}: {_result(one)}"
    if one["details_left_out"]:
        left_out = ", ".join(one["details_left_out"])
        yield f"  compared: {', '.join(one['details'])}; not compared: {left_out} (see --full)"
    if one["notice"]:
        yield f"  {one['notice']}"
    if one["uncovered"]:
        gaps = counted(len(one["uncovered"]), "window")
        yield f"  {gaps} of it not read yet, first {_window(one['uncovered'][0])}: not compared"
    if one["status"] != "inconclusive" and not one["complete"]:
        reached = one["compared"][-1]
        yield f"  stopped after {_window(reached)}; go on from there"
    if one["detail"]:
        yield f"  inconclusive: {one['detail']}"
    repair = one["repair"]
    if repair is not None and one["after"] is None:
        yield f"  a repair waits for the scheduler: job {repair['job_id']}"
    elif repair is not None:
        done = f"{repair['inserted']:,} rows inserted, {repair['updated']:,} updated"
        yield f"  repair {repair['status']}: {repair['error'] or done}"
        yield f"  afterwards: {_result(one['after'])}"


def _result(one: Mapping[str, Any]) -> str:
    kinds = [f"{one[kind]:,} {kind}" for kind in ("missing", "extra", "changed") if one[kind]]
    what = f"{one['status']}, {', '.join(kinds)}" if kinds else one["status"]
    words = [f"{what}: {one['expected']:,} at the source, {one['stored']:,} stored"]
    if one["newer"]:
        words.append(f"{one['newer']:,} newer than the latest visit")
    if one["unreadable"]:
        words.append(f"{one['unreadable']:,} unreadable")
    if one["hidden"]:
        words.append(f"{one['hidden']:,} hidden from the token and not compared")
    words.append(f"{_window(one['window'])}, {counted(one['calls'], 'request')}, {age(one['seconds'])}")
    return "; ".join(words)


def _follows(difference: Mapping[str, Any]) -> str:
    if difference["believed_at"] is not None:
        after = moment(difference["believed_at"])
        return f"gone at the source; becomes a tombstone if it is still gone after {after}"
    return _NEXT[difference["next"]]


def _window(window: Mapping[str, Any]) -> str:
    if "start_rev" in window:
        return f"r{window['start_rev']} to r{window['end_rev']}"
    start = "the beginning" if window["since"].startswith("1900-") else moment(window["since"])
    return f"{start} to {moment(window['until'])} UTC"
