"""The demo: sample repositories, registered and synced through the asset job, and a table that compares.

Belongs here: the walk through the product that ``./dev demo`` shows. It uses the same functions as the
command line. Twice in a row is harmless: what is there is kept and checked again.
"""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from pydantic import SecretStr
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from sync_pipeline.catalog import parse_spec
from sync_pipeline.child_environment import child_environment
from sync_pipeline.errors import SyncError
from sync_pipeline.model import (
    BEGINNING,
    Counts,
    JobReport,
    JobType,
    Mode,
    Repository,
    RevisionWindow,
    TimeWindow,
    Window,
)
from sync_pipeline.operations.environment import environment_variables
from sync_pipeline.operations.registration import add_repository
from sync_pipeline.orchestration.catalog_changes import after_catalog_change
from sync_pipeline.orchestration.run import execute
from sync_pipeline.sandbox import sample_gitlab, svn_samples
from sync_pipeline.sandbox.gitlab.records import Project
from sync_pipeline.settings import Settings, load_settings
from sync_pipeline.store import commits, facts, merge_requests, migrations, reviews, watermarks
from sync_pipeline.store.database import Connection, Database
from sync_pipeline.sync.readers import svn_reader

SAMPLES = {
    "paint": lambda: svn_samples.growing(1250),
    "atlas": lambda: svn_samples.growing(400, paths=3),
    "odds": svn_samples.odd,
}
"""The sample repositories and their histories."""


@dataclass(frozen=True, slots=True)
class Line:
    """One row of the table: what the source has against what is stored."""

    repository: str
    job_type: str
    source: int
    stored: int
    changed: int
    calls: int
    seconds: float
    status: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; 0 if everything registered is covered, 1 if not, 2 if it could not run, 3 if something
    has to be set right first."""
    parser = argparse.ArgumentParser(prog="dev demo", description="Sync sample repositories and compare.")
    parser.add_argument("--json", action="store_true", help="print the table as JSON")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    started = time.monotonic()
    console = Console(stderr=True)
    try:
        settings = load_settings()
        lines = run(settings, console)
    except SyncError as error:
        print(f"dev demo: {error}", file=sys.stderr)
        return 3 if error.code in ("configuration", "database_down") else 2
    complete = all(line.status == "complete" for line in lines)
    if options.json:
        print(json.dumps([asdict(line) for line in lines], indent=2))
    else:
        show(lines)
        verdict = "everything registered is covered" if complete else "NOT everything registered is covered"
        print(f"\n{verdict}; {time.monotonic() - started:.0f} s.")
        print("See it in the UI:   ./dev up")
        print('Then, for scm-sync: eval "$(.venv/bin/python -m sync_pipeline.sandbox.sample_gitlab)"')
        print('In a shell:         eval "$(.venv/bin/scm-sync env)"; psql "$SCM_DATABASE_URL" \\')
        print('                      -c "SELECT * FROM scm.v_facts ORDER BY ts DESC LIMIT 10"')
    return 0 if complete else 1


def run(settings: Settings, console: Console) -> list[Line]:
    """Everything up to the table."""
    console.print("demo: PostgreSQL and its tables", style="dim")
    url = environment_variables(settings)["SCM_DATABASE_URL"]
    migrations.migrate(url, settings.environment)
    console.print("demo: sample repositories, and a small GitLab with merge requests", style="dim")
    folder = settings.state_dir / "samples"
    places = {name: sample(folder / name, name) for name in SAMPLES}
    with sample_gitlab.start(folder) as server, Database(url) as database:
        where = sample_gitlab.choose_place(folder)
        settings = settings.model_copy(
            update={
                "gitlab_url": where.url,
                "gitlab_token": SecretStr(where.token),
                "gitlab_token_file": None,
                # It is our own.
                "gitlab_postgres_rate_limit_rate": 1000.0,
                "gitlab_postgres_rate_limit_burst": 1000,
            }
        )
        repositories = [register(settings, database, f"svn:{address}") for address in places.values()]
        projects = {
            register(settings, database, f"gitlab:{where.url}/{path}"): path
            for path in sample_gitlab.PROJECTS
        }
        after_catalog_change(settings, database)
        heads = {r.repo_id: youngest(places[name]) for r, name in zip(repositories, places, strict=True)}
        found = {p.full_path: p for p in server.gitlab.projects.values()}
        lines: list[Line] = []
        console.print("demo: the asset job of SVN over all blocks", style="dim")
        with progress_bar(console, "revisions", sum(heads.values())) as told:
            done = execute(
                settings,
                repo_ids=[r.repo_id for r in repositories],
                job_types=[JobType.REVISIONS],
                mode=Mode.BACKFILL,
                windows=[RevisionWindow(1, max(heads.values()) + 1)],
                actor="demo",
                reason="demo",
                on_counts=_after(Counts(), told),
            )
        lines += [line(database, r, JobType.REVISIONS, heads[r.repo_id], done) for r in repositories]
        for job_types in ([JobType.COMMITS], [JobType.MERGE_REQUESTS, JobType.REVIEWS]):
            truth = {(r, t): held(found[path], t) for r, path in projects.items() for t in job_types}
            names = " and ".join(job_types).replace("_", " ")
            console.print(f"demo: the asset job of {names}, what is new and all history", style="dim")
            with progress_bar(console, names, sum(truth.values())) as told:
                done = everything(settings, database, list(projects), job_types, told)
            lines += [line(database, r, t, number, done) for (r, t), number in truth.items()]
        return lines


def everything(
    settings: Settings,
    database: Database,
    projects: Sequence[Repository],
    job_types: Sequence[JobType],
    told: Callable[[Counts], None],
) -> list[JobReport]:
    """Live syncing of the projects, then the history before it that is still missing."""
    what: dict[str, Any] = {"job_types": job_types, "actor": "demo", "reason": "demo"}
    ids = [project.repo_id for project in projects]
    reports = execute(settings, repo_ids=ids, mode=Mode.INCREMENTAL, on_counts=_after(Counts(), told), **what)
    seen = sum((report.counts for report in reports), Counts())
    for project in projects:
        with database.connection() as conn:
            origin = watermarks.get(conn, project.repo_id, job_types[0]).origin
            assert isinstance(origin, datetime)
            before = TimeWindow(BEGINNING, origin)
            missing = watermarks.missing(conn, project.repo_id, job_types[0], before)
        if missing:
            reports += execute(
                settings,
                repo_ids=[project.repo_id],
                mode=Mode.BACKFILL,
                windows=list(missing),
                on_counts=_after(seen, told),
                **what,
            )
            seen = sum((report.counts for report in reports), Counts())
    return reports


def _after(seen: Counts, told: Callable[[Counts], None]) -> Callable[[Mapping[JobType, Counts]], None]:
    return lambda counts: told(sum(counts.values(), seen))


def sample(path: Path, name: str) -> str:
    """The URL of a sample repository; made if it is not there."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        svn_samples.create(path, SAMPLES[name]())
    return path.resolve().as_uri()


def register(settings: Settings, database: Database, text: str) -> Repository:
    """The catalog's row of the sample."""
    registered = add_repository(
        database,
        settings,
        parse_spec(text),
        tenant="demo",
        actor="demo",
        reader_factory=lambda url: svn_reader(settings, url),
    )
    assert registered.repository is not None
    return registered.repository


def youngest(address: str) -> int:
    """How many revisions the source has, asked of the repository itself and not through our reader."""
    path = Path(unquote(address.removeprefix("file://")))
    return _number_said_by(["svnlook", "youngest", str(path)])


def held(project: Project, job_type: JobType) -> int:
    """How many rows the source has, asked of git and of the server itself, not through our reader."""
    requests = project.merge_requests.values()
    if job_type is JobType.MERGE_REQUESTS:
        return len(requests)
    if job_type is JobType.REVIEWS:
        return sum(
            len(r.notes) + len(r.state_events) + len(r.label_events) + len(r.milestone_events)
            for r in requests
        )
    assert project.repository is not None
    command = ["git", "-C", str(project.repository.path), "rev-list", "--branches", "--tags", "--count"]
    return _number_said_by(command)


def _number_said_by(command: Sequence[str]) -> int:
    environment = child_environment(["HOME"], LC_ALL="C.UTF-8")
    return int(subprocess.run(command, check=True, capture_output=True, env=environment).stdout)


_COUNT: dict[JobType, Callable[[Connection, int], int]] = {
    JobType.REVISIONS: facts.count_revisions,
    JobType.COMMITS: commits.count_commits,
    JobType.MERGE_REQUESTS: merge_requests.count_merge_requests,
    JobType.REVIEWS: reviews.count_events,
}


def line(
    database: Database, repository: Repository, job_type: JobType, source: int, reports: Sequence[JobReport]
) -> Line:
    """Compare one (repository, job type) with what is stored of it."""
    mine = [r for r in reports if (r.repo_id, r.job_type) == (repository.repo_id, job_type)]
    counts = sum((r.counts for r in mine), Counts())
    with database.connection() as conn:
        stored = _COUNT[job_type](conn, repository.repo_id)
        row = watermarks.get(conn, repository.repo_id, job_type)
        end = row.watermark
        whole: Window | None = None
        if job_type is JobType.REVISIONS:
            whole = RevisionWindow(1, source + 1)
        elif isinstance(end, datetime):
            whole = TimeWindow(BEGINNING, end)
        covered = whole is not None and not watermarks.missing(conn, repository.repo_id, job_type, whole)
    failed = next((r.error for r in mine if not r.succeeded), None)
    return Line(
        repository=repository.slug,
        job_type=str(job_type),
        source=source,
        stored=stored,
        changed=counts.changed,
        calls=sum(r.calls for r in mine),
        seconds=round(sum(r.seconds for r in mine), 2),
        status=failed or ("complete" if covered and stored == source else "incomplete"),
    )


def show(lines: Sequence[Line]) -> None:
    """Print the table."""
    table = Table(title="What the sources have and what is stored")
    for name in ("repository", "job type"):
        table.add_column(name, overflow="fold")
    for name in ("source", "stored", "changed now", "calls", "seconds"):
        table.add_column(name, justify="right")
    table.add_column("status")
    for row in lines:
        table.add_row(
            row.repository,
            row.job_type,
            f"{row.source:,}",
            f"{row.stored:,}",
            f"{row.changed:,}",
            str(row.calls),
            f"{row.seconds:.2f}",
            f"[green]{row.status}[/]" if row.status == "complete" else f"[red]{row.status}[/]",
        )
    console = Console()
    # A pipe has no width of its own; a cut cell would be worse than a long line.
    Console(width=max(console.width, 110) if not console.is_terminal else None).print(table)


@contextmanager
def progress_bar(console: Console, what: str, total: int) -> Iterator[Callable[[Counts], None]]:
    """A bar over all rows, on a terminal only."""
    columns = (TextColumn(f"demo: {what}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task(what, total=total)

        def report(counts: Counts) -> None:
            progress.update(task, completed=counts.read)

        yield report


if __name__ == "__main__":
    sys.exit(main())
