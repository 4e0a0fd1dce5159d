"""Resources: what Dagster hands to assets and sensors, each making a plain domain object.

Belongs here: thin wrappers. Nothing behind them knows Dagster. They take the settings as a nested resource
and show none of them: a resource's configuration can be read by everybody who sees the UI.
"""

# Dagster looks at the annotations of these classes while they are made, so they cannot be postponed.

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import dagster as dg

from sync_pipeline.catalog import instance_of
from sync_pipeline.errors import ConfigurationError
from sync_pipeline.model import JobType, Repository, Visit, Window
from sync_pipeline.operations.environment import resolve_urls
from sync_pipeline.settings import Settings
from sync_pipeline.sources.gitlab.activity import Activity, newest_activity
from sync_pipeline.sources.gitlab.transport import Instance
from sync_pipeline.store import migrations, watermarks
from sync_pipeline.store.database import Database
from sync_pipeline.sync.limiter import gitlab_limiter, svn_limiter
from sync_pipeline.sync.readers import Readers, svn_reader

_SHARE_OF_WAITING = 0.25


class SvnResource(dg.ConfigurableResource):  # type: ignore[type-arg]
    """Readers of Subversion repositories."""

    settings: dg.ResourceDependency[Settings]

    def readers(self, database: Database) -> Readers:
        """What the engine makes its readers with; one for everything that a process does at a time.
        ``database`` has the shared rate limits."""
        return Readers(self.settings, database)

    def visit(self, database: Database, repository: Repository, *, timeout: float) -> Visit:
        """A quick look at a repository's front door, of at most ``timeout`` seconds, a quarter of them for
        the wait for its turn. Raises SyncError."""
        patience = timeout * _SHARE_OF_WAITING
        settings = self.settings.model_copy(
            update={
                "svn_info_timeout_seconds": min(timeout - patience, self.settings.svn.info_timeout_seconds)
            }
        )
        reader = svn_reader(
            settings,
            repository.svn_root or repository.url,
            repository.svn_prefix,
            attempts=1,
            limiter=svn_limiter(database, settings, repository.instance, max_wait=patience),
        )
        visit: Visit = reader.visit()
        return visit


class GitLabResource(dg.ConfigurableResource):  # type: ignore[type-arg]
    """Clients of the configured GitLab servers."""

    settings: dg.ResourceDependency[Settings]

    def readers(self, database: Database) -> Readers:
        """What the engine makes its clients with; one for everything that a process does at a time.
        ``database`` has the shared rate limits."""
        return Readers(self.settings, database)

    def newest_activity(
        self, database: Database, instance: str, group_id: int | None, *, timeout: float
    ) -> Activity:
        """One page of the projects that were active last, within ``timeout`` seconds, a quarter of them for
        the wait for its turn; see :func:`~sync_pipeline.sources.gitlab.activity.newest_activity`. Raises
        SyncError."""
        patience = timeout * _SHARE_OF_WAITING
        for server in self.settings.gitlab_servers():
            if instance_of(server.url) == instance:
                quick = Instance(
                    server.url,
                    server.token,
                    ca_file=server.ca_file,
                    connect_timeout=timeout - patience,
                    read_timeout=timeout - patience,
                    total_timeout=timeout - patience,
                    attempts=1,
                    limiter=gitlab_limiter(database, self.settings, instance, max_wait=patience),
                )
                try:
                    return newest_activity(quick.client(), group_id)
                finally:
                    quick.close()
        raise ConfigurationError(f"no GitLab is configured for {instance}")


class PostgresResource(dg.ConfigurableResource):  # type: ignore[type-arg]
    """The database with the facts and the ledger."""

    settings: dg.ResourceDependency[Settings]

    @contextmanager
    def database(self, *, max_size: int = 4) -> Iterator[Database]:
        """A pool of at most ``max_size`` connections, closed at the end of the block. Raises
        ConfigurationError if the database is down, not migrated, or marked for another environment."""
        url = self.settings.database_url or resolve_urls(self.settings).database_url
        migrations.require(url, self.settings.environment)
        with Database(url, max_size=max_size) as database:
            yield database


@dataclass(frozen=True, slots=True)
class WatermarkStore:
    """Questions about what is known to be complete. Safe to share between threads."""

    database: Database

    def get(self, repo_id: int, job_type: JobType) -> watermarks.WatermarkRow:
        """Coverage, watermark and access of one (repository, job type). Raises ConfigurationError."""
        with self.database.connection() as conn:
            return watermarks.get(conn, repo_id, job_type)

    def missing(self, repo_id: int, job_type: JobType, window: Window) -> tuple[Window, ...]:
        """The parts of ``window`` that are not covered."""
        with self.database.connection() as conn:
            return watermarks.missing(conn, repo_id, job_type, window)

    def move_origin(
        self, repo_id: int, job_type: JobType, window: Window, *, actor: str, reason: str
    ) -> bool:
        """Let live syncing count from the start of ``window``; see the store's function."""
        with self.database.connection() as conn:
            return watermarks.move_origin(
                conn, repo_id=repo_id, job_type=job_type, window=window, actor=actor, reason=reason
            )


class WatermarkStoreResource(dg.ConfigurableResource):  # type: ignore[type-arg]
    """What is known to be complete."""

    postgres: dg.ResourceDependency[PostgresResource]

    @contextmanager
    def store(self, *, max_size: int = 4) -> Iterator[WatermarkStore]:
        """The store, on a pool of its own; see :meth:`PostgresResource.database`."""
        with self.postgres.database(max_size=max_size) as database:
            yield WatermarkStore(database)
