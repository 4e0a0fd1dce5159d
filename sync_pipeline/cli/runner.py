"""``scm-sync runner``: sync one repository now, in this process.

Belongs here: what is new, once or in a loop, and a range of revisions or of time; the plan before, progress
meanwhile, and where it stopped. Does not belong here: deriving facts anew from what is stored
(:mod:`sync_pipeline.cli.repair`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sync_pipeline.cli.shared import (
    AsJson,
    DryRun,
    EndRev,
    Job,
    Repo,
    Row,
    Since,
    StartRev,
    Until,
    actor,
    examples_text,
    finish_runner,
    group,
    now,
    open_database,
    print_json,
    print_message,
    print_rows,
    read_settings,
    say,
    stopped_politely,
    visitor_for,
)
from sync_pipeline.errors import Cancelled, ConfigurationError, SyncError
from sync_pipeline.exit_codes import FAILED, INTERRUPTED, SUCCESS

if TYPE_CHECKING:
    from sync_pipeline.model import Counts, JobReport, JobType, Mode, Repository, Window
    from sync_pipeline.operations.plans import ReadPlan
    from sync_pipeline.operations.runner import Bounds
    from sync_pipeline.settings import Settings
    from sync_pipeline.store.database import Database

_CHUNKS_PRINTED = 50

app = group(
    "Sync one repository now, in this process.",
    examples=(
        "scm-sync runner incremental --repo gitlab:platform/api",
        "scm-sync runner backfill --repo gitlab:platform/api --job mrs --last-days 90",
    ),
)


@app.command(
    "incremental",
    epilog=examples_text(
        "scm-sync runner incremental --repo gitlab:platform/api",
        "scm-sync runner incremental --repo gitlab:platform/api --job mrs --loop",
    ),
)
def runner_incremental(
    repo: Repo,
    job: Job = None,
    loop: Annotated[bool, typer.Option("--loop", help="Again and again, until it is stopped.")] = False,
    loop_interval: Annotated[
        float | None,
        typer.Option("--loop-interval", metavar="SECONDS", help="Pause between two rounds; default 60."),
    ] = None,
    max_iterations: Annotated[
        int | None, typer.Option("--max-iterations", metavar="N", help="Rounds after which the loop ends.")
    ] = None,
    as_json: AsJson = False,
    dry_run: DryRun = False,
) -> int:
    """Sync what is new, up to the end of the source."""
    from sync_pipeline import catalog
    from sync_pipeline.operations import registration, runner

    runner.check_loop(loop, loop_interval, max_iterations, dry_run)
    settings = read_settings()
    with open_database(settings) as database:
        repository = catalog.require_active(registration.find_repository(database, repo))
        wanted = runner.job_types_for(repository, job)
        _need_server(settings, repository)
        if dry_run:
            return _print_plans(_live_plans(settings, database, repository, wanted), as_json)
        if not loop:
            plans = _announced(settings, database, repository, wanted, as_json)
            done = _Sync(settings, database, repository, as_json).incremental(wanted, plans)
            return finish_runner(done, as_json)

        def once() -> dict[str, Any]:
            return _Sync(settings, database, repository, as_json).incremental(wanted, {})

        return _loop(once, 60.0 if loop_interval is None else loop_interval, max_iterations, as_json)


def _loop(once: Callable[[], dict[str, Any]], interval: float, most: int | None, as_json: bool) -> int:
    """Rounds with a pause between them; one that fails does not end them. Returns the exit code of all."""
    from sync_pipeline.operations import runner
    from sync_pipeline.operations.formatting import counted

    outcomes: list[runner.Outcome] = []
    while most is None or len(outcomes) < most:
        code = FAILED
        try:
            document = once()
        except SyncError as error:
            # What is wrong from the start a person has to set right; later it may pass.
            if not outcomes and isinstance(error, ConfigurationError):
                raise
            document = None
            print_message(f"{error}; trying again in {interval:g} s", code)
        # Between two rounds an exception would have nothing to give back, and might meet a finalizer.
        with stopped_politely() as stop:
            if document is not None:
                code = finish_runner(document, as_json, round_at=now())
            outcomes.append(runner.Outcome(document["status"]) if document else runner.Outcome.FAILED)
            if code == INTERRUPTED:
                return code
            if len(outcomes) != most and stop.wait(interval):
                print_message(f"stopped after {counted(len(outcomes), 'round')}")
                break
    return runner.exit_code(runner.outcome_of_all(outcomes))


@app.command(
    "backfill",
    epilog=examples_text(
        "scm-sync runner backfill --repo gitlab:platform/api --dry-run",
        "scm-sync runner backfill --repo gitlab:platform/api --job mrs --last-days 90",
        "scm-sync runner backfill --repo svn:https://host/a --start-rev 1 --end-rev 9",
    ),
)
def runner_backfill(
    repo: Repo,
    job: Job = None,
    start_rev: StartRev = None,
    end_rev: EndRev = None,
    since: Since = None,
    until: Until = None,
    last_days: Annotated[
        int | None, typer.Option("--last-days", metavar="N", help="GitLab: from N days ago until now.")
    ] = None,
    last_hours: Annotated[
        int | None, typer.Option("--last-hours", metavar="N", help="GitLab: from N hours ago until now.")
    ] = None,
    update_watermark: Annotated[
        bool,
        typer.Option("--update-watermark", help="Let live syncing count from the start of this window."),
    ] = False,
    as_json: AsJson = False,
    dry_run: DryRun = False,
) -> int:
    """Sync a range of revisions or of time. Without bounds it reads everything that is missing up to now."""
    from sync_pipeline import catalog
    from sync_pipeline.operations import plans, registration, runner

    bounds = runner.Bounds(start_rev, end_rev, since, until, last_days, last_hours)
    settings = read_settings()
    with open_database(settings) as database:
        repository = catalog.require_active(registration.find_repository(database, repo))
        wanted = runner.job_types_for(repository, job)
        runner.check_bounds(repository, bounds)
        window, head = _backfill_window(settings, database, repository, bounds)
        found = plans.plan(database, settings, repository, wanted, window, head=head, now=now())
        if dry_run:
            return _print_plans(found, as_json)
        _announce(found, as_json)
        only_missing = not bounds.given and not update_watermark
        windows = {plan.job_type: plans.windows_to_read(window, plan.chunks, only_missing) for plan in found}
        sync = _Sync(settings, database, repository, as_json, update_watermark)
        document = sync.backfill(windows, {plan.job_type: plan for plan in found})
    if not as_json:
        for one in document.get("jobs", [document]):
            rows = _chunk_rows(one)
            print_rows(rows)
            if rows and (more := one["total_chunks"] - len(rows)):
                say(f"{more:,} more chunks; --json lists them all")
    return finish_runner(document, as_json)


def _chunk_rows(document: Mapping[str, Any]) -> list[Row]:
    """The chunks of a backfill that is told in more than one, the first ones and those that failed."""
    chunks = document["chunk_results"]
    if len(chunks) < 2:
        return []
    return [
        {
            **_place(chunk),
            "job": document["job"],
            "status": _told(chunk),
            "rows": chunk["rows_read"],
            "inserted": chunk["inserted"],
            "updated": chunk["updated"],
            "unchanged": chunk["unchanged"],
            "requests": chunk["calls"],
            "batches": chunk["batches"],
            "seconds": chunk["seconds"],
            "error": chunk["error"],
        }
        for chunk in chunks
        if chunk["chunk_index"] < _CHUNKS_PRINTED or chunk["error"]
    ]


def _told(chunk: Mapping[str, Any]) -> str:
    return "covered before" if chunk["state"] == "covered" and not chunk["error"] else str(chunk["status"])


def _backfill_window(
    settings: Settings, database: Database, repository: Repository, bounds: Bounds
) -> tuple[Window, int | None]:
    """The window that is meant, and HEAD, for which SVN has to be asked."""
    from sync_pipeline.model import Kind
    from sync_pipeline.operations import runner

    if repository.kind is not Kind.SVN:
        window = runner.time_window(bounds, now())
        _need_server(settings, repository)
        return window, None
    start_rev, end_rev = bounds.start_rev, bounds.end_rev
    # A wrong order is told before the source is asked.
    runner.backfill_window(start_rev, end_rev, head=max(start_rev or 1, end_rev or 1))
    head = _head(settings, database, repository)
    return runner.backfill_window(start_rev, end_rev, head), head


def _need_server(settings: Settings, repository: Repository) -> None:
    """Refuse early what cannot be read because the settings have no server or no token for it."""
    from sync_pipeline.model import Kind
    from sync_pipeline.sync.readers import Readers

    if repository.kind is Kind.GITLAB:
        Readers(settings).fingerprint(repository.instance)


def _head(settings: Settings, database: Database, repository: Repository) -> int:
    from sync_pipeline.operations import registration

    return registration.visit_source(repository.url, visitor_for(settings, database)).head


# The plan -----------------------------------------------------------------------------------------------


def _live_plans(
    settings: Settings, database: Database, repository: Repository, wanted: Sequence[JobType]
) -> Sequence[ReadPlan]:
    """What is new means. Raises what the source says."""
    from sync_pipeline.model import Kind
    from sync_pipeline.operations import plans

    head = _head(settings, database, repository) if repository.kind is Kind.SVN else None
    return plans.plan(database, settings, repository, wanted, None, head=head, now=now())


def _announced(
    settings: Settings, database: Database, repository: Repository, wanted: Sequence[JobType], as_json: bool
) -> Mapping[JobType, ReadPlan]:
    """The plans of what is new, shown; none where the source does not answer, which the run will tell."""
    try:
        found = _live_plans(settings, database, repository, wanted)
    except SyncError:
        return {}
    _announce(found, as_json)
    return {plan.job_type: plan for plan in found}


def _announce(found: Sequence[ReadPlan], as_json: bool) -> None:
    """Say before it starts what is missing and what it takes."""
    from sync_pipeline.operations.plans import plan_line

    for plan in found:
        if not as_json:
            print_message(plan_line(plan))


def _print_plans(found: Sequence[ReadPlan], as_json: bool) -> int:
    from sync_pipeline.operations import runner
    from sync_pipeline.operations.plans import plan_document, plan_line

    documents = [plan_document(plan) for plan in found]
    if as_json:
        print_json(runner.together(documents))
        return SUCCESS
    for plan, document in zip(found, documents, strict=True):
        print_rows([_plan_row(chunk) for chunk in document["chunks"]])
        say(plan_line(plan))
    return SUCCESS


def _plan_row(chunk: Mapping[str, Any]) -> Row:
    row = {**_place(chunk), "state": chunk["state"]}
    if "since" in chunk["window"]:
        return row
    return row | {"missing": sum(gap["end_rev"] - gap["start_rev"] + 1 for gap in chunk["missing"])}


def _place(chunk: Mapping[str, Any]) -> dict[str, object]:
    """Number and window of a chunk, for a table."""
    window = chunk["window"]
    if "since" in window:
        return {"chunk": chunk["chunk_index"], "since": window["since"], "until": window["until"]}
    return {"chunk": chunk["chunk_index"], "revisions": f"r{window['start_rev']}..r{window['end_rev']}"}


# The run ------------------------------------------------------------------------------------------------


class _Sync:
    """One sync of a repository: the job types one group after the other, until somebody stops it."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        repository: Repository,
        as_json: bool,
        update_watermark: bool = False,
    ) -> None:
        self._settings = settings
        self._database = database
        self._repository = repository
        self._as_json = as_json
        self._update_watermark = update_watermark
        self._stopped = False
        self._counts: dict[JobType, Counts] = {}

    def incremental(self, wanted: Sequence[JobType], plans: Mapping[JobType, ReadPlan]) -> dict[str, Any]:
        """Sync what is new; returns the document."""
        from sync_pipeline.job_types import by_family
        from sync_pipeline.model import Mode
        from sync_pipeline.operations import runner

        documents = []
        for _, job_types in by_family(tuple(wanted)):
            started_at = now()
            reports = self._execute(Mode.INCREMENTAL, job_types, None, plans)
            for job_type in job_types:
                document = runner.incremental_document(
                    self._repository,
                    job_type,
                    [report for report in reports if report.job_type is job_type],
                    started_at=started_at,
                    finished_at=now(),
                )
                plan = plans.get(job_type)
                documents.append(
                    self._told(document, job_type, [plan.window] if plan and plan.window else [])
                )
        return runner.together(documents)

    def backfill(
        self, windows: Mapping[JobType, Sequence[Window]], plans: Mapping[JobType, ReadPlan]
    ) -> dict[str, Any]:
        """Read the windows of each job type; those that are read together and miss the same go in one run.
        Returns the document."""
        from sync_pipeline.model import Mode
        from sync_pipeline.operations import runner
        from sync_pipeline.operations.plans import read_together
        from sync_pipeline.store import jobs, runs, watermarks
        from sync_pipeline.store.database import database_time

        documents = []
        for job_types in read_together(windows):
            todo = windows[job_types[0]]
            with self._database.connection() as conn:
                before = {j: watermarks.get(conn, self._repository.repo_id, j) for j in job_types}
                begun = database_time(conn)
            started_at = now()
            reports = self._execute(Mode.BACKFILL, job_types, todo, plans) if todo else []
            for job_type in job_types:
                own = [report for report in reports if report.job_type is job_type]
                with self._database.connection() as conn:
                    key = self._repository.repo_id, job_type
                    after = watermarks.get(conn, *key)
                    if self._stopped:
                        # What was stopped has no report of its own; the ledger has one.
                        left = set(todo) - {report.window for report in own}
                        found = (
                            jobs.report(conn, one) for one in runs.begun(conn, *key, Mode.BACKFILL, begun)
                        )
                        own += [report for report in found if report.window in left]
                    batches = runs.batches(conn, [report.run_id for report in own if report.run_id])
                    missing = [gap for window in todo for gap in watermarks.missing(conn, *key, window)]
                was = before[job_type]
                document = runner.backfill_document(
                    self._repository,
                    job_type,
                    own,
                    windows=todo,
                    batches=batches,
                    missing=missing,
                    complete_before=was.covered,
                    watermark_updated=(was.origin, was.watermark) != (after.origin, after.watermark),
                    started_at=started_at,
                    finished_at=now(),
                )
                documents.append(self._told(document, job_type, todo))
        return runner.together(documents)

    def _told(self, document: dict[str, Any], job_type: JobType, windows: Sequence[Window]) -> dict[str, Any]:
        """``document``, or what it is once somebody stopped the run."""
        from sync_pipeline.model import Counts
        from sync_pipeline.operations import runner
        from sync_pipeline.store import watermarks

        if not self._stopped:
            return document
        with self._database.connection() as conn:
            missing = [
                gap
                for window in windows
                for gap in watermarks.missing(conn, self._repository.repo_id, job_type, window)
            ]
        return runner.stopped_document(document, missing, self._counts.get(job_type, Counts()))

    def _execute(
        self,
        mode: Mode,
        job_types: Sequence[JobType],
        windows: Sequence[Window] | None,
        plans: Mapping[JobType, ReadPlan],
    ) -> list[JobReport]:
        """Run the asset job in this process and show how it moves, unless somebody stopped an earlier one."""
        from sync_pipeline.cli.progress import of_rows, shown
        from sync_pipeline.operations.runner import chunk_line
        from sync_pipeline.orchestration.run import execute

        reports: list[JobReport] = []
        if self._stopped:
            return reports
        first = job_types[0]
        plan = plans.get(first)
        what = f"{self._repository.spec} {' and '.join(job_types)}"

        def ended(report: JobReport) -> None:
            reports.append(report)
            plain = not self._as_json and not sys.stderr.isatty()
            if plain and windows is not None and len(windows) > 1:
                done = sum(one.job_type is report.job_type for one in reports)
                print_message(chunk_line(self._repository, report, done, len(windows)))

        with shown(what, quiet=self._as_json, total=plan.expected.rows if plan else None) as show:
            show_rows = of_rows(show, first)

            def moved(counts: Mapping[JobType, Counts]) -> None:
                self._counts.update(counts)
                show_rows(counts)

            try:
                execute(
                    self._settings,
                    repo_ids=[self._repository.repo_id],
                    job_types=job_types,
                    mode=mode,
                    windows=windows,
                    update_watermark=self._update_watermark,
                    actor=actor(),
                    reason=f"scm-sync runner {mode}",
                    on_counts=moved,
                    on_report=ended,
                )
            except (Cancelled, KeyboardInterrupt):
                # The latter before there is anything to give back.
                self._stopped = True
        return reports
