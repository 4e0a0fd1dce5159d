"""``scm-sync scheduler`` and ``scm-sync worker``: the loops of an installation without a daemon.

Belongs here: the two commands, and how a round looks to a person. Does not belong here: what is due
(:mod:`sync_pipeline.operations.scheduling`) and what a worker does (:mod:`sync_pipeline.operations.worker`).
Both may run beside the sensors, and many times.
"""

from __future__ import annotations

import re
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from sync_pipeline.cli.shared import (
    AsJson,
    DryRun,
    examples_text,
    now,
    open_database,
    print_json,
    print_message,
    print_rows,
    say,
    stopped_politely,
)
from sync_pipeline.errors import ConfigurationError, SyncError
from sync_pipeline.exit_codes import FAILED, PARTIAL, SUCCESS
from sync_pipeline.operations.formatting import counted

if TYPE_CHECKING:
    from sync_pipeline.model import JobReport
    from sync_pipeline.operations.scheduling import Round
    from sync_pipeline.settings import Settings
    from sync_pipeline.store.database import Database

WORKER_EXAMPLES = examples_text(
    "scm-sync worker --loop",
    "scm-sync worker --once --job-types commits,mrs --worker-id build-7",
    "scm-sync worker --loop --poll-interval 5 --lease-seconds 600",
)
"""The end of its help."""

Once = Annotated[bool, typer.Option("--once", help="One round; the default.")]
Loop = Annotated[bool, typer.Option("--loop", help="Again and again, until it is stopped.")]
Interval = Annotated[
    int | None,
    typer.Option(
        "--interval-seconds",
        min=1,
        max=86_400,
        metavar="N",
        help="Pause between two rounds of a loop; default: the setting of the same purpose.",
    ),
]


def scheduler_command(
    once: Once = False,
    loop: Loop = False,
    interval: Interval = None,
    as_json: AsJson = False,
    dry_run: DryRun = False,
) -> int:
    """Plan what is due and hand it to the workers. The sensor `scheduler` plans the same; both at once are
    harmless. With --dry-run nothing is dispatched; with --json every repository says why it was chosen or
    not."""
    import psycopg

    from sync_pipeline.settings import load_settings
    from sync_pipeline.sync.attempt import database_error

    _one_of(once, loop)
    settings = load_settings(sensor_interval_seconds=interval)
    with open_database(settings) as database, stopped_politely() as stop:
        if not loop:
            found = _round(database, settings, dry_run, once=True)
            _show(found, database, settings, as_json, in_line=False)
            return SUCCESS
        rounds, code = 0, SUCCESS
        while not stop.is_set():
            try:
                found = _round(database, settings, dry_run, once=False)
                _show(found, database, settings, as_json, in_line=True)
            except (SyncError, psycopg.Error) as error:
                failure = database_error(error)
                if not rounds and isinstance(failure, ConfigurationError):
                    raise failure from None
                code = print_message(
                    f"{failure}; trying again in {settings.sensors.interval_seconds} s", PARTIAL
                )
            rounds += 1
            stop.wait(settings.sensors.interval_seconds)
        print_message(f"stopped after {rounds} rounds")
        return code


def worker_command(
    once: Annotated[
        bool, typer.Option("--once", help="Until no dispatched job is left; the default.")
    ] = False,
    loop: Loop = False,
    interval: Annotated[
        int | None,
        typer.Option(
            "--poll-interval",
            "--interval-seconds",
            min=1,
            max=86_400,
            metavar="N",
            help="Seconds between two looks for work; default: worker_poll_interval.",
        ),
    ] = None,
    job_types: Annotated[
        str | None,
        typer.Option(
            "--job-types", metavar="LIST", help="Take only these, such as commits,mrs; default: the pool's."
        ),
    ] = None,
    lease: Annotated[
        int | None,
        typer.Option(
            "--lease-seconds",
            min=1,
            max=31_536_000,
            metavar="N",
            help="Length of the claim on a job; default: claim_seconds.",
        ),
    ] = None,
    worker_id: Annotated[
        str | None,
        typer.Option("--worker-id", metavar="NAME", help="Name in the ledger; default: host:pid."),
    ] = None,
    as_json: AsJson = False,
    dry_run: DryRun = False,
) -> int:
    """Do the jobs that a scheduler dispatched and this pool accepts. A second stop signal ends it
    at once; what was committed stays."""
    import psycopg

    from sync_pipeline.operations.worker import Worker
    from sync_pipeline.settings import load_settings
    from sync_pipeline.sync.worker import name_worker

    _one_of(once, loop)
    if worker_id is not None and not re.fullmatch(r"\S{1,100}", worker_id):
        raise ConfigurationError("--worker-id: write a name of 1 to 100 characters without blanks")
    settings = load_settings(
        worker_poll_interval=interval, worker_job_type_allowlist=job_types, claim_seconds=lease
    )
    with open_database(settings) as database:
        if dry_run:
            return _waiting(database, settings, as_json)
        lock = threading.Lock()
        names: dict[int, str] = {}

        def print_report(report: JobReport) -> None:
            with lock:
                if report.repo_id not in names:
                    # What was done is said even if the database is away by now.
                    with suppress(ConfigurationError, psycopg.Error):
                        names.update(_names(database))
                _report(report, names.get(report.repo_id, str(report.repo_id)), as_json)

        name_worker(worker_id)
        with stopped_politely() as stop:
            done, failed = Worker(database, settings, print_report=print_report).run(stop, once=not loop)
    if as_json and not done:
        print_json({"dry_run": False, "pool": settings.worker.pool, "jobs": []}, in_line=True)
    print_message(f"{counted(done, 'job')}, {failed} of them failed")
    return SUCCESS if not failed else FAILED if failed == done else PARTIAL


def _names(database: Database) -> dict[int, str]:
    from sync_pipeline.store import repos

    with database.connection() as conn:
        return {repo.repo_id: repo.spec for repo in repos.list_all(conn)}


def _one_of(once: bool, loop: bool) -> None:
    if once and loop:
        raise ConfigurationError("--once and --loop exclude each other; give one of them")


def _round(database: Database, settings: Settings, dry_run: bool, *, once: bool) -> Round:
    from sync_pipeline.operations.scheduling import LOOP, dispatch
    from sync_pipeline.store import heartbeats

    started = time.monotonic()
    found = dispatch(database, settings, dry_run=dry_run)
    if not dry_run:
        with database.connection() as conn:
            heartbeats.beat(
                conn,
                heartbeats.named(LOOP, settings.worker.pool),
                seconds=time.monotonic() - started,
                outcome=found.summary()[:500],
                every=None if once else settings.sensors.interval_seconds,
            )
    return found


def _show(found: Round, database: Database, settings: Settings, as_json: bool, *, in_line: bool) -> None:
    from sync_pipeline.operations import scheduling

    names = _names(database)
    if as_json:
        print_json({"at": now().isoformat(), **scheduling.document(found, settings, names)}, in_line=in_line)
        return
    when = f"{now():%Y-%m-%dT%H:%M:%SZ} " if in_line else ""
    if found.plan is not None and not in_line:
        print_rows(
            [
                {
                    "repo": names.get(d.repo_id, d.repo_id),
                    "job": d.job_type,
                    "mode": d.mode,
                    "start": "yes" if d.chosen else "no",
                    "reason": d.reason,
                    "tenant": d.tenant,
                    "since": f"{d.since:%Y-%m-%d %H:%M:%S}",
                    "until": None if d.until is None else f"{d.until:%Y-%m-%d %H:%M:%S}",
                    "detail": d.detail,
                }
                for d in found.plan.decisions
            ]
        )
    say(f"{when}{found.summary()}", flush=in_line)


def _waiting(database: Database, settings: Settings, as_json: bool) -> int:
    from sync_pipeline.catalog import instance_of
    from sync_pipeline.store import planning

    names = _names(database)
    with database.connection() as conn:
        requests = planning.dispatched_requests(
            conn,
            instances=settings.worker.instance_allowlist,
            tenants=settings.worker.tenant_allowlist,
            job_types=settings.worker.job_type_allowlist,
            gitlabs=[instance_of(server.url) for server in settings.gitlab_servers()],
            limit=1000,
        )
    rows = [
        {
            "repo": names.get(r.repo_id, str(r.repo_id)),
            "job": str(r.job_type),
            "mode": str(r.mode),
            "window": None if r.window is None else str(r.window),
            "reason": r.reason,
        }
        for r in requests
    ]
    if as_json:
        print_json({"dry_run": True, "pool": settings.worker.pool, "jobs": rows})
        return SUCCESS
    print_rows(rows)
    say(f"{counted(len(rows), 'job')} dispatched to this pool")
    return SUCCESS


def _report(report: JobReport, repo: str, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "at": now().isoformat(),
                "job_id": report.job_id,
                "repo": repo,
                "repo_id": report.repo_id,
                "job": report.job_type,
                "mode": report.mode,
                "status": report.job_status,
                "rows": report.counts.read,
                "seconds": round(report.seconds, 3),
                "error_code": report.error_code,
                "error": report.error,
            },
            in_line=True,
        )
        return
    line = f"{now():%Y-%m-%dT%H:%M:%SZ} {repo} {report.job_type} {report.mode}: {report.job_status}"
    say(f"{line}; {report.counts.read} rows in {report.seconds:.1f} s", flush=True)
    if report.error is not None:
        print_message(f"{report.repo_id} {report.job_type}: {report.error}")
