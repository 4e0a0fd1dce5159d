"""The common parts of the commands.

Belongs here: the way to settings, database, Dagster and the name of the person, and the stop between two
steps. Does not belong here: options (:mod:`sync_pipeline.cli.options`) and printing
(:mod:`sync_pipeline.cli.output`).
"""

from __future__ import annotations

import getpass
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sync_pipeline.cli.output import print_message
from sync_pipeline.core.errors import ConfigurationError

if TYPE_CHECKING:
    from dagster import DagsterInstance

    from sync_pipeline.database.pool import Database
    from sync_pipeline.registry.registration import ReaderFactory, Visitor
    from sync_pipeline.settings import Given, Settings

# Seconds within which signals are one wish.
_ONE_PRESS = 1.0


def read_settings() -> Settings:
    """The settings in force, also for what is logged. Raises ConfigurationError for wrong ones."""
    return read_explained_settings()[0]


def read_explained_settings() -> tuple[Settings, dict[str, Given]]:
    """As :func:`read_settings`, and what gave each setting that does not have its default."""
    from sync_pipeline.settings import explained_settings

    settings, given = explained_settings()
    logging.getLogger("sync_pipeline").setLevel(settings.log_level.upper())
    return settings, given


@contextmanager
def open_database(settings: Settings) -> Iterator[Database]:
    """The migrated database that the settings name; the embedded one is started."""
    from sync_pipeline.database import migrations
    from sync_pipeline.database.pool import Database, connections_for
    from sync_pipeline.runtime import environment

    url = environment.resolve_urls(settings).database_url
    migrations.require(url, settings.environment)
    with Database(url, max_size=connections_for(settings.jobs.parallel_repositories)) as database:
        yield database


@contextmanager
def settings_and_database() -> Iterator[tuple[Settings, Database]]:
    """The settings in force, and the database that they name."""
    settings = read_settings()
    with open_database(settings) as database:
        yield settings, database


@contextmanager
def dagster_instance(settings: Settings, database: Database) -> Iterator[DagsterInstance | None]:
    """The Dagster instance, if its tables are there: asking must not make them."""
    from sync_pipeline.database import diagnosis
    from sync_pipeline.runtime import environment

    own = settings.dagster_database_url
    url = environment.dagster_url(own or database.url, "" if own else environment.DAGSTER_SCHEMA)
    try:
        there = diagnosis.inspect(url.replace("+psycopg2", "", 1), 5, "SCM_DAGSTER_DATABASE_URL").has_runs
    except ConfigurationError as error:
        print_message(f"Dagster is left out: {error}")
        there = False
    if not there:
        yield None
        return
    import dagster as dg

    from sync_pipeline.orchestration.instance import dagster_environment, quiet_dagster

    with dagster_environment(settings), quiet_dagster(), dg.DagsterInstance.get() as instance:
        yield instance


def visitor_for(settings: Settings, database: Database) -> ReaderFactory:
    """A function that opens the SVN repository of a URL before it is in the catalog."""

    def visitor(url: str) -> Visitor:
        from sync_pipeline.core.catalog import instance_of
        from sync_pipeline.sync.limiter import svn_limiter
        from sync_pipeline.sync.readers import svn_reader

        return svn_reader(settings, url, limiter=svn_limiter(database, settings, instance_of(url)))

    return visitor


def actor() -> str:
    """Who runs the command, for the ledger: user@host."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def after_catalog_change(settings: Settings, database: Database) -> None:
    """Write the snapshot and notify Dagster; the catalog itself is already right."""
    from sync_pipeline.orchestration.catalog_changes import after_catalog_change

    after_catalog_change(settings, database)


@contextmanager
def stopped_politely() -> Iterator[threading.Event]:
    """An event that Ctrl-C and SIGTERM set, for work that checks it between two steps. A second signal, at
    least a second later, ends the work at once; ``timeout`` sends its signal twice.
    """
    cancel = threading.Event()
    first = 0.0
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def stop(*_: object) -> None:
        nonlocal first
        if not cancel.is_set():
            first = time.monotonic()
            cancel.set()
        elif time.monotonic() - first > _ONE_PRESS:
            raise KeyboardInterrupt

    for number in before:
        signal.signal(number, stop)
    try:
        yield cancel
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
