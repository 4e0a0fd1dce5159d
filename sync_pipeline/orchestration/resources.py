"""Resources of assets and sensors; each makes a plain domain object.

Belongs here: thin wrappers. The objects do not know Dagster. They take the settings as a nested resource
and show none of them: a resource's configuration can be read by everybody who sees the UI.
"""

# Dagster looks at the annotations of these classes while they are made, so they cannot be postponed.

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import dagster as dg
from pydantic import PrivateAttr

from sync_pipeline.core.catalog import instance_of
from sync_pipeline.core.errors import ConfigurationError
from sync_pipeline.core.model import JobType, Repository, Visit, Window
from sync_pipeline.database import migrations
from sync_pipeline.database.pool import Database
from sync_pipeline.ledger import watermarks
from sync_pipeline.runtime.environment import resolve_urls
from sync_pipeline.settings import Settings
from sync_pipeline.sources.gitlab.project import Activity, newest_activity
from sync_pipeline.sync.limiter import gitlab_limiter, svn_limiter
from sync_pipeline.sync.readers import Readers, not_configured, svn_reader

if TYPE_CHECKING:
    import gitlab

_SHARE_OF_WAITING = 0.25


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


class SvnResource(dg.ConfigurableResource):  # type: ignore[type-arg]
    """Readers of Subversion repositories."""

    settings: dg.ResourceDependency[Settings]

    def readers(self, database: Database) -> Readers:
        """The readers of the engine, with the shared rate limits of ``database``. A process needs one."""
        return Readers(self.settings, database)

    def visit(self, database: Database, repository: Repository, *, timeout: float) -> Visit:
        """The root and HEAD of a repository, read within ``timeout`` seconds. A quarter of them is for the
        wait for the rate limit. Raises SyncError."""
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
    """Clients of the configured GitLab servers, also for assets of your own (docs/dagster.md)."""

    settings: dg.ResourceDependency[Settings]
    _opened: ExitStack = PrivateAttr(default_factory=ExitStack)
    _readers: Readers | None = PrivateAttr(default=None)

    def client(self, instance: str = "") -> "gitlab.Gitlab":
        """python-gitlab for ``instance``, such as ``gitlab.example.com``; empty for the only server. Call it
        in each thread that uses it.

        It shares token, rate limit and retries with the syncing. Requests leave the server for no redirect or
        link, changes are sent once, and answers are at most 32 MB. Requests raise the errors of
        :mod:`sync_pipeline.core.errors` instead of python-gitlab's: SourceGone where there is nothing,
        AccessDenied, Permanent, Transient. Raises ConfigurationError where no such server is configured
        or the database of the rate limit is not ready.
        """
        known = [instance_of(server.url) for server in self.settings.gitlab_servers()]
        if not instance and len(known) > 1:
            raise ConfigurationError(f"several GitLab servers are configured; name one of {', '.join(known)}")
        if not known:
            raise ConfigurationError(not_configured(instance or "this code location"))
        if self._readers is None:
            postgres = PostgresResource(settings=self.settings)
            self._readers = Readers(self.settings, self._opened.enter_context(postgres.database()))
        client = self._readers.gitlab(instance or known[0])
        client.only_reads_json = False
        return client.api

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
        """Close what :meth:`client` opened."""
        self._readers = None
        self._opened.close()

    def readers(self, database: Database) -> Readers:
        """The clients of the engine, with the shared rate limits of ``database``. A process needs one."""
        return Readers(self.settings, database)

    def newest_activity(
        self, database: Database, instance: str, group_id: int | None, *, timeout: float
    ) -> Activity:
        """One page of the projects that were active last, within ``timeout`` seconds, a quarter of them for
        the wait for the rate limit; see :func:`~sync_pipeline.sources.gitlab.project.newest_activity`.
        Raises SyncError."""
        patience = timeout * _SHARE_OF_WAITING
        client = Readers(self.settings).gitlab(instance, patience=timeout - patience)
        client.limiter = gitlab_limiter(database, self.settings, instance, max_wait=patience)
        try:
            return newest_activity(client, group_id)
        finally:
            client.instance.close()


@dataclass(frozen=True, slots=True)
class WatermarkStore:
    """Coverage and watermarks. Safe to share between threads."""

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
    """Coverage and watermarks of (repository, job type)s."""

    postgres: dg.ResourceDependency[PostgresResource]

    @contextmanager
    def store(self, *, max_size: int = 4) -> Iterator[WatermarkStore]:
        """The store, on a pool of its own; see :meth:`PostgresResource.database`."""
        with self.postgres.database(max_size=max_size) as database:
            yield WatermarkStore(database)
