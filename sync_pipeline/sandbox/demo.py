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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import unquote

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from sync_pipeline.catalog import parse_spec
from sync_pipeline.errors import SyncError
from sync_pipeline.model import Counts, JobReport, JobType, Mode, Repository, RevisionWindow
from sync_pipeline.operations.environment import environment_variables
from sync_pipeline.operations.registration import add_repository
from sync_pipeline.orchestration.catalog_changes import after_catalog_change
from sync_pipeline.orchestration.run import execute
from sync_pipeline.sandbox import svn_samples
from sync_pipeline.settings import Settings, load_settings
from sync_pipeline.store import facts, migrations, watermarks
from sync_pipeline.store.database import Database
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
        print('In a shell:         eval "$(.venv/bin/scm-sync env)"; psql "$SCM_DATABASE_URL" \\')
        print('                      -c "SELECT * FROM scm.v_facts ORDER BY ts DESC LIMIT 10"')
    return 0 if complete else 1


def run(settings: Settings, console: Console) -> list[Line]:
    """Everything up to the table."""
    console.print("demo: PostgreSQL and its tables", style="dim")
    url = environment_variables(settings)["SCM_DATABASE_URL"]
    migrations.migrate(url, settings.environment)
    console.print("demo: sample repositories", style="dim")
    places = {name: sample(settings.state_dir / "samples" / name, name) for name in SAMPLES}
    with Database(url) as database:
        repositories = [register(settings, database, address) for address in places.values()]
        after_catalog_change(settings, database)
        heads = {r.repo_id: youngest(places[name]) for r, name in zip(repositories, places, strict=True)}
        console.print("demo: the asset job over all blocks", style="dim")
        reports: list[JobReport] = []
        with progress_bar(console, sum(heads.values())) as report_progress:
            reports = execute(
                settings,
                repo_ids=[r.repo_id for r in repositories],
                job_types=[JobType.REVISIONS],
                mode=Mode.BACKFILL,
                windows=[RevisionWindow(1, max(heads.values()) + 1)],
                actor="demo",
                reason="demo",
                progress=report_progress,
            )
        return [line(database, r, heads[r.repo_id], reports) for r in repositories]


def sample(path: Path, name: str) -> str:
    """The URL of a sample repository; made if it is not there."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        svn_samples.create(path, SAMPLES[name]())
    return path.resolve().as_uri()


def register(settings: Settings, database: Database, address: str) -> Repository:
    """The catalog's row of the sample."""
    registered = add_repository(
        database,
        settings,
        parse_spec(f"svn:{address}"),
        tenant="demo",
        actor="demo",
        reader_factory=lambda url: svn_reader(settings, url),
    )
    assert registered.repository is not None
    return registered.repository


def youngest(address: str) -> int:
    """How many revisions the source has, asked of the repository itself and not through our reader."""
    path = Path(unquote(address.removeprefix("file://")))
    answer = subprocess.run(["svnlook", "youngest", path], check=True, capture_output=True, text=True)
    return int(answer.stdout)


def line(database: Database, repository: Repository, head: int, reports: Sequence[JobReport]) -> Line:
    """Compare one repository with what is stored of it."""
    mine = [r for r in reports if r.repo_id == repository.repo_id]
    counts = sum((r.counts for r in mine), Counts())
    with database.connection() as conn:
        stored = facts.count_revisions(conn, repository.repo_id)
        covered = watermarks.get(conn, repository.repo_id, JobType.REVISIONS).covered
    failed = next((r.error for r in mine if not r.succeeded), None)
    complete = stored == head and covered == (RevisionWindow(1, head + 1),)
    return Line(
        repository=repository.slug,
        job_type=str(JobType.REVISIONS),
        source=head,
        stored=stored,
        changed=counts.changed,
        calls=sum(r.calls for r in mine),
        seconds=round(sum(r.seconds for r in mine), 2),
        status=failed or ("complete" if complete else "incomplete"),
    )


def show(lines: Sequence[Line]) -> None:
    """Print the table."""
    table = Table(title="What the sources have and what is stored")
    for name in ("repository", "job type"):
        table.add_column(name, overflow="fold")
    for name in ("source", "stored", "changed now", "svn calls", "seconds"):
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
def progress_bar(console: Console, total: int) -> Iterator[Callable[[Counts], None]]:
    """A bar over all revisions, on a terminal only."""
    columns = (TextColumn("demo: revisions"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task("revisions", total=total)

        def report(counts: Counts) -> None:
            progress.update(task, completed=counts.read)

        yield report


if __name__ == "__main__":
    sys.exit(main())
