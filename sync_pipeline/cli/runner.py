"""``scm-sync runner``: sync one repository now, in this process.

Belongs here: what is new, and a range of revisions or of time, with the plan that a dry run shows. Does not
belong here: deriving facts anew from what is stored (:mod:`sync_pipeline.cli.repair`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sync_pipeline.cli.shared import (
    SUCCESS,
    AsJson,
    DryRun,
    Job,
    Repo,
    Row,
    actor,
    finish_runner,
    group,
    now,
    open_database,
    print_json,
    print_rows,
    progress,
    read_settings,
    visitor_for,
)
from sync_pipeline.errors import ConfigurationError

if TYPE_CHECKING:
    from sync_pipeline.model import JobReport, JobType, Repository, Window
    from sync_pipeline.operations.runner import Bounds
    from sync_pipeline.settings import Settings
    from sync_pipeline.store.database import Database

app = group("Sync one repository now, in this process.")


@app.command("incremental")
def runner_incremental(repo: Repo, job: Job = None, as_json: AsJson = False) -> int:
    """Sync what is new, up to the end of the source."""
    from sync_pipeline.model import Mode
    from sync_pipeline.operations import registration, runner
    from sync_pipeline.policy.families import by_family

    settings = read_settings()
    with open_database(settings) as database:
        repository = _active(registration.find_repository(database, repo))
    wanted = runner.job_types_for(repository, job)
    _need_server(settings, repository)
    documents = []
    for _, job_types in by_family(wanted):
        started_at = now()
        reports = _execute(
            settings,
            repo_ids=[repository.repo_id],
            job_types=job_types,
            mode=Mode.INCREMENTAL,
            windows=None,
            update_watermark=False,
            as_json=as_json,
        )
        documents += [
            runner.incremental_document(
                repository,
                job_type,
                [report for report in reports if report.job_type is job_type],
                started_at=started_at,
                finished_at=now(),
            )
            for job_type in job_types
        ]
    return finish_runner(runner.together(documents), as_json)


@app.command("backfill")
def runner_backfill(
    repo: Repo,
    job: Job = None,
    start_rev: Annotated[int | None, typer.Option("--start-rev", help="SVN: first revision.")] = None,
    end_rev: Annotated[int | None, typer.Option("--end-rev", help="SVN: last revision, included.")] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="GitLab: start; UTC without a zone.")
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="TIME", help="GitLab: end, not included.")
    ] = None,
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
    """Sync a range of revisions or of time; without bounds everything that is missing up to now."""
    from sync_pipeline.operations import registration, runner
    from sync_pipeline.store import watermarks

    bounds = runner.Bounds(start_rev, end_rev, since, until, last_days, last_hours)
    settings = read_settings()
    with open_database(settings) as database:
        repository = _active(registration.find_repository(database, repo))
        wanted = runner.job_types_for(repository, job)
        runner.check_bounds(repository, bounds)
        window, head = _backfill_window(settings, repository, bounds)
        with database.connection() as conn:
            plans = {
                job_type: runner.plan_backfill(
                    window, watermarks.missing(conn, repository.repo_id, job_type, window)
                )
                for job_type in wanted
            }
        if dry_run:
            document = runner.together(
                [
                    runner.plan_document(repository, job_type, window, head, plan)
                    for job_type, plan in plans.items()
                ]
            )
            if as_json:
                print_json(document)
            else:
                for one in document.get("jobs", [document]):
                    _print_plan(one)
            return SUCCESS
        only_missing = not bounds.given and not update_watermark
        windows = {
            job_type: runner.windows_to_read(window, plan, only_missing) for job_type, plan in plans.items()
        }
        documents = _backfill(settings, database, repository, windows, update_watermark, as_json)
    return finish_runner(runner.together(documents), as_json)


def _backfill_window(settings: Settings, repository: Repository, bounds: Bounds) -> tuple[Window, int | None]:
    """The window that is meant, and HEAD, for which SVN has to be asked."""
    from sync_pipeline.model import Kind
    from sync_pipeline.operations import registration, runner

    if repository.kind is not Kind.SVN:
        window = runner.time_window(bounds, now())
        _need_server(settings, repository)
        return window, None
    start_rev, end_rev = bounds.start_rev, bounds.end_rev
    # A wrong order is told before the source is asked.
    runner.backfill_window(start_rev, end_rev, head=max(start_rev or 1, end_rev or 1))
    head = registration.visit_source(repository.url, visitor_for(settings)).head
    return runner.backfill_window(start_rev, end_rev, head), head


def _backfill(
    settings: Settings,
    database: Database,
    repository: Repository,
    windows: Mapping[JobType, Sequence[Window]],
    update_watermark: bool,
    as_json: bool,
) -> list[dict[str, Any]]:
    """Read the windows of each job type; those that are read together and miss the same go in one run."""
    from sync_pipeline.model import Mode
    from sync_pipeline.operations import runner
    from sync_pipeline.policy.windows import hull
    from sync_pipeline.store import watermarks

    documents: list[dict[str, Any]] = []
    for job_types in runner.read_together(windows):
        todo = windows[job_types[0]]
        with database.connection() as conn:
            before = {j: watermarks.get(conn, repository.repo_id, j) for j in job_types}
        started_at = now()
        reports: list[JobReport] = []
        if todo:
            reports = _execute(
                settings,
                repo_ids=[repository.repo_id],
                job_types=job_types,
                mode=Mode.BACKFILL,
                windows=todo,
                update_watermark=update_watermark,
                as_json=as_json,
            )
        for job_type in job_types:
            with database.connection() as conn:
                after = watermarks.get(conn, repository.repo_id, job_type)
            was = before[job_type]
            documents.append(
                runner.backfill_document(
                    repository,
                    job_type,
                    [report for report in reports if report.job_type is job_type],
                    window=hull(todo),
                    watermark_updated=(was.origin, was.watermark) != (after.origin, after.watermark),
                    started_at=started_at,
                    finished_at=now(),
                )
            )
    return documents


def _need_server(settings: Settings, repository: Repository) -> None:
    """Refuse early what cannot be read because the settings have no server or no token for it."""
    from sync_pipeline.model import Kind
    from sync_pipeline.sync.readers import Readers

    if repository.kind is Kind.GITLAB:
        Readers(settings).fingerprint(repository.instance)


def _active(repository: Repository) -> Repository:
    from sync_pipeline.model import Lifecycle

    if repository.lifecycle is not Lifecycle.ACTIVE:
        raise ConfigurationError(
            f"{repository.spec} is retired; to sync it again run: scm-sync repo add {repository.spec}"
        )
    return repository


def _execute(settings: Settings, *, as_json: bool, **what: Any) -> list[JobReport]:
    """Run the asset job in this process, with a progress line on a terminal."""
    from sync_pipeline.orchestration.run import execute

    reason = f"scm-sync runner {what['mode']}"
    with progress(as_json, "new or changed") as show:
        return execute(settings, **what, actor=actor(), reason=reason, progress=show)


def _print_plan(document: Mapping[str, Any]) -> None:
    revisions = document["head"] is not None
    print_rows([_plan_row(chunk, revisions) for chunk in document["chunks"]])
    if revisions:
        missing = f"{document['missing_items']} revisions in {document['missing_chunks']} blocks"
        print(f"{missing} are missing; HEAD is r{document['head']}")
    else:
        missing = f"{document['missing_days']:g} days in {document['missing_chunks']} stretches"
        print(f"{document['repo']} {document['job']}: {missing} are missing")


def _plan_row(chunk: Mapping[str, Any], revisions: bool) -> Row:
    window = chunk["window"]
    if not revisions:
        row = {"chunk": chunk["chunk_index"], "since": window["since"], "until": window["until"]}
        return row | {"state": chunk["state"]}
    return {
        "chunk": chunk["chunk_index"],
        "revisions": f"r{window['start_rev']}..r{window['end_rev']}",
        "state": chunk["state"],
        "missing": sum(gap["end_rev"] - gap["start_rev"] + 1 for gap in chunk["missing"]),
    }
