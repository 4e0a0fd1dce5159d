"""The connection pool: how this program talks to PostgreSQL.

Belongs here: opening, session settings, and turning connection failures into one clear line. Queries live
in the modules beside this one, migrations in :mod:`sync_pipeline.database.migrations`.
"""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import psycopg
from psycopg.abc import AdaptContext, Buffer
from psycopg.adapt import Loader
from psycopg.rows import dict_row
from psycopg_pool import ConnectionPool, PoolTimeout

from sync_pipeline.core.errors import ConfigurationError
from sync_pipeline.database.connecting import connect, describe, options, refuse_poolers

Connection = psycopg.Connection[dict[str, Any]]

# Server-side limits, so that a lost client or a forgotten transaction frees its locks by itself.
_SESSION: dict[str, str | int] = {
    "timezone": "UTC",
    "statement_timeout": 600_000,
    "lock_timeout": 60_000,
    "idle_in_transaction_session_timeout": 120_000,
}

_DOWN_SECONDS = 5.0
# Seconds for which an unused connection needs no question whether the server still answers.
_TRUSTED_SECONDS = 5.0


def database_time(conn: Connection) -> datetime:
    """Now by the database's clock (UTC); leases, claims and visits are measured with it."""
    # Used wherever a moment is compared with a stored one.
    row = conn.execute("SELECT clock_timestamp() AS now").fetchone()
    assert row is not None
    moment: datetime = row["now"]
    return moment


FOREVER = datetime(9000, 1, 1, tzinfo=UTC)
LONG_AGO = datetime(1000, 1, 1, tzinfo=UTC)
"""These stand for times that Python cannot represent, such as PostgreSQL's infinity. They leave room for
additions and subtractions.
"""


_TIMESTAMPTZ = psycopg.adapters.types["timestamptz"].oid


class _Moments(Loader):
    """The usual loader, for which one row that it cannot load does not keep all others from being read."""

    def __init__(self, oid: int, context: AdaptContext | None = None) -> None:
        super().__init__(oid, context)
        usual = psycopg.adapters.get_loader(_TIMESTAMPTZ, psycopg.pq.Format.TEXT)
        assert usual is not None
        self._load = usual(oid, context).load

    def load(self, data: Buffer) -> datetime:
        """The moment, or what stands for it."""
        try:
            moment: datetime = self._load(data)
        except psycopg.DataError:
            text = bytes(data)
            return LONG_AGO if text.startswith(b"-") or text.endswith(b"BC") else FOREVER
        return moment


class _Pooled(psycopg.Connection[dict[str, Any]]):
    """A connection that knows when it was used last, by a clock that only goes on."""

    returned_at = float("-inf")


def _check(conn: _Pooled) -> None:
    """Raises psycopg.Error if the server ended the connection. A server that ends one says so, thus a silent
    connection that was used a moment ago needs no round trip."""
    socket = select.poll()
    socket.register(conn.fileno(), select.POLLIN)
    if socket.poll(0) or time.monotonic() - conn.returned_at >= _TRUSTED_SECONDS:
        ConnectionPool.check_connection(conn)


def _configure(conn: Connection) -> None:
    refuse_poolers(conn)
    conn.adapters.register_loader("timestamptz", _Moments)


def connections_for(parallel: int) -> int:
    """The largest pool that a process needs that works on ``parallel`` repositories at a time."""
    # Each writes on one connection. Its heartbeats, its prefetch and the rate limit use another for a moment.
    # Two more are for the supervision of all.
    return 2 * parallel + 2


class Database:
    """A pool of autocommit connections that return rows as dictionaries.

    ``url`` is a libpq URL. Opening does not connect; the first use does, and raises ConfigurationError with
    one line when the server cannot be reached within ``timeout`` seconds.
    """

    def __init__(self, url: str, *, max_size: int = 8, timeout: float = 10.0) -> None:
        self.url = url
        self._where = describe(url)
        self._max_size = max_size
        self._timeout = timeout
        self._lock = threading.Lock()
        self._lent = 0
        self._asking = threading.Lock()
        self._failure = ConfigurationError("")
        self._failed_until = 0.0
        self._pool: ConnectionPool[_Pooled] = ConnectionPool(
            url,
            connection_class=_Pooled,
            kwargs={
                "autocommit": True,
                "row_factory": dict_row,
                "options": options(url, _SESSION),
                "application_name": "sync_pipeline",
                "connect_timeout": max(2, int(timeout)),
                "keepalives_idle": 30,
                # A prepared SELECT * fails for good once a migration has added a column, and so would the
                # jobs that run meanwhile.
                "prepare_threshold": None,
            },
            min_size=0,
            max_size=max_size,
            timeout=timeout,
            open=False,
            configure=_configure,
            check=_check,
        )

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """A connection for the block; no transaction is open at the start.

        Raises ConfigurationError if there is none within the time-out. Its code is ``database_busy`` if this
        process uses all of them, else that of the server's reason.
        """
        if self._pool.closed:
            self._pool.open()
        try:
            # Fail fast for some seconds after a pool time-out.
            patience = 0.1 if time.monotonic() < self._failed_until else None
            conn = self._pool.getconn(patience)
        except PoolTimeout:
            raise self._reason() from None
        with self._lock:
            self._lent += 1
        try:
            with conn:
                yield conn
        finally:
            conn.returned_at = time.monotonic()
            self._pool.putconn(conn)
            with self._lock:
                self._lent -= 1

    def _reason(self) -> ConfigurationError:
        """Why there was no connection in time."""
        if self._lent >= self._max_size:
            return ConfigurationError(
                f"all {self._max_size} connections of this process to the database at {self._where} were "
                f"in use for {self._timeout:g} s: statements are slow or wait for a lock; "
                "try again, or lower SCM_PARALLEL_REPOSITORIES",
                code="database_busy",
            )
        with self._asking:
            if time.monotonic() >= self._failed_until:
                # The pool does not say why it got none.
                try:
                    connect(
                        self.url, seconds=2, name="sync_pipeline", settings={}, row_factory=dict_row
                    ).close()
                    self._failure = ConfigurationError(
                        f"the database at {self._where} took longer than {self._timeout:g} s to give a "
                        "connection; try again",
                        code="database_down",
                    )
                except ConfigurationError as failure:
                    self._failure = failure
                self._failed_until = time.monotonic() + _DOWN_SECONDS
            return ConfigurationError(str(self._failure), code=self._failure.code)

    def close(self) -> None:
        """Close every connection."""
        self._pool.close()

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
