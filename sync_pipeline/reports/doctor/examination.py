"""The whole examination: every check, what it waits for, and the document that comes out.

Belongs here: which checks there are on this machine and in which order they can be done. Does not belong
here: a check.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import psycopg

from sync_pipeline import __version__
from sync_pipeline.admin import limits
from sync_pipeline.core import clock
from sync_pipeline.core.catalog import instance_of, read_snapshot
from sync_pipeline.core.documents.gates import Limit
from sync_pipeline.core.errors import ConfigurationError
from sync_pipeline.core.model import Kind, Lifecycle, Repository
from sync_pipeline.database import diagnosis
from sync_pipeline.ledger import heartbeats, pools, repos
from sync_pipeline.ledger.credentials import Stop
from sync_pipeline.ledger.heartbeats import Heartbeat
from sync_pipeline.ledger.pools import Pool, Unserved
from sync_pipeline.reports import health
from sync_pipeline.reports.doctor import database, local, servers
from sync_pipeline.reports.doctor.findings import (
    CHECKS,
    DAGSTER_CHECKS,
    DATABASE_CHECKS,
    GITLAB_CHECKS,
    LEDGER_CHECKS,
    Finding,
    Progress,
    State,
    Task,
    run_in_parallel,
    skipped,
)
from sync_pipeline.reports.health import HealthResult
from sync_pipeline.scheduling import credentials
from sync_pipeline.settings import Settings
from sync_pipeline.sync.readers import Readers

DagsterChecks = Callable[[Settings, str | None], Mapping[str, Finding]]
"""A finding of each of :data:`DAGSTER_CHECKS`. The URL is that of our database, None without an answer."""

SECONDS = 30.0
"""Longest time for the database, and again for everything that follows from it. Hosts that do not answer time
out much earlier. This limit is for steps without their own, on a busy machine.
"""


@dataclass(frozen=True, slots=True)
class _Ledger:
    """The rows of the database that several checks need. ``unusual`` are the shared rate limits that are
    paused or lowered."""

    repositories: list[Repository]
    stops: Mapping[str, Stop]
    beats: list[Heartbeat]
    pools: list[Pool]
    results: list[HealthResult]
    unserved: list[Unserved]
    unusual: list[Limit]


@dataclass(frozen=True, slots=True)
class _Known:
    """The subjects of the checks. ``listed`` are the repositories of the database, or those of the snapshot
    if it cannot be read; ``ledger`` is None then.
    """

    listed: Sequence[Repository]
    ledger: _Ledger | None

    def active(self, kind: Kind) -> list[Repository]:
        return [r for r in self.listed if r.kind is kind and r.lifecycle is Lifecycle.ACTIVE]


def examine(dagster: DagsterChecks, progress: Progress = lambda _: None) -> Iterator[Finding]:
    """The findings of every check of :data:`CHECKS`, each as soon as it is known. ``progress`` is called with
    the checks that are awaited. It raises nothing."""
    findings, settings = local.settings_in_force()
    yield from Task(("settings",), list).named(findings)
    if settings is None:
        svn = Task(("svn_command",), partial(local.svn_command, None))
        yield from run_in_parallel([svn], SECONDS, progress)
        others = [check for check in CHECKS if check not in ("settings", "svn_command")]
        yield from _skipped(others, "the settings cannot be read")
        return
    ours = database.Database(settings)
    first = [
        Task(DATABASE_CHECKS, ours.check),
        Task(("state_folder",), partial(local.state_folder, settings)),
    ]
    yield from run_in_parallel(first, SECONDS, progress)
    known = _known(settings, ours)
    certificates = list(_certificates(settings, known))
    tasks = [*_local(settings, ours, known, dagster), *_gitlab(settings, known), *_svn(settings, known)]
    yield from run_in_parallel([*tasks, *certificates], SECONDS, progress)
    if known.ledger is None:
        yield from _skipped(LEDGER_CHECKS, "the database cannot be read")
    if not known.active(Kind.SVN):
        yield from _skipped(["svn_server"], "no SVN repository is registered")
    if not settings.gitlab_servers() and not known.active(Kind.GITLAB):
        yield from _skipped(GITLAB_CHECKS, "no GitLab is configured")
    if not certificates:
        yield from _skipped(["certificate"], "no server is reached by https or http")


def _skipped(checks: Sequence[str], why: str) -> Iterator[Finding]:
    return Task(checks, list).named(dict.fromkeys(checks, skipped(why)))


def _known(settings: Settings, ours: database.Database) -> _Known:
    with suppress(ConfigurationError, psycopg.Error):
        if ours.url is not None and ours.usable:
            ledger = _read_ledger(settings, ours.url)
            return _Known(ledger.repositories, ledger)
    # The checks of snapshot and database report what is wrong with them.
    with suppress(ConfigurationError):
        return _Known(read_snapshot(settings.catalog_file).repositories, None)
    return _Known([], None)


def _read_ledger(settings: Settings, url: str) -> _Ledger:
    with diagnosis.connection(url, database.CONNECT_SECONDS) as conn:
        tokens = credentials.in_force(conn, Readers(settings))
        return _Ledger(
            repositories=repos.list_all(conn),
            stops=tokens.stopped,
            beats=heartbeats.read(conn),
            pools=pools.alive(conn),
            results=health.read(conn, timedelta(seconds=settings.scheduler.stale_after_seconds), tokens),
            unserved=pools.unserved(conn),
            unusual=limits.unusual(conn, settings),
        )


def _local(
    settings: Settings, ours: database.Database, known: _Known, dagster: DagsterChecks
) -> Iterator[Task]:
    disks = {"state folder": settings.state_dir, "temporary files": local.temporary_files()}
    if ours.data_directory is not None:
        disks["database"] = Path(ours.data_directory)
    for name, folder in disks.items():
        yield Task(("disk_space",), partial(local.disk_space, folder), name)
    ledger = known.ledger
    registered = None if ledger is None else ledger.repositories
    yield Task(("catalog_snapshot",), partial(local.catalog_snapshot, settings, registered))
    yield Task(("server_names",), partial(local.server_names, settings, known.listed))
    yield Task(("svn_command",), partial(local.svn_command, registered))
    yield Task(DAGSTER_CHECKS, partial(dagster, settings, ours.url))
    if ledger is not None:
        yield Task(("code_server",), partial(local.code_server, ledger.beats))
        yield Task(("sensors",), partial(local.sensors, ledger.beats))
        yield Task(("pools",), partial(local.pools, ledger.pools, ledger.unserved))
        yield Task(("assets",), partial(local.assets, ledger.results, ledger.repositories))


def _gitlab(settings: Settings, known: _Known) -> Iterator[Task]:
    configured = {instance_of(server.url): server for server in settings.gitlab_servers()}
    for instance, server in configured.items():
        stop, unusual = None, []
        if known.ledger is not None:
            stop = known.ledger.stops.get(instance)
            unusual = [one for one in known.ledger.unusual if one["instance"] == instance]
        yield Task(GITLAB_CHECKS, servers.GitLabChecks(server, stop, unusual).run, instance)
    used = Counter(repository.instance for repository in known.active(Kind.GITLAB))
    for instance, count in used.items():
        if instance in configured:
            continue
        try:
            Readers(settings).fingerprint(instance)
        except ConfigurationError as error:
            yield Task(GITLAB_CHECKS, partial(servers.unconfigured_gitlab, count, str(error)), instance)


def _svn(settings: Settings, known: _Known) -> Iterator[Task]:
    for instance, repository in _one_of_each(known).items():
        yield Task(("svn_server",), partial(servers.svn_server, settings, repository), instance)


def _certificates(settings: Settings, known: _Known) -> Iterator[Task]:
    for server in settings.gitlab_servers():
        check = partial(servers.certificate, server.url, ca_file=server.ca_file)
        yield Task(("certificate",), check, instance_of(server.url))
    sends_password = bool(settings.svn.password.get_secret_value())
    for instance, repository in _one_of_each(known).items():
        url = repository.url
        if url.startswith("https://") or (url.startswith("http://") and sends_password):
            check = partial(
                servers.certificate,
                url,
                ca_file=settings.ca_file,
                system=True,
                accepted=settings.svn.trust_failures,
            )
            yield Task(("certificate",), check, instance)


def _one_of_each(known: _Known) -> dict[str, Repository]:
    """The first repository of each SVN server."""
    newest_first = sorted(known.active(Kind.SVN), key=lambda one: -one.repo_id)
    return {repository.instance: repository for repository in newest_first}


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
        "generated_at": clock.now().isoformat(),
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
