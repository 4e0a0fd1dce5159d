"""Reads the state of a PostgreSQL server and our rights on it.

Belongs here: one short check for ``scm-sync doctor``. It has a connection of its own, because a pool would
wait and may get no session at all. Does not belong here: the evaluation
(:mod:`sync_pipeline.reports.doctor`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import dict_row

from sync_pipeline.database.connecting import connect, explained, parse
from sync_pipeline.database.pool import Connection
from sync_pipeline.database.queries import queries

_NAME = "sync_pipeline doctor"


_SQL = queries("diagnosis")


@dataclass(frozen=True, slots=True)
class Server:
    """``version_number`` is like 180001. ``encoding`` is the database's. ``may_create``: schemas;
    ``may_stage``: temporary tables; ``has_schema``, ``may_create_tables``, ``has_runs``: about the schema
    that the URL chooses, ``has_runs`` is a table of Dagster's. ``data_directory`` is None where the account
    may not know it. ``lacking`` are rights on our tables that it does not have, by table."""

    version_number: int
    version: str
    encoding: str
    read_only: bool
    may_create: bool
    may_stage: bool
    has_schema: bool
    may_create_tables: bool
    has_runs: bool
    has_scm: bool
    data_directory: str | None
    lacking: dict[str, str]


def inspect(url: str, seconds: int, variable: str = "SCM_DATABASE_URL") -> Server:
    """Look at the server behind ``url``, a libpq URL, within about ``seconds``. Raises ConfigurationError
    with one line that says what is wrong and where ``variable`` may have to be corrected."""
    with connection(url, seconds, variable) as conn:
        row: dict[str, Any] | None = conn.execute(_SQL["inspect"]).fetchone()
        assert row is not None
        lacking = {one["name"]: one["rights"] for one in conn.execute(_SQL["missing_rights"]).fetchall()}
    return Server(**row, lacking=lacking)


@contextmanager
def connection(url: str, seconds: int, variable: str = "SCM_DATABASE_URL") -> Iterator[Connection]:
    """A connection of one's own whose statements end after ``seconds``. Raises as :func:`inspect`."""
    if variable == "SCM_DATABASE_URL":
        settings: dict[str, str | int] = {"timezone": "UTC", "statement_timeout": seconds * 1000}
        with connect(url, seconds=seconds, name=_NAME, settings=settings, row_factory=dict_row) as conn:
            yield conn
        return
    parse(url, variable)
    try:
        theirs = psycopg.connect(
            url, autocommit=True, row_factory=dict_row, connect_timeout=seconds, application_name=_NAME
        )
    except psycopg.OperationalError as error:
        raise explained(error, url, variable) from None
    # Dagster may have its tables behind a pooler: settings of the session would be another client's.
    with theirs, theirs.transaction():
        theirs.execute("SELECT set_config('statement_timeout', %(ms)s, TRUE)", {"ms": str(seconds * 1000)})
        yield theirs
