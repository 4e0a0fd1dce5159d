"""Migrations: bringing a database to the schema this program was written for, and refusing any other.

Belongs here: finding the numbered SQL files, applying and rolling them back, comparing a database with them,
and the marker row that says which environment a database belongs to. The schema itself is plain SQL in
``sql/migrations``; yoyo orders the files and keeps the record in the schema ``migrations``.
"""

from __future__ import annotations

import functools
import glob
import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from enum import StrEnum
from importlib import resources
from pathlib import Path
from typing import Any

import psycopg
import yoyo
from psycopg import sql
from psycopg.rows import tuple_row
from yoyo.backends.core.postgresql import PostgresqlPsycopgBackend
from yoyo.migrations import MigrationList

from sync_pipeline.errors import ConfigurationError
from sync_pipeline.store.connecting import connect, describe
from sync_pipeline.store.database import Connection

_ANSWER_SECONDS = 10
# What was applied, in order.
_APPLIED = "SELECT migration_id FROM migrations._yoyo_migration ORDER BY applied_at_utc, migration_id"
# Any constant will do, as long as every version of this program takes the same one.
_ADVISORY_LOCK = 7_215_034_461


class SchemaStatus(StrEnum):
    """How the schema of a database relates to this program."""

    UP_TO_DATE = "up_to_date"
    EMPTY = "empty"
    TOO_OLD = "too_old"
    TOO_NEW = "too_new"
    WRONG_ENVIRONMENT = "wrong_environment"


@dataclass(frozen=True, slots=True)
class SchemaState:
    """What :func:`check` found. ``applied`` and ``pending`` are migration ids in order; ``unknown`` are
    applied ones that this program does not have. ``environment`` is what the database is marked for, None
    before the first migration. ``problem`` is one line with the remedy, empty when up to date."""

    status: SchemaStatus
    applied: tuple[str, ...]
    pending: tuple[str, ...]
    unknown: tuple[str, ...]
    environment: str | None
    problem: str


def sql_folder() -> Path:
    """The folder with ``migrations/``, ``views/`` and ``ops/``: inside the installed package, or at the top
    of the source tree. Raises ConfigurationError when neither is there."""
    package = Path(str(resources.files("sync_pipeline")))
    for folder in (package / "_sql", package.parent / "sql"):
        if (folder / "migrations").is_dir():
            return folder
    raise ConfigurationError("the SQL files are missing from this installation; install sync_pipeline again")


def migrate(url: str, environment: str) -> list[str]:
    """Apply what is missing and return its ids; the first time, mark the database for ``environment``.

    Each migration is one transaction together with its record, so a failure or a crash leaves either all of
    it or nothing. Two at once are harmless: the second waits and finds nothing left to do. Raises
    ConfigurationError when the database is marked for another environment, is newer than this program, does
    not answer, or refuses a migration.
    """
    with _backend(url) as backend:
        state = _compare(backend.connection, environment)
        if state.status in (SchemaStatus.WRONG_ENVIRONMENT, SchemaStatus.TOO_NEW):
            raise ConfigurationError(state.problem, code=state.status.value)
        applied = []
        for migration in backend.to_apply(_files()):
            with _explained(f"migration {migration.id} failed and was undone"):
                backend.apply_one(migration)
            applied.append(migration.id)
        backend.connection.execute(
            # The marker row; an existing one was compared above.
            "INSERT INTO scm.deployment (environment) VALUES (%(environment)s) ON CONFLICT DO NOTHING",
            {"environment": environment},
        )
        return applied


def rollback(url: str, steps: int = 1) -> list[str]:
    """Undo the newest ``steps`` migrations, each in a transaction of its own, and return their ids.

    Their tables and rows are gone afterwards. Raises ConfigurationError when the database has migrations that
    this program does not know, does not answer, or refuses.
    """
    with _backend(url) as backend:
        state = _compare(backend.connection, None)
        if state.unknown:
            raise ConfigurationError(state.problem, code=state.status.value)
        undone = []
        for migration in backend.to_rollback(_files())[:steps]:
            with _explained(f"rollback of {migration.id} failed and was undone"):
                backend.rollback_one(migration)
            undone.append(migration.id)
        return undone


def check(url: str, environment: str) -> SchemaState:
    """Compare the database with this program without changing anything. Raises ConfigurationError only when
    the database does not answer."""
    with _connection(url) as conn:
        return _compare(conn, environment)


def require(url: str, environment: str) -> None:
    """Raise ConfigurationError with one line and the remedy unless the schema is exactly the one this program
    was written for and the database belongs to ``environment``."""
    _known(sql_folder())
    state = check(url, environment)
    if state.status is not SchemaStatus.UP_TO_DATE:
        raise ConfigurationError(state.problem, code=state.status.value)


def require_current(conn: Connection) -> None:
    """Raise ConfigurationError as :func:`require` does if the schema was migrated or rolled back since this
    process began to work on it. One small query, for whoever is about to take another job."""
    try:
        applied = [row["migration_id"] for row in conn.execute(_APPLIED)]
    except psycopg.errors.UndefinedTable:
        applied = []
    state = _judge(_known(sql_folder()), applied)
    if state.status is not SchemaStatus.UP_TO_DATE:
        raise ConfigurationError(state.problem, code=state.status.value)


def create_database(server_url: str, name: str) -> None:
    """Create a database on the server behind ``server_url`` unless it exists."""
    with _connection(server_url) as conn:
        # Is it there already?
        found = conn.execute("SELECT FROM pg_database WHERE datname = %(name)s", {"name": name}).fetchone()
        if found is None:
            with _explained(f"database {name} cannot be created"):
                conn.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))


def create_schema(url: str, name: str) -> None:
    """Create a schema unless it exists; for tables that another program makes, such as Dagster's."""
    with _connection(url) as conn:
        # Is it there already? An account that may not create schemas can still use an existing one.
        found = conn.execute("SELECT FROM pg_namespace WHERE nspname = %(name)s", {"name": name}).fetchone()
        if found is None:
            with _explained(f"schema {name} cannot be created"):
                conn.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(name)))


class _Backend(PostgresqlPsycopgBackend):  # type: ignore[misc]
    """yoyo on a psycopg 3 connection of ours.

    Two things are changed. A migration and its record are one transaction, where yoyo commits them one after
    the other. The lock is an advisory lock, which a killed process cannot leave behind, where yoyo inserts a
    row.
    """

    def connect(self, dburi: str) -> psycopg.Connection[Any]:
        return _connect(dburi)

    def init_connection(self, connection: psycopg.Connection[Any]) -> None:
        # Runs again after every rollback. The schema is where yoyo keeps its tables.
        connection.execute("SET search_path TO migrations")

    def list_tables(self, **kwargs: Any) -> list[str]:
        # Which of its own tables yoyo has already made.
        rows = self.connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'migrations'")
        return [name for (name,) in rows]

    @contextmanager
    def lock(self, timeout: float = 10) -> Iterator[None]:
        # The whole program of migrate or rollback already runs under the advisory lock.
        yield

    def apply_one(self, migration: Any, force: bool = False, mark: bool = True) -> None:
        with redirect_stdout(io.StringIO()), self.transaction():
            migration.process_steps(self, "apply", force=force)
            self.mark_one(migration, log=False)

    def rollback_one(self, migration: Any, force: bool = False) -> None:
        with redirect_stdout(io.StringIO()), self.transaction():
            migration.process_steps(self, "rollback", force=force)
            self.unmark_one(migration, log=False)


@contextmanager
def _backend(url: str) -> Iterator[_Backend]:
    """A backend under the advisory lock, its own tables up to date."""
    with _connection(url):  # the clear message when there is no such server
        pass
    with _Backend(url, "_yoyo_migration") as backend:
        try:
            # One migrate or rollback at a time; the lock ends with the connection.
            backend.connection.execute("SELECT pg_advisory_lock(%(key)s)", {"key": _ADVISORY_LOCK})
        except psycopg.errors.LockNotAvailable:
            raise ConfigurationError(
                f"another migration of {describe(url)} is running; wait for it, then try again"
            ) from None
        with _explained("the schema migrations cannot be created"):
            # yoyo's own tables live apart from ours.
            backend.connection.execute("CREATE SCHEMA IF NOT EXISTS migrations")
            backend.connection.execute(
                "COMMENT ON SCHEMA migrations IS 'Which migrations were applied; kept by yoyo.'"
            )
            backend.ensure_internal_schema_updated()
        yield backend


def _files() -> Any:
    """Every migration this program has, in order."""
    found = yoyo.read_migrations(glob.escape(str(sql_folder() / "migrations")))
    return MigrationList(sorted(found, key=lambda migration: migration.id))


@functools.cache
def _known(folder: Path) -> tuple[str, ...]:
    """Ids of the migrations in ``folder`` when this process first looked: a newer version may be installed
    over a program that still runs."""
    names = (path.name for path in (folder / "migrations").glob("*.sql"))
    return tuple(sorted(name.removesuffix(".sql") for name in names if not name.endswith(".rollback.sql")))


def _compare(conn: psycopg.Connection[Any], environment: str | None) -> SchemaState:
    return _judge([migration.id for migration in _files()], _applied(conn), _marked(conn), environment)


def _judge(
    known: Sequence[str], applied: Sequence[str], marked: str | None = None, environment: str | None = None
) -> SchemaState:
    pending = tuple(name for name in known if name not in applied)
    unknown = tuple(name for name in applied if name not in known)
    status, problem = SchemaStatus.UP_TO_DATE, ""
    if environment is not None and marked is not None and marked != environment:
        status = SchemaStatus.WRONG_ENVIRONMENT
        problem = (
            f"the database is marked for environment {marked!r} and SCM_ENVIRONMENT is {environment!r}; "
            "correct SCM_ENVIRONMENT or SCM_DATABASE_URL"
        )
    elif unknown:
        status = SchemaStatus.TOO_NEW
        problem = (
            f"the database has migration {unknown[-1]}, which this program does not know; "
            "install the newer program"
        )
    elif not applied:
        status = SchemaStatus.EMPTY
        problem = "the database has no tables of ours yet; run: scm-sync db migrate"
    elif pending:
        status = SchemaStatus.TOO_OLD
        problem = f"the database lacks migration {pending[0]}; run: scm-sync db migrate"
    return SchemaState(status, tuple(applied), pending, unknown, marked, problem)


def _applied(conn: psycopg.Connection[Any]) -> list[str]:
    # Is there a record of migrations at all?
    row = conn.execute("SELECT to_regclass('migrations._yoyo_migration') IS NOT NULL").fetchone()
    if row is None or not row[0]:
        return []
    return [name for (name,) in conn.execute(_APPLIED)]


def _marked(conn: psycopg.Connection[Any]) -> str | None:
    # Is there a marker table?
    row = conn.execute("SELECT to_regclass('scm.deployment') IS NOT NULL").fetchone()
    if row is None or not row[0]:
        return None
    # Which environment the database belongs to.
    row = conn.execute("SELECT environment FROM scm.deployment").fetchone()
    return None if row is None else str(row[0])


def _connect(url: str) -> psycopg.Connection[Any]:
    return connect(
        url,
        seconds=_ANSWER_SECONDS,
        name="sync_pipeline migrations",
        # A migration waits for running writers, but not for ever.
        settings={"lock_timeout": 60_000},
        row_factory=tuple_row,
    )


@contextmanager
def _connection(url: str) -> Iterator[psycopg.Connection[Any]]:
    with _connect(url) as conn:
        yield conn


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """Turn an error of the database into one line that starts with ``what``."""
    try:
        yield
    except psycopg.Error as error:
        reason = str(error.diag.message_primary or error).splitlines()[0]
        raise ConfigurationError(f"{what}: {reason}", code="migration_failed") from error
