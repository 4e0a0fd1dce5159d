"""The demo: sample repositories, registered and synced through the asset jobs, and a table that compares.

Belongs here: the steps of ``./dev demo``. It syncs, lets the sources change, and syncs again, so that force
pushes, deleted notes and edited messages are in the tables. It uses the same functions as the command line. A
second demo, or one after a killed demo, ends with the same rows: existing data is kept and checked again.
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
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from urllib.parse import unquote

from pydantic import SecretStr
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from sync_pipeline.core.catalog import parse_spec
from sync_pipeline.core.child_environment import child_environment
from sync_pipeline.core.errors import SyncError
from sync_pipeline.core.model import (
    BEGINNING,
    Access,
    Counts,
    JobReport,
    JobType,
    Mode,
    Repository,
    RevisionWindow,
    TimeWindow,
    Window,
)
from sync_pipeline.database import migrations
from sync_pipeline.database.pool import Connection, Database
from sync_pipeline.database.ranges import from_ranges
from sync_pipeline.facts import commits, merge_requests, people, reviews, svn_revisions
from sync_pipeline.ledger import job_actions, repos, watermarks
from sync_pipeline.ledger.job_actions import Filters
from sync_pipeline.orchestration.catalog_changes import after_catalog_change
from sync_pipeline.orchestration.run import execute
from sync_pipeline.registry.registration import add_repository
from sync_pipeline.runtime.environment import environment_variables
from sync_pipeline.settings import Settings, load_settings
from sync_pipeline.sync.readers import svn_reader
from sync_pipeline_sandbox import sample_activity, sample_gitlab, sample_svn
from sync_pipeline_sandbox.gitlab.records import Project
from sync_pipeline_sandbox.people import TEAM

_DENIED = "denied"
# Pieces of the history of one project.
_MAX_WINDOWS = 100


@dataclass(frozen=True, slots=True)
class Line:
    """One row of the table: rows at the source and stored rows. ``repository`` is the slug, ``name`` the path
    of the project or of the SVN repository.
    """

    repository: str
    name: str
    job_type: str
    source: int
    stored: int
    changed: int
    calls: int
    seconds: float
    status: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo. The exit code is 0 if everything registered is covered, 1 if not, 2 if it could not run.
    It is 3 if the configuration is wrong.
    """
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
    denied = [line for line in lines if line.status == _DENIED and line.name == sample_activity.DENIED]
    complete = all(line.status == "complete" for line in lines if line not in denied)
    if options.json:
        print(json.dumps([asdict(line) for line in lines], indent=2))
    else:
        show(lines)
        verdict = "everything that the token may read is covered" if complete else "NOT everything is covered"
        print(f"\n{verdict}; {time.monotonic() - started:.0f} s.")
        if denied:
            print(f"{sample_activity.DENIED} is denied on purpose: the token may not read it.")
        print("See it in the UI:   ./dev up")
        print('Then, for scm-sync: eval "$(.venv/bin/python -m sync_pipeline_sandbox.sample_gitlab)"')
        print('In a shell:         eval "$(.venv/bin/scm-sync env)"; psql "$SCM_DATABASE_URL" \\')
        print('                      -c "SELECT * FROM scm.v_facts ORDER BY ts DESC LIMIT 10"')
    return 0 if complete else 1


def run(settings: Settings, console: Console, now: datetime | None = None) -> list[Line]:
    """Everything up to the table. New samples end at ``now`` (UTC)."""
    console.print("demo: PostgreSQL and its tables", style="dim")
    url = environment_variables(settings)["SCM_DATABASE_URL"]
    migrations.migrate(url, settings.environment)
    folder = settings.state_dir / "samples"
    with Database(url) as database:
        console.print("demo: sample repositories, and a mock GitLab with merge requests", style="dim")
        with database.connection() as conn, conn.transaction():
            # A company does this from its directory.
            for person in TEAM:
                people.link(conn, person.name, person.accounts)
        where = sample_gitlab.choose_address(folder, now)
        with database.connection() as conn:
            is_known = any(one.url.startswith(f"{where.url}/") for one in repos.list_all(conn))
        if where.changed and not is_known:
            # Another database: its first sync has to come before the changes.
            sample_gitlab.begin_again(folder)
        with sample_gitlab.start(folder) as sample:
            return _sync_twice(settings, console, database, folder, sample)


def _sync_twice(
    settings: Settings, console: Console, database: Database, folder: Path, sample: sample_gitlab.Sample
) -> list[Line]:
    """Sync, let the sources change if they did not before, and sync again."""
    where = sample.address
    addresses = sample_svn.create(folder, where.anchor, edited=where.changed)
    settings = settings.model_copy(
        update={
            "gitlab_url": where.url,
            "gitlab_token": SecretStr(where.token),
            "gitlab_token_file": None,
            # It is our own.
            "gitlab_postgres_rate_limit_rate": 1000.0,
            "gitlab_postgres_rate_limit_burst": 1000,
            # Each demo reads the newest revisions again, for messages that were edited.
            "sweep_interval_seconds": 1.0,
        }
    )
    svn = {register(settings, database, f"svn:{one}"): one for one in addresses.values()}
    paths = (*sample_activity.READABLE, sample_activity.DENIED)
    gitlab = {register(settings, database, f"gitlab:{where.url}/{path}"): path for path in paths}
    after_catalog_change(settings, database)
    projects = {one.full_path: one for one in sample.server.gitlab.projects.values()}
    heads = {repository: youngest(address) for repository, address in svn.items()}
    sync = Sync(settings, database, console)
    sync.revisions(heads)
    sync.projects(gitlab, projects)
    if sync.is_healthy:
        if not sample.address.changed:
            console.print("demo: the sources change: a force push, a deleted note, ...", style="dim")
            sample.go_on()
            sample_svn.edit(folder, edited=True)
            sync.projects(gitlab, projects)
        sync.edited_revisions(heads)
    lines = [line(database, r, JobType.REVISIONS, head, sync.reports) for r, head in heads.items()]
    for repository, path in gitlab.items():
        for one in (job_type for job_types in _FAMILIES for job_type in job_types):
            lines.append(line(database, repository, one, held(projects[path], one), sync.reports))
    return lines


_FAMILIES = ((JobType.COMMITS,), (JobType.MERGE_REQUESTS, JobType.REVIEWS))
"""Job types of GitLab that are read together."""


@dataclass
class Sync:
    """Runs the asset jobs, and keeps their reports."""

    settings: Settings
    database: Database
    console: Console
    reports: list[JobReport] = field(default_factory=list)

    @property
    def is_healthy(self) -> bool:
        """Whether nothing failed except denied projects."""
        return all(one.succeeded or one.error_code == _DENIED for one in self.reports)

    def revisions(self, heads: Mapping[Repository, int]) -> None:
        """Read all missing revisions."""
        gaps: list[Window] = []
        with self.database.connection() as conn:
            for repository, head in heads.items():
                whole = RevisionWindow(1, head + 1)
                gaps += watermarks.missing(conn, repository.repo_id, JobType.REVISIONS, whole)
        if gaps:
            self.console.print("demo: the asset job of SVN over all blocks", style="dim")
            whole = RevisionWindow(1, max(heads.values()) + 1)
            self._run(list(heads), [JobType.REVISIONS], sum(heads.values()), [whole])

    def edited_revisions(self, heads: Mapping[Repository, int]) -> None:
        """Run an SVN incremental, which reads the newest revisions again."""
        self.console.print("demo: the asset job of SVN, what is new or edited", style="dim")
        self._run(list(heads), [JobType.REVISIONS], None)

    def projects(self, gitlab: Mapping[Repository, str], projects: Mapping[str, Project]) -> None:
        """Run GitLab incrementals, after the history that is still missing. Denied projects have separate
        runs, which fail.
        """
        readable = [r for r, path in gitlab.items() if path in sample_activity.READABLE]
        denied = [r for r in gitlab if r not in readable]
        for job_types in _FAMILIES:
            names = " and ".join(job_types).replace("_", " ")
            self.console.print(f"demo: the asset job of {names}, all history and what is new", style="dim")
            rows = sum(held(projects[gitlab[r]], one) for r in readable for one in job_types)
            for some in (readable, denied):
                for window, ids in self._without_history(some, job_types[0]).items():
                    self._run(ids, job_types, rows, [window])
                if not (some is denied and self._is_denied(some, job_types[0])):
                    self._run(some, job_types, rows)

    def _without_history(
        self, repositories: Sequence[Repository], job_type: JobType
    ) -> Mapping[Window, Sequence[Repository]]:
        """Repositories by each window of history that their registration queued. Commits have none, because
        each visit reads all of them.
        """
        found: dict[Window, list[Repository]] = {}
        with self.database.connection() as conn:
            for one in repositories:
                if watermarks.get(conn, one.repo_id, job_type).access is Access.DENIED:
                    continue
                queued = Filters(repo_id=one.repo_id, job_type=job_type, mode=Mode.BACKFILL)
                jobs = job_actions.listed(conn, queued, _MAX_WINDOWS)
                for window in (from_ranges(job["revs"], job["period"]) for job in jobs):
                    if window is not None:
                        found.setdefault(window, []).append(one)
        return found

    def _is_denied(self, repositories: Sequence[Repository], job_type: JobType) -> bool:
        """Whether a run of this demo has just been denied."""
        ids = {one.repo_id for one in repositories}
        return any(one.repo_id in ids and one.job_type is job_type for one in self.reports)

    def _run(
        self,
        repositories: Sequence[Repository],
        job_types: Sequence[JobType],
        rows: int | None,
        windows: Sequence[Window] | None = None,
    ) -> None:
        """One run: of the windows, or an incremental."""
        with progress_bar(self.console, " and ".join(job_types).replace("_", " "), rows) as show_counts:
            self.reports += execute(
                self.settings,
                repo_ids=[one.repo_id for one in repositories],
                job_types=job_types,
                mode=Mode.INCREMENTAL if windows is None else Mode.BACKFILL,
                windows=windows,
                actor="demo",
                reason="demo",
                on_counts=lambda counts: show_counts(sum(counts.values(), Counts())),
            )


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
    """How many revisions the source has, read from the repository itself and not through our reader."""
    path = Path(unquote(address.removeprefix("file://")))
    return _number_printed_by(["svnlook", "youngest", str(path)])


def held(project: Project, job_type: JobType) -> int:
    """How many rows the source has, read from git and from the server itself, not through our reader."""
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
    return _number_printed_by(command)


def _number_printed_by(command: Sequence[str]) -> int:
    environment = child_environment(["HOME"], LC_ALL="C.UTF-8")
    return int(subprocess.run(command, check=True, capture_output=True, env=environment).stdout)


_COUNT: dict[JobType, Callable[[Connection, int], int]] = {
    JobType.REVISIONS: svn_revisions.count_revisions,
    JobType.COMMITS: commits.count_commits,
    JobType.MERGE_REQUESTS: merge_requests.count_merge_requests,
    JobType.REVIEWS: reviews.count_events,
}


def line(
    database: Database, repository: Repository, job_type: JobType, source: int, reports: Sequence[JobReport]
) -> Line:
    """Compare the source of one asset with its stored rows."""
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
    if row.access is Access.DENIED:
        failed = _DENIED
    return Line(
        repository=repository.slug,
        name=repository.project_path or repository.url.rpartition("/")[2],
        job_type=str(job_type),
        source=source,
        stored=stored,
        changed=counts.changed,
        calls=sum(r.calls for r in mine),
        seconds=round(sum(r.seconds for r in mine), 2),
        status=failed or ("complete" if covered and stored == source else "incomplete"),
    )


_WIDE = 75
_COLOURS = {"complete": "green", _DENIED: "yellow"}


def show(lines: Sequence[Line], width: int | None = None) -> None:
    """Print the table, with fewer columns if ``width`` (that of the terminal) is small. Only the first line
    of a repository has its name.
    """
    console = Console()
    # A pipe has no width of its own; a cut cell would be worse than a long line.
    width = width or (console.width if console.is_terminal else max(console.width, 110))
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for name in ("repository", "job type"):
        table.add_column(name, overflow="fold")
    numbers = ["source", "stored", *(("changed", "calls") if width >= _WIDE else ())]
    for name in numbers:
        table.add_column(name, justify="right")
    table.add_column("status", overflow="fold")
    before = ""
    for row in lines:
        cells = [f"{row.source:,}", f"{row.stored:,}", f"{row.changed:,}", str(row.calls)]
        table.add_row(
            row.name if row.repository != before else "",
            row.job_type,
            *cells[: len(numbers)],
            f"[{_COLOURS.get(row.status, 'red')}]{escape(row.status)}[/]",
        )
        before = row.repository
    print("Rows at the sources, and stored rows:\n")
    Console(width=width).print(table)


@contextmanager
def progress_bar(console: Console, what: str, total: int | None) -> Iterator[Callable[[Counts], None]]:
    """A bar over all rows (None: unknown number), on a terminal only."""
    columns = (TextColumn(f"demo: {what}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task(what, total=total)

        def report(counts: Counts) -> None:
            progress.update(task, completed=counts.read)

        yield report


if __name__ == "__main__":
    sys.exit(main())
