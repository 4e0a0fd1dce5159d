"""``scm-sync scheduler``, ``worker`` and ``reaper``: the loops of an installation without a daemon.

Belongs here: the commands, their loop, and how a round looks to a person. Does not belong here: what is due
(:mod:`sync_pipeline.scheduling.dispatch`), the work (:mod:`sync_pipeline.scheduling.worker`), and what is
lost (:mod:`sync_pipeline.scheduling.reaper`). They may run beside the sensors, and many times.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sync_pipeline.cli import options, output, shared
from sync_pipeline.core import clock
from sync_pipeline.core.errors import ConfigurationError, SyncError
from sync_pipeline.core.exit_codes import FAILED, PARTIAL, SUCCESS
from sync_pipeline.core.formatting import counted, second

if TYPE_CHECKING:
    from sync_pipeline.core.documents.ledger import WorkerJob
    from sync_pipeline.core.model import JobReport
    from sync_pipeline.database.pool import Database
    from sync_pipeline.scheduling.dispatch import Round
    from sync_pipeline.scheduling.reaper import ReapReport
    from sync_pipeline.settings import Settings

WORKER_EXAMPLES = options.examples_text(
    "scm-sync worker --loop",
    "scm-sync worker --once --job-types commits,mrs --worker-id build-7",
    "scm-sync worker --loop --poll-interval 5 --lease-seconds 600",
)
"""The end of its help."""


def _check_loop(once: bool, loop: bool) -> None:
    if once and loop:
        raise ConfigurationError("--once and --loop exclude each other; give one of them")


def _repeat(run_round: Callable[[], int], seconds: float, stop: threading.Event) -> int:
    """Rounds with a pause between them until ``stop``. An outage of the database does not end them and is no
    failure, as in the loop of the worker. Returns the worst exit code of a round."""
    import psycopg

    from sync_pipeline.sync.attempt import database_error

    rounds, code = 0, SUCCESS + 0
    while not stop.is_set():
        try:
            code = max(code, run_round())
        except (SyncError, psycopg.Error) as error:
            # An error at the start needs a person; a later one may pass.
            failure = database_error(error)
            if not rounds and isinstance(failure, ConfigurationError):
                raise failure from None
            output.print_message(f"{failure}; trying again in {seconds} s")
        rounds += 1
        stop.wait(seconds)
    output.print_message(f"stopped after {counted(rounds, 'round')}")
    return code


def _heartbeat(
    database: Database, settings: Settings, loop: str, started: float, outcome: str, every: float | None
) -> None:
    from sync_pipeline.ledger import heartbeats

    name = heartbeats.named(loop, settings.worker.pool)
    with database.connection() as conn:
        heartbeats.beat(conn, name, seconds=time.monotonic() - started, outcome=outcome, every=every)


def _at(in_line: bool) -> str:
    """The time before the lines of a loop."""
    return f"{clock.now():%Y-%m-%dT%H:%M:%SZ} " if in_line else ""


def _names(database: Database) -> dict[int, str]:
    from sync_pipeline.ledger import repos

    with database.connection() as conn:
        return {repo.repo_id: repo.spec for repo in repos.list_all(conn)}


# Scheduler ----------------------------------------------------------------------------------------------


def scheduler_command(
    once: options.Once = False,
    loop: options.Loop = False,
    interval: options.Interval = None,
    as_json: options.AsJson = False,
    dry_run: options.DryRun = False,
) -> int:
    """Plan what is due and hand it to the workers. The sensor `scheduler` plans the same; both at once are
    harmless. With --dry-run nothing is dispatched; with --json every repository says why it was chosen or
    not."""
    from sync_pipeline.settings import load_settings

    _check_loop(once, loop)
    settings = load_settings(sensor_interval_seconds=interval)
    with shared.open_database(settings) as database, shared.stopped_politely() as stop:
        run_round = partial(_plan_round, database, settings, dry_run, as_json, in_line=loop)
        return _repeat(run_round, settings.sensors.interval_seconds, stop) if loop else run_round()


def _plan_round(
    database: Database, settings: Settings, dry_run: bool, as_json: bool, *, in_line: bool
) -> int:
    from sync_pipeline.scheduling import dispatch

    started = time.monotonic()
    found = dispatch.dispatch(database, settings, dry_run=dry_run)
    if not dry_run:
        every = settings.sensors.interval_seconds if in_line else None
        _heartbeat(database, settings, dispatch.LOOP, started, found.summary()[:500], every)
    names = _names(database)
    document = {"at": clock.now().isoformat(), **dispatch.document(found, settings, names)}

    def show(_: object) -> None:
        if found.plan is not None and not in_line:
            output.print_rows(_decision_rows(found, names))
        output.print_line(f"{_at(in_line)}{found.summary()}", flush=in_line)

    return output.print_document(document, as_json, show, in_line=in_line)


def _decision_rows(found: Round, names: dict[int, str]) -> list[output.Row]:
    assert found.plan is not None
    return [
        {
            "repo": names.get(d.repo_id, d.repo_id),
            "job": d.job_type,
            "mode": d.mode,
            "start": "yes" if d.chosen else "no",
            "reason": d.reason,
            "tenant": d.tenant,
            "since": second(d.since),
            "until": None if d.until is None else second(d.until),
            "detail": d.detail,
        }
        for d in found.plan.decisions
    ]


# Worker -------------------------------------------------------------------------------------------------


def worker_command(
    once: Annotated[
        bool, typer.Option("--once", help="Until no dispatched job is left; the default.")
    ] = False,
    loop: options.Loop = False,
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
    as_json: options.AsJson = False,
    dry_run: options.DryRun = False,
) -> int:
    """Do the jobs that a scheduler dispatched and this pool accepts. A second stop signal ends it
    at once; what was committed stays."""
    from sync_pipeline.scheduling.worker import Worker
    from sync_pipeline.settings import load_settings
    from sync_pipeline.sync.worker import name_worker

    _check_loop(once, loop)
    if worker_id is not None and not re.fullmatch(r"\S{1,100}", worker_id):
        raise ConfigurationError("--worker-id: write a name of 1 to 100 characters without blanks")
    settings = load_settings(
        worker_poll_interval=interval, worker_job_type_allowlist=job_types, claim_seconds=lease
    )
    with shared.open_database(settings) as database:
        if dry_run:
            return _print_waiting(database, settings, as_json)
        name_worker(worker_id)
        print_report = _ReportPrinter(database, as_json)
        with shared.stopped_politely() as stop:
            done, failed = Worker(database, settings, print_report=print_report).run(stop, once=not loop)
    if as_json and not done:
        output.print_json({"dry_run": False, "pool": settings.worker.pool, "jobs": []}, in_line=True)
    output.print_message(f"{counted(done, 'job')}, {failed} of them failed")
    return SUCCESS if not failed else FAILED if failed == done else PARTIAL


class _ReportPrinter:
    """Prints what became of jobs; it may be called from several threads."""

    def __init__(self, database: Database, as_json: bool) -> None:
        self._database = database
        self._as_json = as_json
        self._lock = threading.Lock()
        self._names: dict[int, str] = {}

    def __call__(self, report: JobReport) -> None:
        import psycopg

        from sync_pipeline.core.documents.common import from_row
        from sync_pipeline.core.documents.ledger import WorkerJob

        with self._lock:
            if report.repo_id not in self._names:
                # The report is printed even if the database is away by now.
                with suppress(ConfigurationError, psycopg.Error):
                    self._names.update(_names(self._database))
            document = from_row(
                WorkerJob,
                report,
                at=clock.now().isoformat(),
                repo=self._names.get(report.repo_id, str(report.repo_id)),
                job=report.job_type,
                status=report.job_status,
                rows=report.counts.read,
                seconds=round(report.seconds, 3),
            )
            output.print_document(document, self._as_json, _print_job, in_line=True)


def _print_job(one: WorkerJob) -> None:
    line = f"{_at(True)}{one['repo']} {one['job']} {one['mode']}: {one['status']}"
    output.print_line(f"{line}; {one['rows']} rows in {one['seconds']:.1f} s", flush=True)
    if one["error"] is not None:
        output.print_message(f"{one['repo_id']} {one['job']}: {one['error']}")


def _print_waiting(database: Database, settings: Settings, as_json: bool) -> int:
    from sync_pipeline.core.catalog import instance_of
    from sync_pipeline.ledger import planning

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
    rows: list[output.Row] = [
        {
            "repo": names.get(r.repo_id, str(r.repo_id)),
            "job": str(r.job_type),
            "mode": str(r.mode),
            "window": None if r.window is None else str(r.window),
            "reason": r.reason,
        }
        for r in requests
    ]

    def show(_: object) -> None:
        output.print_rows(rows)
        output.print_line(f"{counted(len(rows), 'job')} dispatched to this pool")

    document = {"dry_run": True, "pool": settings.worker.pool, "jobs": rows}
    return output.print_document(document, as_json, show)


# Reaper -------------------------------------------------------------------------------------------------


def reaper_command(
    once: options.Once = False,
    loop: options.Loop = False,
    interval: options.Interval = None,
    policy: Annotated[
        str | None,
        options.word(
            "--policy",
            ("failed", "pending"),
            "New status of a job of a lost owner: failed waits before its next attempt, pending is due "
            "at once; default: the setting reaper_policy.",
            "failed|pending",
        ),
    ] = None,
    as_json: options.AsJson = False,
    dry_run: options.DryRun = False,
) -> int:
    """End jobs, runs and leases of processes that are gone. It also ends waiting jobs that are no longer
    needed. The sensor `reaper` does the same every minute; both at once are harmless."""
    from sync_pipeline.settings import load_settings

    _check_loop(once, loop)
    settings = load_settings(reaper_policy=policy, reaper_interval_seconds=interval)
    with shared.open_database(settings) as database, shared.stopped_politely() as stop:
        run_round = partial(_reap_round, database, settings, dry_run, as_json, in_line=loop)
        return _repeat(run_round, settings.reaper.interval_seconds, stop) if loop else run_round()


def _reap_round(
    database: Database, settings: Settings, dry_run: bool, as_json: bool, *, in_line: bool
) -> int:
    from sync_pipeline.scheduling.reaper import LOOP, reap

    started = time.monotonic()
    with shared.dagster_instance(settings, database) as instance:
        if instance is None:
            report = reap(database, settings, dry_run=dry_run)
        else:
            from sync_pipeline.orchestration.reaper import reap_all

            report = reap_all(database, settings, instance, dry_run=dry_run)
    if not dry_run:
        every = settings.reaper.interval_seconds if in_line else None
        _heartbeat(database, settings, LOOP, started, report.summary(), every)
    code = SUCCESS if not report.errors else PARTIAL if report.items else FAILED
    document: dict[str, Any] = {"at": clock.now().isoformat(), **report.document(), "exit_code": code}
    return output.print_document(document, as_json, lambda _: _print_reaped(report, in_line), in_line=in_line)


def _print_reaped(report: ReapReport, in_line: bool) -> None:
    for item in report.items:
        would = "would end: " if report.dry_run else ""
        output.print_line(f"{_at(in_line)}{would}{item.line}", flush=in_line)
    for error in report.errors:
        output.print_message(error)
    output.print_line(f"{_at(in_line)}{report.summary()}", flush=in_line)
