"""Migrations: bringing a database to the schema of this program, and refusing any other.

Belongs here: finding the numbered SQL files, applying and rolling them back, and comparing a database with
them. Also the marker row with the environment of the database. The schema is plain SQL in ``sql/migrations``.
yoyo orders the files and keeps the record in the schema ``migrations``.
"""

from __future__ import annotations

import functools
import glob
import hashlib
import io
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import yoyo
from psycopg import sql
from psycopg.rows import tuple_row
from yoyo import internalmigrations
from yoyo.backends.core.postgresql import PostgresqlPsycopgBackend
from yoyo.connections import DatabaseURI
from yoyo.migrations import MigrationList

from sync_pipeline.core.errors import ConfigurationError
from sync_pipeline.database.connecting import connect, options, parse
from sync_pipeline.database.pool import Connection
from sync_pipeline.database.queries import queries, sql_folder

_NAME = "sync_pipeline migrations"
_ANSWER_SECONDS = 10

_SQL = queries("migrations")

# Every statement on a table queues behind a migration that waits for it, so it waits only so long at a time.
_SESSION = {"lock_timeout": 2000}
_PAUSE_SECONDS = 1.0
LOCK_TRIES = 20
"""How often a migration tries to get its locks: for about a minute."""
_POLL_SECONDS = 0.5
_LOCK_ERRORS = (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected)
# Any constant will do, as long as every version of this program takes the same one.
_ADVISORY_LOCK = 7_215_034_461


class SchemaStatus(StrEnum):
    """How the schema of a database relates to this program."""

    UP_TO_DATE = "up_to_date"
    EMPTY = "empty"
    TOO_OLD = "too_old"
    TOO_NEW = "too_new"
    DIFFERENT = "different"
    WRONG_ENVIRONMENT = "wrong_environment"


@dataclass(frozen=True, slots=True)
class SchemaState:
    """The result of :func:`check`. ``applied`` and ``pending`` are migration ids in order. ``unknown`` are
    applied ones that this program does not have, ``different`` those with another content. ``environment`` is
    that of the database, None before the first migration. ``problem`` is one line with the remedy, empty if
    the schema is current.
    """

    status: SchemaStatus
    applied: tuple[str, ...]
    pending: tuple[str, ...]
    unknown: tuple[str, ...]
    environment: str | None
    problem: str
    different: tuple[str, ...] = ()


def migrate(url: str, environment: str) -> list[str]:
    """Apply the pending migrations and return their ids; the first time, mark the database for
    ``environment``.

    Each migration is one transaction together with its record, so a failure or a crash leaves either all of
    it or nothing. It waits for locks in short tries, so that other sessions do not wait behind it for long.
    Two at once are harmless: the second waits and finds nothing to do.

    Raises ConfigurationError if the database is marked for another environment, is newer than this program,
    or has another content of a migration. It also does so if the database does not answer, refuses a
    migration, or another session keeps a lock.
    """
    with _backend(url) as backend:
        _refuse(_compare(backend.connection, environment))
        applied = [
            migration.id
            for migration in backend.to_apply(_files())
            if _patiently(url, backend, f"migration {migration.id}", _apply, migration)
        ]
        backend.connection.execute(
            # The marker row; another process may have made it meanwhile.
            "INSERT INTO scm.deployment (environment) VALUES (%(environment)s) ON CONFLICT DO NOTHING",
            {"environment": environment},
        )
        _refuse(_compare(backend.connection, environment))
        return applied


def rollback(url: str, steps: int = 1) -> list[str]:
    """Undo the newest ``steps`` migrations, each in a transaction of its own, and return their ids.

    Their tables and rows are gone afterwards. Raises ConfigurationError when the database has migrations that
    this program does not know, or knows with another content, does not answer, or refuses.
    """
    with _backend(url) as backend:
        state = _compare(backend.connection, None)
        if state.unknown or state.different:
            raise ConfigurationError(state.problem, code=state.status.value)
        undone: list[str] = []
        for migration in backend.to_rollback(_files())[:steps]:
            before = f"after {', '.join(undone)} was undone, " if undone else ""
            if _patiently(url, backend, f"{before}rollback of {migration.id}", _undo, migration):
                undone.append(migration.id)
        return undone


def check(url: str, environment: str) -> SchemaState:
    """Compare the database with this program without changing anything. Raises ConfigurationError only when
    the database does not answer."""
    with _connect(url) as conn:
        return _compare(conn, environment)


def require(url: str, environment: str) -> None:
    """Raise ConfigurationError with one line and the remedy, unless the schema is exactly that of this
    program and the database belongs to ``environment``.
    """
    _known(sql_folder())
    state = check(url, environment)
    if state.status is not SchemaStatus.UP_TO_DATE:
        raise ConfigurationError(state.problem, code=state.status.value)


def require_current(conn: Connection) -> None:
    """Raise ConfigurationError as :func:`require` does if the schema was migrated or rolled back since this
    process began to work on it. One small query, asked before each job is taken."""
    try:
        applied = [row["migration_id"] for row in conn.execute(_SQL["applied"])]
    except psycopg.errors.UndefinedTable:
        applied = []
    state = _compare_histories(_known(sql_folder()), applied)
    if state.status is not SchemaStatus.UP_TO_DATE:
        raise ConfigurationError(state.problem, code=state.status.value)


def create_database(server_url: str, name: str) -> None:
    """Create a database on the server behind ``server_url`` unless it exists."""
    # Is it there already?
    found = "SELECT FROM pg_database WHERE datname = %(name)s"
    _create(server_url, f"database {name}", found, "CREATE DATABASE {}", name)


def create_schema(url: str, name: str) -> None:
    """Create a schema unless it exists; for tables that another program makes, such as Dagster's."""
    # An account that may not create schemas can still use an existing one.
    found = "SELECT FROM pg_namespace WHERE nspname = %(name)s"
    _create(url, f"schema {name}", found, "CREATE SCHEMA IF NOT EXISTS {}", name)


def _create(url: str, what: str, found: LiteralString, statement: LiteralString, name: str) -> None:
    with _connect(url) as conn:
        if conn.execute(found, {"name": name}).fetchone() is None:
            try:
                conn.execute(sql.SQL(statement).format(sql.Identifier(name)))
            except psycopg.Error as error:
                raise _failed(f"{what} cannot be created", error) from error


@contextmanager
def _backend(url: str) -> Iterator[Any]:
    """A backend of yoyo whose own tables are up to date."""
    with _connect(url):  # the clear message when there is no such server
        pass
    parts: dict[str, Any] = parse(url)
    database = parts.pop("dbname", None)
    parts |= {
        "application_name": _NAME,
        "connect_timeout": _ANSWER_SECONDS,
        "options": options(url, _SESSION),
        "schema": "migrations",  # of yoyo's tables
    }
    uri = DatabaseURI("postgresql", None, None, None, None, database, parts)
    with PostgresqlPsycopgBackend(uri, "_yoyo_migration") as backend:
        _patiently(url, backend, "making the schema migrations", _prepare)
        yield backend


def _prepare(backend: Any) -> bool:
    """Make the schema of yoyo's tables, or bring them up to date. Record the contents of migrations that
    earlier versions applied."""
    # yoyo's own tables live apart from ours.
    backend.connection.execute("CREATE SCHEMA IF NOT EXISTS migrations")
    backend.connection.execute(
        "COMMENT ON SCHEMA migrations IS 'Which migrations were applied; kept by yoyo.'"
    )
    if internalmigrations.needs_upgrading(backend):
        internalmigrations.upgrade(backend)
    backend.connection.execute(_SQL["make_contents"])
    for name, digest in _digests().items():
        backend.connection.execute(_SQL["adopt"], {"id": name, "digest": digest})
    return True


def _apply(backend: Any, migration: Any) -> bool:
    """True unless another process has applied it meanwhile."""
    if backend.is_applied(migration):
        return False
    migration.process_steps(backend, "apply")
    backend.mark_one(migration, log=False)
    backend.connection.execute(_SQL["record"], {"id": migration.id, "digest": _digests()[migration.id]})
    return True


def _undo(backend: Any, migration: Any) -> bool:
    """True unless another process has undone it meanwhile."""
    if not backend.is_applied(migration):
        return False
    migration.process_steps(backend, "rollback")
    backend.unmark_one(migration, log=False)
    backend.connection.execute(_SQL["delete_contents"], {"id": migration.id})
    return True


def _patiently(url: str, backend: Any, what: str, action: Callable[..., bool], *arguments: Any) -> bool:
    """The result of ``action``, run in a transaction in which no other process migrates. Repeats it while it
    does not get its locks; between two tries the statements that queue behind it run.

    yoyo would commit a migration and its record one after the other, and keep its lock in a row, which a
    killed process leaves behind. Raises ConfigurationError after the last try, which names the session that
    keeps the lock, or with the first other error.
    """
    for remaining in reversed(range(LOCK_TRIES)):
        with _watch(url, backend.connection.info.backend_pid) as blockers:
            try:
                with redirect_stdout(io.StringIO()), backend.transaction():
                    # One migration at a time; the lock ends with the transaction.
                    backend.connection.execute(
                        "SELECT pg_advisory_xact_lock(%(key)s)", {"key": _ADVISORY_LOCK}
                    )
                    return action(backend, *arguments)
            except _LOCK_ERRORS:
                pass
            except psycopg.Error as error:
                raise _failed(f"{what} failed and was undone", error) from error
        if remaining:
            time.sleep(_PAUSE_SECONDS)
    who = "; ".join(blockers) or "the process is not known"
    raise ConfigurationError(
        f"{what} was undone, because another session keeps a lock that it needs: {who}; wait for it, or "
        "end it with SELECT pg_terminate_backend(<process>), then try again",
        code="migration_failed",
    )


@contextmanager
def _watch(url: str, pid: int) -> Iterator[list[str]]:
    """The sessions that ``pid`` waited for last during the block, a line each; empty if there were none."""
    blockers: list[str] = []
    stop = threading.Event()

    def poll_blockers(conn: psycopg.Connection[Any]) -> None:
        # The session may be waiting already at the first look.
        while True:
            with suppress(psycopg.Error):
                rows = conn.execute(_SQL["blockers"], {"pid": pid}).fetchall()
                blockers[:] = [_blocker(*row) for row in rows] or blockers
            if stop.wait(_POLL_SECONDS):
                return

    with _connect(url) as conn:
        thread = threading.Thread(target=poll_blockers, args=(conn,), daemon=True)
        thread.start()
        try:
            yield blockers
        finally:
            stop.set()
            thread.join()


def _blocker(pid: int, name: str, state: str, seconds: float, query: str) -> str:
    text = "".join(filter(str.isprintable, " ".join(query.split())))
    return f"process {pid} ({name or 'unnamed'}, {state or 'unknown'}, for {seconds:.0f} s): {text}"


def _files() -> Any:
    """Every migration this program has, in order."""
    found = yoyo.read_migrations(glob.escape(str(sql_folder() / "migrations")))
    return MigrationList(sorted(found, key=lambda migration: migration.id))


@functools.cache
def _known(folder: Path) -> tuple[str, ...]:
    """Ids of the migrations in ``folder`` when this process first looked: a newer version may be installed
    over a program that still runs."""
    return _ids(folder)


def _ids(folder: Path) -> tuple[str, ...]:
    names = (path.name for path in (folder / "migrations").glob("*.sql"))
    return tuple(sorted(name.removesuffix(".sql") for name in names if not name.endswith(".rollback.sql")))


def _digests() -> dict[str, str]:
    """By id the digest of each migration that this program has. Comments and blanks do not count: a better
    comment makes no other schema."""
    folder = sql_folder()
    found = {}
    for name in _ids(folder):
        text = (folder / "migrations" / f"{name}.sql").read_text(encoding="utf-8")
        words = re.sub(r"(?m)^\s*--.*$", "", text).split()
        found[name] = hashlib.sha256(" ".join(words).encode()).hexdigest()
    return found


def _refuse(state: SchemaState) -> None:
    """Raise ConfigurationError where no migration of ours may touch the database."""
    if state.status in (SchemaStatus.WRONG_ENVIRONMENT, SchemaStatus.TOO_NEW, SchemaStatus.DIFFERENT):
        raise ConfigurationError(state.problem, code=state.status.value)


def _compare(conn: psycopg.Connection[Any], environment: str | None) -> SchemaState:
    mine = _digests()
    applied = [name for (name,) in _rows(conn, "migrations._yoyo_migration", _SQL["applied"])]
    contents = _rows(conn, "migrations.contents", _SQL["contents"])
    marked = [name for (name,) in _rows(conn, "scm.deployment", _SQL["marked"])]
    different = [name for name, digest in contents if mine.get(name, digest) != digest]
    return _compare_histories(list(mine), applied, marked[0] if marked else None, environment, different)


def _rows(conn: psycopg.Connection[Any], table: str, query: LiteralString) -> list[Any]:
    """The rows of ``query``, which reads ``table``; none where there is no such table."""
    is_there = conn.execute("SELECT to_regclass(%(table)s) IS NOT NULL", {"table": table}).fetchone()
    return conn.execute(query).fetchall() if is_there == (True,) else []


def _compare_histories(
    known: Sequence[str],
    applied: Sequence[str],
    marked: str | None = None,
    environment: str | None = None,
    different: Sequence[str] = (),
) -> SchemaState:
    pending = tuple(name for name in known if name not in applied)
    different = tuple(name for name in applied if name in different)
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
    elif different:
        status = SchemaStatus.DIFFERENT
        problem = (
            f"the database has migration {different[0]} with another content than this program; install the "
            "program that migrated it, or use another database"
        )
    elif not applied:
        status = SchemaStatus.EMPTY
        problem = "the database has no tables of ours yet; run: scm-sync db migrate"
    elif pending:
        status = SchemaStatus.TOO_OLD
        problem = f"the database lacks migration {pending[0]}; run: scm-sync db migrate"
    return SchemaState(status, tuple(applied), pending, unknown, marked, problem, different)


def _connect(url: str) -> psycopg.Connection[Any]:
    return connect(url, seconds=_ANSWER_SECONDS, name=_NAME, settings=_SESSION, row_factory=tuple_row)


def _failed(what: str, error: psycopg.Error) -> ConfigurationError:
    """An error of the database as one line that starts with ``what``."""
    reasons = [error.diag.message_primary or str(error), error.diag.message_detail or ""]
    reason = "; ".join(text.splitlines()[0] for text in reasons if text)
    return ConfigurationError(f"{what}: {reason}", code="migration_failed")
