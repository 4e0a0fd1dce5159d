"""Connecting to a PostgreSQL server: what of its address may be shown, and why a connection failed.

Belongs here: judging a connection URL, the session settings of a connection, and every message about a server
that cannot be used. Pools are in :mod:`sync_pipeline.database.pool`, schemas in
:mod:`sync_pipeline.database.migrations`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

import psycopg
from psycopg import conninfo
from psycopg.rows import RowFactory, tuple_row

from sync_pipeline.core.errors import ConfigurationError
from sync_pipeline.database.queries import queries

_Row = TypeVar("_Row")

# A setting of ours that only the server itself can have got from us: whether a pooler stands in between.
_DIRECT = "sync_pipeline.direct"

_SQL = queries("connecting")


_STARTING = (
    "starting up",
    "shutting down",
    "not yet accepting",
    "not accepting",
    "recovery",
    "terminating connection",
)
_FULL = ("too many", "connection slots", "no more connections")
# Words of a server that refuses a connection, in English, their meaning, and the remedy.
_REFUSALS = (
    (
        ("startup parameter", "connection pooler"),
        "is behind a connection pooler such as PgBouncer, which drops session settings",
        "name the PostgreSQL server itself in {}",
    ),
    (
        _FULL,
        "has no free connection",
        "raise its max_connections, lower SCM_PARALLEL_REPOSITORIES, or end other clients",
    ),
    (
        ("password", "authentication", "role", "pg_hba", "no such user"),
        "refuses the login",
        "correct user and password in {}",
    ),
    (_STARTING, "is starting or stopping", "try again in a moment"),
    (("does not exist", "no such database"), "has no such database", "create it, or correct {}"),
)
# Words of libpq where there is no server, in English, their meaning, and the remedy.
_FAILURES = (
    (("certificate", "ssl"), "and this program do not agree on TLS", "correct sslmode and sslrootcert in {}"),
    (
        ("refused", "no such file"),
        "does not answer: nobody listens there",
        "start it, or correct host and port in {}",
    ),
    (("timeout",), "does not answer in time", "start it, open the network to it, or correct {}"),
    (("translate host name",), "has a name that is not known", "correct the host in {}"),
    (("no password supplied",), "asks for a password", "write user and password into {}"),
)

_HOST = re.compile(r"[\w.-]+|[0-9a-fA-F:.]+(%\w+)?|[/@][^@]*")
_DATABASE = re.compile(r"[\w .+$-]*")
# libpq ends the server at the first slash and the credentials at the first @ before it.
_TARGET = re.compile(r"postgres(?:ql)?://(?:[^@/]*@)?[^/?]*/?([^?]*)", re.DOTALL)


def parse(url: str, variable: str = "SCM_DATABASE_URL") -> dict[str, str]:
    """The parts of a libpq URL or of ``key=value`` pairs, by libpq's names.

    Raises ConfigurationError when libpq cannot read it, or would read a part of a password as something else.
    The error names ``variable`` and never repeats the URL.
    """
    try:
        found = conninfo.conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        raise _unreadable(variable) from None
    parts = {name: str(value) for name, value in found.items() if value is not None}
    hosts = [*parts.get("host", "").split(","), *parts.get("hostaddr", "").split(",")]
    ports = parts.get("port", "").split(",")
    target = _TARGET.match(url)
    if (
        not all(_HOST.fullmatch(host) for host in hosts if host)
        or not all(re.fullmatch(r"[0-9]{1,5}", port) for port in ports if port)
        or (target is not None and re.search(r"[@/]", target[1]))
    ):
        raise _unreadable(variable)
    return parts


def describe(url: str) -> str:
    """Host, port and database of a connection URL, without user or password, for messages."""
    try:
        parts = parse(url)
    except ConfigurationError:
        return "(not a PostgreSQL URL)"
    database = parts.get("dbname", "")
    return "{}:{}/{}".format(
        parts.get("host") or parts.get("hostaddr") or "local socket",
        parts.get("port") or 5432,
        database if _DATABASE.fullmatch(database) else "...",
    )


def options(url: str, settings: Mapping[str, str | int]) -> str:
    """The start-up options of a connection: those that ``url`` has itself, then ``settings``, and the mark by
    which :func:`refuse_poolers` knows that they arrived."""
    ours = " ".join(f"-c {name}={value}" for name, value in {**settings, _DIRECT: 1}.items())
    return f"{parse(url).get('options', '')} {ours}".strip()


def refuse_poolers(conn: psycopg.Connection[Any]) -> None:
    """Raise OperationalError where the settings of :func:`options` did not reach the server. A pooler that
    ignores them would run statements without time limits, and would share temporary tables and session
    settings with other clients."""
    row = conn.cursor(row_factory=tuple_row).execute(_SQL["is_direct"], {"name": _DIRECT}).fetchone()
    if row is None or not row[0]:
        raise psycopg.OperationalError("FATAL: a connection pooler ignores our session settings")


def connect(
    url: str,
    *,
    seconds: int,
    name: str,
    settings: Mapping[str, str | int],
    row_factory: RowFactory[_Row],
) -> psycopg.Connection[_Row]:
    """One autocommit connection to the server behind SCM_DATABASE_URL, within about ``seconds``, with session
    ``settings``; ``name`` is seen in pg_stat_activity. Raises ConfigurationError as :func:`explained`."""
    try:
        conn = psycopg.connect(
            url,
            autocommit=True,
            row_factory=row_factory,
            connect_timeout=seconds,
            application_name=name,
            options=options(url, settings),
        )
        try:
            refuse_poolers(conn)
        except BaseException:
            conn.close()
            raise
    except psycopg.OperationalError as error:
        raise explained(error, url) from None
    return conn


def explained(
    error: psycopg.OperationalError, url: str, variable: str = "SCM_DATABASE_URL"
) -> ConfigurationError:
    """The error of a failed connection, as one line with the remedy, which may be to correct ``variable``.
    Its code is ``database_down`` where waiting may help."""
    refusal, where = _refusal(error), describe(url)
    for words, what, remedy in _REFUSALS if refusal else _FAILURES:
        if any(word in (refusal or str(error)).lower() for word in words):
            return ConfigurationError(
                f"the database at {where} {what}; {remedy.format(variable)}",
                code="configuration" if what is _REFUSALS[0][1] else "database_down",
            )
    if refusal:
        reason = "".join(filter(str.isprintable, refusal))
        if password := parse(url, variable).get("password"):
            reason = reason.replace(password, "***")
        line = f"the database at {where} refuses connections: {reason[:200]}; see the log of the server"
    else:
        line = f"the database at {where} cannot be reached; start it, or correct {variable}"
    return ConfigurationError(line, code="database_down")


def may_start(error: psycopg.OperationalError) -> bool:
    """False where the server runs and refuses this connection for a reason that waiting does not end."""
    refusal = _refusal(error)
    return not refusal or any(word in refusal.lower() for word in (*_STARTING, *_FULL))


def _refusal(error: psycopg.OperationalError) -> str:
    """The words of a server that refuses a connection; empty where none answers."""
    # Several tries are several lines; the last one counts.
    refusal: list[str] = re.findall(r"(?:FATAL|PANIC|ERROR):\s+(.+)", str(error))
    return refusal[-1] if refusal else ""


def _unreadable(variable: str) -> ConfigurationError:
    return ConfigurationError(
        f"{variable} is not a PostgreSQL URL; write postgresql://user:password@host:5432/database, "
        "and inside the password / as %2F, @ as %40 and % as %25"
    )
