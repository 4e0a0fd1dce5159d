"""The address of a PostgreSQL server: what of it may be shown, and why nothing can be reached there.

Belongs here: judging a connection URL, and everything that a message says of one. Pools are in
:mod:`sync_pipeline.store.database`, schemas in :mod:`sync_pipeline.store.migrations`.
"""

from __future__ import annotations

import re

import psycopg
from psycopg import conninfo

from sync_pipeline.errors import ConfigurationError

_HOST = re.compile(r"[\w.-]+|[0-9a-fA-F:.]+(%\w+)?|[/@][^@]*")
_DATABASE = re.compile(r"[\w .+$-]*")
# libpq ends the server at the first slash and the credentials at the first @ before it.
_PLACE = re.compile(r"postgres(?:ql)?://(?:[^@/]*@)?[^/?]*/?([^?]*)", re.DOTALL)


def parse(url: str, variable: str = "SCM_DATABASE_URL") -> dict[str, str]:
    """The parts of a libpq URL or of ``key=value`` pairs, by libpq's names.

    Raises ConfigurationError, which names ``variable`` and never repeats the URL, when libpq cannot read it
    or would take a part of a password for something else.
    """
    try:
        found = conninfo.conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        raise _unreadable(variable) from None
    parts = {name: str(value) for name, value in found.items() if value is not None}
    hosts = [*parts.get("host", "").split(","), *parts.get("hostaddr", "").split(",")]
    ports = parts.get("port", "").split(",")
    place = _PLACE.match(url)
    if (
        not all(_HOST.fullmatch(host) for host in hosts if host)
        or not all(re.fullmatch(r"[0-9]{1,5}", port) for port in ports if port)
        or (place is not None and re.search(r"[@/]", place[1]))
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


def _unreadable(variable: str) -> ConfigurationError:
    return ConfigurationError(
        f"{variable} is not a PostgreSQL URL; write postgresql://user:password@host:5432/database, "
        "and inside the password / as %2F, @ as %40 and % as %25"
    )
