"""The checks of our database.

Belongs here: which server is the one in force, and what its answers mean. The questions are in
:mod:`sync_pipeline.database.diagnosis`.
"""

from __future__ import annotations

import time

import psycopg

from sync_pipeline.core.errors import ConfigurationError
from sync_pipeline.database import diagnosis, migrations, objects
from sync_pipeline.database.connecting import describe
from sync_pipeline.database.diagnosis import Server
from sync_pipeline.database.migrations import SchemaState
from sync_pipeline.reports.doctor.findings import (
    DATABASE_CHECKS,
    Finding,
    State,
    error_text,
    failed,
    ok,
    skipped,
)
from sync_pipeline.runtime import environment
from sync_pipeline.settings import Settings

OLDEST = 15
"""The oldest major version of PostgreSQL that has what the tables need."""

CONNECT_SECONDS = 4
_SHOWN_TABLES = 3


class Database:
    """The database in force after :meth:`check`. ``url`` is None if it does not answer, ``usable`` says that
    its tables can be read, and ``data_directory`` is that of the embedded server.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.url: str | None = None
        self.usable = False
        self.data_directory: str | None = None

    def check(self) -> dict[str, Finding]:
        """A finding of each of :data:`DATABASE_CHECKS`."""
        started = time.monotonic()
        try:
            url, embedded = self._find()
            server = diagnosis.inspect(url, CONNECT_SECONDS)
        except ConfigurationError as error:
            found = dict.fromkeys(DATABASE_CHECKS, skipped("the database does not answer"))
            return found | {"database": failed(*error_text(error, "correct SCM_DATABASE_URL"))}
        milliseconds = 1000 * (time.monotonic() - started)
        self.url = url
        if embedded:
            self.data_directory = server.data_directory
        name = "the embedded server" if embedded else describe(url)
        return {
            "database": ok(f"{name} answers in {milliseconds:.0f} ms"),
            "database_version": evaluate_version(server),
            "database_encoding": _encoding(server),
            "database_rights": _rights(server),
            **self._schema(url),
        }

    def _find(self) -> tuple[str, bool]:
        """The URL in force, and whether it is the embedded server's, which is started."""
        url = self._settings.database_url
        known = environment.embedded_url(self._settings.state_dir)
        if url and url != known:
            return url, False
        if known is None:
            raise ConfigurationError(
                f"SCM_DATABASE_URL is not set, and {self._settings.state_dir} has no embedded server yet; "
                "run: scm-sync db migrate"
            )
        return environment.ensure_server(self._settings.state_dir), True

    def _schema(self, url: str) -> dict[str, Finding]:
        ours = self._settings.environment
        try:
            state = migrations.check(url, ours)
        except psycopg.Error:
            unreadable = "the record of migrations cannot be read"
            return {
                "migrations": failed(
                    unreadable, "grant the account SELECT on the tables of the schemas migrations and scm"
                ),
                "schema": skipped(unreadable),
                "environment": skipped("the marker cannot be read"),
            }
        found = {"migrations": _migrations(state), "environment": _environment(state, ours)}
        self.usable = all(one.state is State.OK for one in found.values())
        current = not (state.unknown or state.pending)
        return found | {"schema": _objects(url) if current else skipped("it is of another version")}


def _migrations(state: SchemaState) -> Finding:
    if state.unknown:
        return failed(
            f"{', '.join(state.unknown)} is applied and not known to this program",
            "install the version of this program that the database was migrated with, or a newer one",
        )
    if state.pending:
        seen = "no tables of ours yet" if not state.applied else f"{', '.join(state.pending)} is missing"
        return failed(seen, "run: scm-sync db migrate")
    return ok(f"current: {state.applied[-1]}")


def _environment(state: SchemaState, ours: str) -> Finding:
    if state.environment is None:
        return skipped("the database is not marked before the first migration")
    if state.environment != ours:
        return failed(
            f"the database is marked {state.environment!r}, SCM_ENVIRONMENT is {ours!r}",
            "correct SCM_ENVIRONMENT or SCM_DATABASE_URL",
        )
    return ok(f"{ours!r}, as the database is marked")


def _objects(url: str) -> Finding:
    with diagnosis.connection(url, CONNECT_SECONDS) as conn:
        damages = objects.check(conn)
    if not damages:
        return ok("every index, constraint, trigger, function and column is there")
    more = f", and {len(damages) - 1} more" if len(damages) > 1 else ""
    remedy = "run: scm-sync db check, which prints the statements that restore it"
    return failed(f"{damages[0].problem}{more}", remedy)


def evaluate_version(server: Server) -> Finding:
    """Whether the server is new enough."""
    if server.version_number < OLDEST * 10_000:
        return failed(f"PostgreSQL {server.version}", f"use PostgreSQL {OLDEST} or newer")
    return ok(f"PostgreSQL {server.version}")


def _encoding(server: Server) -> Finding:
    if server.encoding != "UTF8":
        return failed(
            f"{server.encoding}, which cannot hold every message and path",
            "make the database with CREATE DATABASE ... ENCODING 'UTF8' TEMPLATE template0",
        )
    return ok(server.encoding)


def _rights(server: Server) -> Finding:
    if server.read_only:
        return failed("the database can only be read", "name the primary server, and no read-only account")
    if not server.may_stage:
        return failed("no temporary tables are allowed", "GRANT TEMPORARY ON DATABASE ... to the account")
    if not server.has_scm:
        if server.may_create:
            return ok("the account may make the schemas")
        return failed(
            "the account may not make the schemas",
            "GRANT CREATE ON DATABASE ... to the account, or migrate with another one",
        )
    if server.lacking:
        shown = [f"{rights} on {table}" for table, rights in server.lacking.items()]
        more = len(shown) - _SHOWN_TABLES
        return failed(
            f"the account lacks {'; '.join(shown[:_SHOWN_TABLES])}{f' and {more} tables more' * (more > 0)}",
            "sync with the account that migrated, or grant it these rights",
        )
    return ok("reads and writes every table of the schema scm")
