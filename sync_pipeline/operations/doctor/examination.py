"""The whole examination: every check, what it waits for, and the document that comes out.

Belongs here: which checks there are on this machine and in which order they can be done. Does not belong
here: a check.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import psycopg

from sync_pipeline import __version__
from sync_pipeline.catalog import instance_of, read_snapshot
from sync_pipeline.errors import ConfigurationError
from sync_pipeline.model import Kind, Lifecycle, Repository
from sync_pipeline.operations import limits
from sync_pipeline.operations.doctor import database, local, servers
from sync_pipeline.operations.doctor.findings import (
    CHECKS,
    Finding,
    Progress,
    State,
    Task,
    run_in_parallel,
    skipped,
)
from sync_pipeline.quality import credentials, health
from sync_pipeline.quality.health import HealthResult
from sync_pipeline.settings import Settings
from sync_pipeline.store import diagnosis, heartbeats, pools, repos
from sync_pipeline.store.credentials import Stop
from sync_pipeline.store.heartbeats import Heartbeat
from sync_pipeline.store.pools import Pool, Unserved
from sync_pipeline.sync.readers import Readers

DagsterChecks = Callable[[Settings, str | None], Sequence[Finding]]
"""Finds something of each of :data:`DAGSTER_CHECKS`, given the URL of our database, None where it does not
answer."""

DAGSTER_CHECKS = ("dagster_home", "dagster_storage", "dagster_daemon", "dagster_concurrency", "dagster_runs")

SECONDS = 30.0
"""Longest time for the database, and again for everything that follows from it. Hosts that do not answer are
given up long before; this is for what has no limit of its own, on a machine with much else to do."""

_LOCAL_CHECKS = ("settings", "svn_command")


@dataclass(frozen=True, slots=True)
class _Known:
    """What the database says about what is to be looked at: ``repositories`` and ``beats`` are None where it
    says nothing. ``listed`` are the repositories of the snapshot, ``hindered`` the shared rate limits that
    are paused or lowered."""

    listed: list[Repository]
    repositories: list[Repository] | None = None
    stops: dict[str, Stop] = field(default_factory=dict)
    beats: list[Heartbeat] | None = None
    pools: list[Pool] | None = None
    verdicts: list[HealthResult] | None = None
    unserved: list[Unserved] = field(default_factory=list)
    hindered: list[dict[str, Any]] = field(default_factory=list)

    @property
    def listed_now(self) -> list[Repository]:
        """All repositories, as the database has them, or the snapshot where it does not answer."""
        return self.listed if self.repositories is None else self.repositories

    def active(self, kind: Kind) -> list[Repository]:
        return [r for r in self.listed_now if r.kind is kind and r.lifecycle is Lifecycle.ACTIVE]


def examine(dagster: DagsterChecks, progress: Progress = lambda _: None) -> Iterator[Finding]:
    """What every check of :data:`CHECKS` finds, each as soon as it is known. ``progress`` is told what is
    waited for. It raises nothing."""
    findings, settings = local.settings_in_force()
    yield from findings
    if settings is None:
        yield from run_in_parallel(
            [Task(("svn_command",), partial(local.svn_command, None))], SECONDS, progress
        )
        for check in CHECKS:
            if check not in _LOCAL_CHECKS:
                yield skipped(check, "the settings cannot be read")
        return
    place = database.Database(settings)
    first = [
        Task(database.CHECKS, place.look),
        Task(("state_folder",), partial(local.state_folder, settings)),
    ]
    yield from run_in_parallel(first, SECONDS, progress)
    known = _known(settings, place)
    yield from run_in_parallel(_tasks(settings, place, known, dagster), SECONDS, progress)
    if not known.active(Kind.SVN):
        yield skipped("svn_server", "no SVN repository is registered")
    if not settings.gitlab_servers() and not known.active(Kind.GITLAB):
        for check in servers.GITLAB_CHECKS:
            yield skipped(check, "no GitLab is configured")
    if not _certificates(settings, known):
        yield skipped("certificate", "no server is reached by https or http")


def _known(settings: Settings, place: database.Database) -> _Known:
    listed: list[Repository] = []
    # What is wrong with them, the checks of snapshot and database say.
    with suppress(ConfigurationError):
        listed = list(read_snapshot(settings.catalog_file).repositories)
    with suppress(ConfigurationError, psycopg.Error):
        if place.url is not None and place.usable:
            return _asked(settings, place.url, listed)
    return _Known(listed)


def _asked(settings: Settings, url: str, listed: list[Repository]) -> _Known:
    with diagnosis.connection(url, database.CONNECT_SECONDS) as conn:
        tokens = credentials.in_force(conn, Readers(settings))
        return _Known(
            listed,
            repositories=repos.list_all(conn),
            stops=dict(tokens.stopped),
            beats=heartbeats.read(conn),
            pools=pools.alive(conn),
            verdicts=health.read(conn, timedelta(seconds=settings.scheduler.stale_after_seconds), tokens),
            unserved=pools.unserved(conn),
            hindered=limits.hindered(conn, settings),
        )


def _tasks(settings: Settings, place: database.Database, known: _Known, dagster: DagsterChecks) -> list[Task]:
    disks = {"state folder": settings.state_dir, "temporary files": local.temporary_files()}
    if place.data_directory is not None:
        disks["database"] = Path(place.data_directory)
    return [
        *(
            Task(("disk_space",), partial(local.disk_space, name, folder), name)
            for name, folder in disks.items()
        ),
        Task(("catalog_snapshot",), partial(local.catalog_snapshot, settings, known.repositories)),
        Task(("server_names",), partial(local.server_names, settings, known.listed_now)),
        Task(DAGSTER_CHECKS, partial(dagster, settings, place.url)),
        Task(("code_server",), partial(local.code_server, known.beats)),
        Task(("sensors",), partial(local.sensors, known.beats)),
        Task(("pools",), partial(local.pools, known.pools, known.unserved)),
        Task(("assets",), partial(local.assets, known.verdicts, known.listed_now)),
        Task(("svn_command",), partial(local.svn_command, known.repositories)),
        *_gitlab(settings, known),
        *_svn(settings, known),
        *_certificates(settings, known),
    ]


def _gitlab(settings: Settings, known: _Known) -> Iterator[Task]:
    configured = {instance_of(server.url): server for server in settings.gitlab_servers()}
    for instance, server in configured.items():
        hindered = [one for one in known.hindered if one["instance"] == instance]
        look = servers.GitLabLook(instance, server, known.stops.get(instance), hindered)
        yield Task(servers.GITLAB_CHECKS, look.look, instance)
    used = Counter(repository.instance for repository in known.active(Kind.GITLAB))
    for instance, count in used.items():
        if instance in configured:
            continue
        try:
            Readers(settings).fingerprint(instance)
        except ConfigurationError as error:
            found = servers.unconfigured_gitlab(instance, count, str(error))
            yield Task(servers.GITLAB_CHECKS, partial(list, found), instance)


def _svn(settings: Settings, known: _Known) -> Iterator[Task]:
    for instance, repository in _one_of_each(known).items():
        yield Task(("svn_server",), partial(servers.svn_server, settings, repository), instance)


def _certificates(settings: Settings, known: _Known) -> list[Task]:
    tasks = []
    for server in settings.gitlab_servers():
        name = instance_of(server.url)
        look = partial(servers.certificate, server.url, name, ca_file=server.ca_file)
        tasks.append(Task(("certificate",), look, name))
    sends_password = bool(settings.svn.password.get_secret_value())
    for instance, repository in _one_of_each(known).items():
        url = repository.url
        if url.startswith("https://") or (url.startswith("http://") and sends_password):
            look = partial(
                servers.certificate,
                url,
                instance,
                ca_file=settings.ca_file,
                system=True,
                accepted=settings.svn.trust_failures,
            )
            tasks.append(Task(("certificate",), look, instance))
    return tasks


def _one_of_each(known: _Known) -> dict[str, Repository]:
    """The first repository of each SVN server."""
    found: dict[str, Repository] = {}
    for repository in sorted(known.active(Kind.SVN), key=lambda one: one.repo_id):
        found.setdefault(repository.instance, repository)
    return found


# The result ---------------------------------------------------------------------------------------------


def exit_code(findings: Sequence[Finding]) -> int:
    """0 where all is well, 1 with warnings, 2 with failures."""
    states = {finding.state for finding in findings}
    return 2 if State.FAILED in states else 1 if State.WARNING in states else 0


def document(findings: Sequence[Finding]) -> dict[str, Any]:
    """The findings as one JSON document; docs/doctor.md has its keys."""
    counted = Counter(finding.state for finding in findings)
    return {
        "version": __version__,
        "generated_at": datetime.now(UTC).isoformat(),
        "exit_code": exit_code(findings),
        "counts": {str(state): counted[state] for state in State},
        "checks": [
            {
                "check": finding.check,
                "subject": finding.subject or None,
                "state": str(finding.state),
                "seen": finding.seen,
                "remedy": finding.remedy or None,
            }
            for finding in sorted(findings, key=lambda one: one.order)
        ],
    }
