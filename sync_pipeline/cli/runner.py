"""``scm-sync runner``: sync one repository now, in this process.

Belongs here: incrementals, once or in a loop, and backfills of revisions or of time. Also the plan before,
the progress, and the position of a stop. Does not belong here: remapping stored rows
(:mod:`sync_pipeline.cli.repair`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sync_pipeline.cli import options, output, reports, shared
from sync_pipeline.core import clock
from sync_pipeline.core.errors import Cancelled, ConfigurationError, SyncError
from sync_pipeline.core.exit_codes import FAILED, INTERRUPTED, SUCCESS

if TYPE_CHECKING:
    from datetime import datetime

    from sync_pipeline.core.model import Counts, JobReport, JobType, Mode, Repository, Window
    from sync_pipeline.database.pool import Database
    from sync_pipeline.reports.plans import ReadPlan
    from sync_pipeline.reports.runner import Bounds
    from sync_pipeline.settings import Settings

_CHUNKS_PRINTED = 50

app = options.group(
    "Sync one repository now, in this process.",
    examples=(
        "scm-sync runner incremental --repo gitlab:platform/api",
        "scm-sync runner backfill --repo gitlab:platform/api --job mrs --last-days 90",
    ),
)


@app.command(
    "incremental",
    epilog=options.examples_text(
        "scm-sync runner incremental --repo gitlab:platform/api",
        "scm-sync runner incremental --repo gitlab:platform/api --job mrs --loop",
    ),
)
def runner_incremental(
    repo: options.Repo,
    job: options.Job = None,
    loop: options.Loop = False,
    loop_interval: Annotated[
        float | None,
        typer.Option("--loop-interval", metavar="SECONDS", help="Pause between two rounds; default 60."),
    ] = None,
    max_iterations: Annotated[
        int | None, typer.Option("--max-iterations", metavar="N", help="Rounds after which the loop ends.")
    ] = None,
    as_json: options.AsJson = False,
    dry_run: options.DryRun = False,
) -> int:
    """Sync what is new, up to the end of the source."""
    from sync_pipeline.core import catalog
    from sync_pipeline.registry import registration
    from sync_pipeline.reports import runner

    runner.check_loop(loop, loop_interval, max_iterations, dry_run)
    with shared.settings_and_database() as (settings, database):
        repository = catalog.require_active(registration.find_repository(database, repo))
        wanted = runner.job_types_for(repository, job)
        _need_server(settings, repository)
        if dry_run:
            return _print_plans(_live_plans(settings, database, repository, wanted), as_json)
        if not loop:
            plans = _announced(settings, database, repository, wanted, as_json)
            done = _Sync(settings, database, repository, as_json).incremental(wanted, plans)
            return reports.finish_runner(done, as_json)

        def once() -> dict[str, Any]:
            return _Sync(settings, database, repository, as_json).incremental(wanted, {})

        return _loop(once, 60.0 if loop_interval is None else loop_interval, max_iterations, as_json)


def _loop(once: Callable[[], dict[str, Any]], interval: float, most: int | None, as_json: bool) -> int:
    """Rounds with a pause between them; one that fails does not end them. Returns the exit code of all."""
    from sync_pipeline.core.formatting import counted
    from sync_pipeline.reports import runner

    outcomes: list[runner.Outcome] = []
    while most is None or len(outcomes) < most:
        code = FAILED
        try:
            document = once()
        except SyncError as error:
            # An error at the start needs a person; a later one may pass.
            if not outcomes and isinstance(error, ConfigurationError):
                raise
            document = None
            output.print_message(f"{error}; trying again in {interval:g} s", code)
        # Between two rounds an exception would have nothing to give back, and might meet a finalizer.
        with shared.stopped_politely() as stop:
            if document is not None:
                code = reports.finish_runner(document, as_json, round_at=clock.now())
            outcomes.append(runner.Outcome(document["status"]) if document else runner.Outcome.FAILED)
            if code == INTERRUPTED:
                return code
            if len(outcomes) != most and stop.wait(interval):
                output.print_message(f"stopped after {counted(len(outcomes), 'round')}")
                break
    return runner.exit_code(runner.outcome_of_all(outcomes))


@app.command(
    "backfill",
    epilog=options.examples_text(
        "scm-sync runner backfill --repo gitlab:platform/api --dry-run",
        "scm-sync runner backfill --repo gitlab:platform/api --job mrs --last-days 90",
        "scm-sync runner backfill --repo svn:https://host/a --start-rev 1 --end-rev 9",
    ),
)
def runner_backfill(
    repo: options.Repo,
    job: options.Job = None,
    start_rev: options.StartRev = None,
    end_rev: options.EndRev = None,
    since: options.Since = None,
    until: options.Until = None,
    last_days: options.LastDays = None,
    last_hours: options.LastHours = None,
    update_watermark: Annotated[
        bool,
        typer.Option("--update-watermark", help="Let live syncing count from the start of this window."),
    ] = False,
    as_json: options.AsJson = False,
    dry_run: options.DryRun = False,
) -> int:
    """Sync a range of revisions or of time. Without bounds it reads everything that is missing up to now."""
    from sync_pipeline.core import catalog
    from sync_pipeline.registry import registration
    from sync_pipeline.reports import plans, runner

    bounds = runner.Bounds(start_rev, end_rev, since, until, last_days, last_hours)
    with shared.settings_and_database() as (settings, database):
        repository = catalog.require_active(registration.find_repository(database, repo))
        wanted = runner.job_types_for(repository, job)
        runner.check_bounds(repository, bounds)
        window, head = _backfill_window(settings, database, repository, bounds)
        found = plans.plan(database, settings, repository, wanted, window, head=head, now=clock.now())
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
            output.print_rows(rows)
            if rows and (more := one["total_chunks"] - len(rows)):
                output.print_line(f"{more:,} more chunks; --json lists them all")
    return reports.finish_runner(document, as_json)


def _chunk_rows(document: Mapping[str, Any]) -> list[output.Row]:
    """The first chunks of a backfill that has several, and those that failed."""
    chunks = document["chunk_results"]
    if len(chunks) < 2:
        return []
    return [
        {
            **_chunk_columns(chunk),
            "job": document["job"],
            "status": _chunk_status(chunk),
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


def _chunk_status(chunk: Mapping[str, Any]) -> str:
    return "covered before" if chunk["state"] == "covered" and not chunk["error"] else str(chunk["status"])


def _backfill_window(
    settings: Settings, database: Database, repository: Repository, bounds: Bounds
) -> tuple[Window, int | None]:
    """The window that is meant, and HEAD, for which SVN has to be asked."""
    from sync_pipeline.core.model import Kind
    from sync_pipeline.reports import runner

    if repository.kind is not Kind.SVN:
        window = runner.time_window(bounds, clock.now())
        _need_server(settings, repository)
        return window, None
    start_rev, end_rev = bounds.start_rev, bounds.end_rev
    # A wrong order is refused before a request is sent.
    runner.backfill_window(start_rev, end_rev, head=max(start_rev or 1, end_rev or 1))
    head = _head(settings, database, repository)
    return runner.backfill_window(start_rev, end_rev, head), head


def _need_server(settings: Settings, repository: Repository) -> None:
    """Refuse early what cannot be read because the settings have no server or no token for it."""
    from sync_pipeline.core.model import Kind
    from sync_pipeline.sync.readers import Readers

    if repository.kind is Kind.GITLAB:
        Readers(settings).fingerprint(repository.instance)


def _head(settings: Settings, database: Database, repository: Repository) -> int:
    from sync_pipeline.registry import registration

    return registration.visit_source(repository.url, shared.visitor_for(settings, database)).head


# The plan -----------------------------------------------------------------------------------------------


def _live_plans(
    settings: Settings, database: Database, repository: Repository, wanted: Sequence[JobType]
) -> Sequence[ReadPlan]:
    """The plans of an incremental sync. Raises SyncError where the source refuses."""
    from sync_pipeline.core.model import Kind
    from sync_pipeline.reports import plans

    head = _head(settings, database, repository) if repository.kind is Kind.SVN else None
    return plans.plan(database, settings, repository, wanted, None, head=head, now=clock.now())


def _announced(
    settings: Settings, database: Database, repository: Repository, wanted: Sequence[JobType], as_json: bool
) -> Mapping[JobType, ReadPlan]:
    """The plans of an incremental sync, printed; none where the source does not answer."""
    try:
        found = _live_plans(settings, database, repository, wanted)
    except SyncError:
        return {}
    _announce(found, as_json)
    return {plan.job_type: plan for plan in found}


def _announce(found: Sequence[ReadPlan], as_json: bool) -> None:
    """Say before it starts what is missing and what it takes."""
    from sync_pipeline.reports.plans import plan_line

    for plan in found:
        if not as_json:
            output.print_message(plan_line(plan))


def _print_plans(found: Sequence[ReadPlan], as_json: bool) -> int:
    from sync_pipeline.reports import runner
    from sync_pipeline.reports.plans import plan_document, plan_line

    documents = [plan_document(plan) for plan in found]
    if as_json:
        output.print_json(runner.together(documents))
        return SUCCESS
    for plan, document in zip(found, documents, strict=True):
        output.print_rows([_plan_row(chunk) for chunk in document["chunks"]])
        output.print_line(plan_line(plan))
    return SUCCESS


def _plan_row(chunk: Mapping[str, Any]) -> output.Row:
    row = {**_chunk_columns(chunk), "state": chunk["state"]}
    if "since" in chunk["window"]:
        return row
    return row | {"missing": sum(gap["end_rev"] - gap["start_rev"] + 1 for gap in chunk["missing"])}


def _chunk_columns(chunk: Mapping[str, Any]) -> dict[str, object]:
    """Number and window of a chunk, for a table."""
    window = chunk["window"]
    if "since" in window:
        return {"chunk": chunk["chunk_index"], "since": window["since"], "until": window["until"]}
    return {"chunk": chunk["chunk_index"], "revisions": f"r{window['start_rev']}..r{window['end_rev']}"}


# The run ------------------------------------------------------------------------------------------------


@dataclass
class _Sync:
    """One sync of a repository: the job types one group after the other, until a signal stops it."""

    settings: Settings
    database: Database
    repository: Repository
    as_json: bool
    update_watermark: bool = False
    stopped: bool = False
    counts: dict[JobType, Counts] = field(default_factory=dict)

    def incremental(self, wanted: Sequence[JobType], plans: Mapping[JobType, ReadPlan]) -> dict[str, Any]:
        """Sync what is new; returns the document."""
        from sync_pipeline.core.job_types import by_family
        from sync_pipeline.core.model import Mode
        from sync_pipeline.reports import runner

        documents = []
        for _, job_types in by_family(tuple(wanted)):
            started_at = clock.now()
            reports = self._execute(Mode.INCREMENTAL, job_types, None, plans)
            for job_type in job_types:
                document = runner.incremental_document(
                    self.repository,
                    job_type,
                    [report for report in reports if report.job_type is job_type],
                    started_at=started_at,
                    finished_at=clock.now(),
                )
                plan = plans.get(job_type)
                windows = [plan.window] if plan and plan.window else []
                documents.append(self._unless_stopped(document, job_type, windows))
        return runner.together(documents)

    def backfill(
        self, windows: Mapping[JobType, Sequence[Window]], plans: Mapping[JobType, ReadPlan]
    ) -> dict[str, Any]:
        """Read the windows of each job type; those that are read together and miss the same go in one run.
        Returns the document."""
        from sync_pipeline.core.model import Mode
        from sync_pipeline.database.pool import database_time
        from sync_pipeline.ledger import runs, watermarks
        from sync_pipeline.reports import runner
        from sync_pipeline.reports.plans import read_together

        documents = []
        for job_types in read_together(windows):
            todo = windows[job_types[0]]
            with self.database.connection() as conn:
                before = {j: watermarks.get(conn, self.repository.repo_id, j) for j in job_types}
                begun = database_time(conn)
            started_at = clock.now()
            reports = self._execute(Mode.BACKFILL, job_types, todo, plans) if todo else []
            for job_type in job_types:
                own = [report for report in reports if report.job_type is job_type]
                if self.stopped:
                    own += self._stopped_reports(job_type, begun, set(todo) - {one.window for one in own})
                with self.database.connection() as conn:
                    after = watermarks.get(conn, self.repository.repo_id, job_type)
                    batches = runs.batches(conn, [report.run_id for report in own if report.run_id])
                was = before[job_type]
                document = runner.backfill_document(
                    self.repository,
                    job_type,
                    own,
                    windows=todo,
                    batches=batches,
                    missing=self._missing(job_type, todo),
                    complete_before=was.covered,
                    watermark_updated=(was.origin, was.watermark) != (after.origin, after.watermark),
                    started_at=started_at,
                    finished_at=clock.now(),
                )
                documents.append(self._unless_stopped(document, job_type, todo))
        return runner.together(documents)

    def _stopped_reports(self, job_type: JobType, begun: datetime, windows: Set[Window]) -> list[JobReport]:
        """The reports of jobs that a signal stopped, from the ledger: the run has none."""
        from sync_pipeline.core.model import Mode
        from sync_pipeline.ledger import jobs, runs

        with self.database.connection() as conn:
            job_ids = runs.begun(conn, self.repository.repo_id, job_type, Mode.BACKFILL, begun)
            found = [jobs.report(conn, job_id) for job_id in job_ids]
        return [report for report in found if report.window in windows]

    def _missing(self, job_type: JobType, windows: Sequence[Window]) -> list[Window]:
        from sync_pipeline.ledger import watermarks

        key = self.repository.repo_id, job_type
        with self.database.connection() as conn:
            return [gap for window in windows for gap in watermarks.missing(conn, *key, window)]

    def _unless_stopped(
        self, document: dict[str, Any], job_type: JobType, windows: Sequence[Window]
    ) -> dict[str, Any]:
        """The document, or if a signal stopped the run, the one that says so."""
        from sync_pipeline.core.model import Counts
        from sync_pipeline.reports import runner

        if not self.stopped:
            return document
        counts = self.counts.get(job_type, Counts())
        return runner.stopped_document(document, self._missing(job_type, windows), counts)

    def _execute(
        self,
        mode: Mode,
        job_types: Sequence[JobType],
        windows: Sequence[Window] | None,
        plans: Mapping[JobType, ReadPlan],
    ) -> list[JobReport]:
        """Run the asset job in this process and show how it moves, unless a signal stopped an earlier one."""
        from sync_pipeline.cli.progress import of_rows, shown
        from sync_pipeline.orchestration.run import execute
        from sync_pipeline.reports.runner import chunk_line

        reports: list[JobReport] = []
        if self.stopped:
            return reports
        first = job_types[0]
        plan = plans.get(first)
        what = f"{self.repository.spec} {' and '.join(job_types)}"

        def ended(report: JobReport) -> None:
            reports.append(report)
            plain = not self.as_json and not sys.stderr.isatty()
            if plain and windows is not None and len(windows) > 1:
                done = sum(one.job_type is report.job_type for one in reports)
                output.print_message(chunk_line(self.repository, report, done, len(windows)))

        with shown(what, quiet=self.as_json, total=plan.expected.rows if plan else None) as show:
            show_rows = of_rows(show, first)

            def moved(counts: Mapping[JobType, Counts]) -> None:
                self.counts.update(counts)
                show_rows(counts)

            try:
                execute(
                    self.settings,
                    repo_ids=[self.repository.repo_id],
                    job_types=job_types,
                    mode=mode,
                    windows=windows,
                    update_watermark=self.update_watermark,
                    actor=shared.actor(),
                    reason=f"scm-sync runner {mode}",
                    on_counts=moved,
                    on_report=ended,
                )
            except (Cancelled, KeyboardInterrupt):
                # The latter before there is anything to give back.
                self.stopped = True
        return reports
