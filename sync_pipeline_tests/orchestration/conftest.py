"""What the tests of this folder share: a database with a Dagster instance beside it, and a small GitLab.

Belongs here: ticks and runs of the real definitions, in this process.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.test_utils import freeze_time
from pydantic import SecretStr

from sync_pipeline.core import catalog, clock
from sync_pipeline.core.model import JobReport, JobType, Kind, Repository
from sync_pipeline.database.pool import Database
from sync_pipeline.ledger import repos
from sync_pipeline.orchestration.build import build_defs
from sync_pipeline.orchestration.instance import dagster_environment, quiet_dagster
from sync_pipeline.orchestration.specs import asset_key
from sync_pipeline.orchestration.step import Observer
from sync_pipeline.settings import Settings
from sync_pipeline_sandbox.gitlab import DEVELOPER, GitLab, GitRepository, Server, serve
from sync_pipeline_sandbox.gitlab.generator import generate
from sync_pipeline_sandbox.gitlab.records import Group, Project, Row
from sync_pipeline_tests.builders import register_project
from sync_pipeline_tests.conftest import ENVIRONMENT


@dataclass
class Ran:
    """A run of a job: how it ended, what the engine reported, what was materialized."""

    success: bool
    reports: list[JobReport]
    materialized: dict[str, list[str]]
    error: str

    def days(self, job_type: JobType) -> list[str]:
        """The partitions of the only asset of this job type, in order."""
        return self.materialized.get(str(job_type), [])


@dataclass
class Site:
    """A database with a Dagster instance beside it; every tick and run sees the catalog as it is then."""

    database: Database
    instance: dg.DagsterInstance
    settings: Settings
    cursors: dict[str, str | None] = field(default_factory=dict)

    def definitions(self, **overrides: Any) -> dg.Definitions:
        """The definitions of the catalog as it is."""
        with self.database.connection() as conn:
            snapshot = catalog.CatalogSnapshot(
                tuple(repos.list_all(conn)),
                history_start=repos.history_start(conn, self.settings.gitlab.history_floor),
            )
        return build_defs(settings=self.settings, snapshot=snapshot, only="", resource_overrides=overrides)

    def tick(self, name: str) -> dg.SensorResult | dg.SkipReason:
        """One tick of a sensor."""
        defs = self.definitions()
        location = defs.get_repository_def()
        with (
            quiet_dagster(),
            dg.build_sensor_context(
                instance=self.instance,
                cursor=self.cursors.get(name),
                definitions=defs,
                resources=dict(location.get_top_level_resources()),
                sensor_name=name,
            ) as context,
        ):
            found: dg.SensorResult | dg.SkipReason = location.get_sensor_def(name)(context)  # type: ignore[assignment]
            self.cursors[name] = context.cursor
        return found

    def schedule(self) -> list[dg.RunRequest]:
        """What a tick of the scheduler wants to be started."""
        found = self.tick("scheduler")
        assert isinstance(found, dg.SensorResult)
        return list(found.run_requests or [])

    def launch(self, request: dg.RunRequest, status: dg.DagsterRunStatus) -> None:
        """Put the run into the instance as the daemon would."""
        from dagster._core.test_utils import create_run_for_test

        assert request.asset_selection is not None
        assert request.job_name is not None
        create_run_for_test(
            self.instance,
            job_name=request.job_name,
            tags=tags_of(request),
            status=status,
            asset_selection=frozenset(request.asset_selection),
        )

    def run(
        self,
        job_name: str,
        tags: Mapping[str, str] | None = None,
        *,
        selection: Sequence[dg.AssetKey] | None = None,
        checks: bool = True,
    ) -> Ran:
        """Run a job here, as ``dagster job execute`` with these tags does. Without ``checks``: as the
        scheduler does."""
        reports: list[JobReport] = []
        observer = dg.ResourceDefinition.hardcoded_resource(Observer(on_report=reports.append))
        job = self.definitions(observer=observer).resolve_job_def(job_name)
        if not checks:
            job = job.get_subset(asset_selection=set(selection or ()), asset_check_selection=set())
        with quiet_dagster():
            done = job.execute_in_process(
                instance=self.instance,
                tags=dict(tags or {}),
                asset_selection=selection if checks else None,
                raise_on_error=False,
                run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
            )
        materialized: dict[str, list[str]] = {}
        # Not of the result: batches are written directly.
        for record in self.instance.all_logs(done.run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION):
            event = record.asset_materialization
            assert event is not None
            materialized.setdefault(event.asset_key.path[-1], []).append(str(event.partition))
        failures = [
            failure.description or ""
            if (failure := event.step_failure_data.user_failure_data) is not None
            else str(event.step_failure_data.error)
            for event in done.all_events
            if event.is_step_failure
        ]
        return Ran(done.success, reports, materialized, "; ".join(failures))

    def start(self, request: dg.RunRequest) -> Ran:
        """Run here what the scheduler asked for."""
        assert request.job_name is not None
        return self.run(request.job_name, tags_of(request), selection=request.asset_selection)

    def execute(self, sql: str, **params: Any) -> None:
        """A statement on the database."""
        with self.database.connection() as conn:
            conn.execute(sql, params)

    def rows(self, sql: str, **params: Any) -> list[dict[str, Any]]:
        """The rows of a query."""
        with self.database.connection() as conn:
            return conn.execute(sql, params).fetchall()


def tags_of(request: dg.RunRequest) -> dict[str, str]:
    """The tags that the run of a request has."""
    tags = dict(request.tags)
    return tags | ({"dagster/partition": request.partition_key} if request.partition_key else {})


@pytest.fixture(scope="session", autouse=True)
def unstamped() -> Iterator[None]:
    """Writes no version of migrations into Dagster's tables in memory, which takes most of their time."""
    with pytest.MonkeyPatch.context() as patch:
        for module in ("event_log", "runs"):
            patch.setattr(f"dagster._core.storage.{module}.in_memory.stamp_alembic_rev", lambda *_: None)
        yield


@pytest.fixture
def site(database: Database, database_url: str, tmp_path: Path) -> Iterator[Site]:
    """See :class:`Site`."""
    settings = Settings(
        database_url=database_url, environment=ENVIRONMENT, state_dir=tmp_path, max_queued_runs=3
    )
    with dg.DagsterInstance.ephemeral() as instance:
        yield Site(database, instance, settings)


@pytest.fixture
def stored(site: Site) -> Iterator[Site]:
    """A :class:`Site` whose Dagster keeps its records in PostgreSQL, as it does in earnest."""
    with dagster_environment(site.settings), quiet_dagster(), dg.DagsterInstance.get() as instance:
        yield Site(site.database, instance, site.settings)


@dataclass
class Forge:
    """A running GitLab in real time, whose projects are registered as they are made."""

    site: Site
    gitlab: GitLab
    server: Server
    group: Group
    user: Row
    folder: Path

    def git_project(self, path: str, *dates: str) -> int:
        """A project with a commit for each ISO date; returns its repo_id."""
        git = GitRepository.create(self.folder / f"{path}.git")
        for number, date in enumerate(dates):
            git.commit("main", f"Commit {number}\n", files={"a": f"{number}\n"}, date=seconds(date))
        return self._register(self.gitlab.project(path, group=self.group, repository=git))

    def large_project(self, path: str, merge_requests: int, beginning: datetime) -> int:
        """A project with so many merge requests, updated from ``beginning`` on; returns its repo_id."""
        return self._register(
            generate(
                self.gitlab,
                self.group,
                merge_requests=merge_requests,
                notes=1,
                path=path,
                beginning=beginning,
                tie=1,
            )
        )

    def _register(self, project: Project) -> int:
        origin = midnight(self.gitlab.clock.now() - timedelta(days=30))
        slug = next(catalog.aliases_for(Kind.GITLAB, catalog.instance_of(self.server.url)))
        with self.site.database.connection() as conn:
            repo_id = register_project(
                conn, self.server.url, project.id, f"{self.group.path}/{project.path}", origin=origin
            )
            conn.execute(
                "UPDATE scm.repos SET instance_slug = %(slug)s, created_at = %(now)s WHERE repo_id = %(id)s",
                {"slug": slug, "id": repo_id, "now": self.gitlab.clock.now()},
            )
        return repo_id

    def project(self, repo_id: int) -> Project:
        """The project behind a repository."""
        [row] = self.site.rows("SELECT project_id FROM scm.repos WHERE repo_id = %(id)s", id=repo_id)
        return self.gitlab.projects[row["project_id"]]

    def key(self, repo_id: int, job_type: JobType) -> dg.AssetKey:
        """The asset of a (repository, job type)."""
        with self.site.database.connection() as conn:
            repository: Repository = repos.get(conn, repo_id)
        return asset_key(repository, job_type)

    def asked(self, pattern: str = "") -> list[str]:
        """Paths that were requested since the last call, those that contain ``pattern``."""
        entries = self.gitlab.journal.entries[self._seen :]
        self._seen = len(self.gitlab.journal.entries)
        return [entry.path for entry in entries if pattern in entry.path]

    _seen: int = 0


def seconds(date: str) -> str:
    """A date as git writes it."""
    return f"{int(datetime.fromisoformat(date).replace(tzinfo=UTC).timestamp())} +0000"


@pytest.fixture
def noon(monkeypatch: pytest.MonkeyPatch) -> Iterator[datetime]:
    """Noon of yesterday in UTC, which is the time of this program and of Dagster. A test that looks at days
    runs right over midnight with it. It sets the clocks of its servers itself."""
    moment = midnight(clock.now()) - timedelta(hours=12)
    monkeypatch.setattr(clock, "now", lambda: moment)
    with freeze_time(moment):
        yield moment


def midnight(moment: datetime) -> datetime:
    """The start of its day in UTC."""
    return moment.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)


@pytest.fixture
def forge(site: Site, tmp_path: Path) -> Iterator[Forge]:
    """See :class:`Forge`."""
    gitlab = GitLab()
    group = gitlab.group("team1")
    user = gitlab.user("user1")
    gitlab.add_member(group, user, DEVELOPER)
    with serve(gitlab, prefix="/gitlab") as server:
        site.settings = site.settings.model_copy(
            update={
                "gitlab_url": server.url,
                "gitlab_token": SecretStr(gitlab.token(user).secret),
                # The sensor's ticks are not measured here.
                "changes_max_seconds": 30.0,
            }
        )
        yield Forge(site, gitlab, server, group, user, tmp_path)
    assert [entry.crash for entry in gitlab.journal.entries if entry.crash] == []
