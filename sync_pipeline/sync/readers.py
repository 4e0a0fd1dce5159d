"""Readers and clients for repositories, made from the settings.

Belongs here: the step from settings and a row of the catalog to a reader or client with the shared rate limit
of its server. Secrets go straight into the client. Does not belong here: reading.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial

from sync_pipeline.core.catalog import instance_of
from sync_pipeline.core.errors import ConfigurationError
from sync_pipeline.core.model import Repository
from sync_pipeline.database.pool import Database
from sync_pipeline.settings import GitLabServer, Settings
from sync_pipeline.sources.gitlab.transport import Client, Instance, RateLimiter, Unlimited
from sync_pipeline.sources.svn import Client as SvnClient
from sync_pipeline.sources.svn.reader import SvnReader
from sync_pipeline.sync.limiter import FIRST_IN_FLIGHT, TenantLimiter, gitlab_limiter, svn_limiter

_FINGERPRINT = 16

Cancelled = Callable[[], bool]


class Readers:
    """Makes readers and clients; share one per process, because a GitLab server's connections and what is
    known about its token belong to the process. Safe to share between threads.

    ``database`` holds the shared rate limits. Without it, which is for reading tokens and for tests, nothing
    is limited.
    """

    def __init__(self, settings: Settings, database: Database | None = None) -> None:
        self._settings = settings
        self._database = database
        self._servers = {instance_of(server.url): server for server in settings.gitlab_servers()}
        self._instances: dict[str, Instance] = {}
        self._svn_limiters: dict[str, RateLimiter] = {}

    def svn(self, repo: Repository, cancelled: Cancelled) -> SvnReader:
        """The reader of an SVN repository; ``cancelled`` returns whether to stop."""
        limiter = self._svn_limiters.get(repo.instance)
        if limiter is None and self._database is not None:
            made = svn_limiter(self._database, self._settings, repo.instance)
            limiter = self._svn_limiters.setdefault(repo.instance, made)
        return svn_reader(
            self._settings, repo.svn_root or repo.url, repo.svn_prefix, cancelled, limiter=limiter
        )

    def gitlab(
        self,
        instance: str,
        cancelled: Cancelled = lambda: False,
        *,
        patience: float | None = None,
        tenant: str | None = None,
    ) -> Client:
        """A client of the GitLab server with this key, for one thread; ``patience`` as for
        :meth:`~sync_pipeline.sources.gitlab.transport.Instance.client`. Its requests also count for
        ``tenant``, where tenants have limits. Raises ConfigurationError where no such server is configured or
        its token cannot be read."""
        made = self._instances.get(instance)
        if made is None:
            server = self._server(instance)
            made = self._instances.setdefault(instance, self.connect(server))
        client = made.client(cancelled, patience=patience)
        if tenant is not None and self._settings.tenant_rate_limit.enabled and self._database is not None:
            client.limiter = TenantLimiter(self._database, self._settings, instance, tenant, client.limiter)
        return client

    def connect(self, server: GitLabServer) -> Instance:
        """The connections to a server; made once per process."""
        limiter: RateLimiter = Unlimited(min(FIRST_IN_FLIGHT, self._settings.gitlab.parallel))
        if self._database is not None:
            limiter = gitlab_limiter(self._database, self._settings, instance_of(server.url))
        return Instance(server.url, server.token, ca_file=server.ca_file, limiter=limiter)

    def fingerprint(self, instance: str) -> str:
        """The first digits of the SHA-256 of the current token, which differ after a renewal; ``none``
        without a token. Raises as :meth:`gitlab`."""
        token = self._server(instance).token()
        return hashlib.sha256(token.encode()).hexdigest()[:_FINGERPRINT] if token else "none"

    def gitlab_instances(self) -> tuple[str, ...]:
        """The keys of the configured GitLab servers."""
        return tuple(self._servers)

    def _server(self, instance: str) -> GitLabServer:
        try:
            return self._servers[instance]
        except KeyError:
            raise ConfigurationError(not_configured(instance)) from None


def not_configured(instance: str) -> str:
    """The message for a GitLab server that the settings do not have."""
    return (
        f"no GitLab is configured for {instance}; set SCM_GITLAB_URL and SCM_GITLAB_TOKEN, "
        "or add a [[gitlab]] table to the TOML file"
    )


def svn_reader(
    settings: Settings,
    root_url: str,
    prefix: str = "",
    cancelled: Cancelled = lambda: False,
    *,
    attempts: int = 3,
    limiter: RateLimiter | None = None,
) -> SvnReader:
    """The reader of everything below ``prefix`` of the repository at ``root_url``. It tries a server that
    cannot be reached ``attempts`` times, and asks ``limiter`` before each command."""
    client = SvnClient(
        username=settings.svn.username,
        password=settings.svn.password.get_secret_value(),
        ca_file=settings.ca_file,
        trust_failures=settings.svn.trust_failures,
        timeout=settings.svn.timeout_seconds,
        max_answer_bytes=settings.svn.max_answer_bytes,
        max_memory_bytes=settings.svn.max_memory_bytes,
        aliases=settings.svn.aliases,
    )
    client.callback_cancel = cancelled
    if limiter is not None:
        client.callback_permit = partial(limiter.acquire, "svn")
    return SvnReader(
        client,
        root_url,
        prefix,
        log_timeout=settings.svn.log_timeout_seconds,
        info_timeout=settings.svn.info_timeout_seconds,
        attempts=attempts,
    )
