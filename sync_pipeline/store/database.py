"""The connection pool: how this program talks to PostgreSQL.

Belongs here: opening, session settings, and turning connection failures into one clear line. Queries live
in the modules beside this one, migrations in :mod:`sync_pipeline.store.migrations`.
"""

from __future__ import annotations

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

from sync_pipeline.errors import ConfigurationError
from sync_pipeline.store.connecting import describe, parse

Connection = psycopg.Connection[dict[str, Any]]

# Server-side limits, so that a lost client or a forgotten transaction frees its locks by itself.
_SESSION = (
    "-c timezone=UTC -c statement_timeout=600000 -c lock_timeout=60000 "
    "-c idle_in_transaction_session_timeout=120000"
)

_DOWN_SECONDS = 5.0


def database_time(conn: Connection) -> datetime:
    """Now by the database's clock (UTC); leases, claims and visits are measured with it."""
    # Used wherever a moment is compared with a stored one.
    row = conn.execute("SELECT clock_timestamp() AS now").fetchone()
    assert row is not None
    moment: datetime = row["now"]
    return moment


FOREVER = datetime(9000, 1, 1, tzinfo=UTC)
LONG_AGO = datetime(1000, 1, 1, tzinfo=UTC)
"""What stands for moments that Python has no form for, such as PostgreSQL's infinity, which a person may have
written; there is room to add to them and to take from them."""


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


def _configure(conn: Connection) -> None:
    conn.adapters.register_loader("timestamptz", _Moments)


class Database:
    """A pool of autocommit connections that return rows as dictionaries.

    ``url`` is a libpq URL. Opening does not connect; the first use does, and raises ConfigurationError with
    one line when the server cannot be reached within ``timeout`` seconds.
    """

    def __init__(self, url: str, *, max_size: int = 8, timeout: float = 10.0) -> None:
        self.url = url
        parse(url)
        self._where = describe(url)
        self._down_until = 0.0
        self._pool: ConnectionPool[Connection] = ConnectionPool(
            url,
            connection_class=psycopg.Connection[dict[str, Any]],
            kwargs={
                "autocommit": True,
                "row_factory": dict_row,
                "options": _SESSION,
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
            check=ConnectionPool.check_connection,
        )

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """A connection of one's own for the length of the block; nothing is open on it at the start."""
        if self._pool.closed:
            self._pool.open()
        try:
            # Whoever asks right after a failed wait would wait in vain as long again.
            patience = 0.1 if time.monotonic() < self._down_until else None
            with self._pool.connection(patience) as conn:
                yield conn
        except PoolTimeout:
            self._down_until = time.monotonic() + _DOWN_SECONDS
            raise ConfigurationError(
                f"the database at {self._where} does not answer; start it, or correct SCM_DATABASE_URL",
                code="database_down",
            ) from None

    def close(self) -> None:
        """Close every connection."""
        self._pool.close()

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
