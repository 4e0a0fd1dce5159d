"""What a PostgreSQL server says about itself and about our rights on it.

Belongs here: one short look for ``scm-sync doctor``, on a connection of its own, because a pool would wait
and a session of ours may not be possible at all. Does not belong here: what is good enough; that is in
:mod:`sync_pipeline.operations.doctor`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import dict_row

from sync_pipeline.store.connecting import connect, explained, parse
from sync_pipeline.store.database import Connection

_NAME = "sync_pipeline doctor"

# The server, its database and what the account may do there. Only a superuser may know where the files are.
_LOOK = """
SELECT current_setting('server_version_num')::int AS version_number,
       current_setting('server_version') AS version,
       pg_encoding_to_char(d.encoding) AS encoding,
       pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean AS read_only,
       has_database_privilege(d.oid, 'CREATE') AS may_create,
       has_database_privilege(d.oid, 'TEMPORARY') AS may_stage,
       current_schema() IS NOT NULL AS has_schema,
       coalesce(has_schema_privilege(current_schema(), 'CREATE'), FALSE) AS may_create_tables,
       to_regclass('runs') IS NOT NULL AS has_runs,
       to_regnamespace('scm') IS NOT NULL AS has_scm,
       CASE WHEN (SELECT rolsuper FROM pg_roles WHERE rolname = current_user)
            THEN current_setting('data_directory') END AS data_directory
  FROM pg_database AS d
 WHERE d.datname = current_database()
"""

# The rights on our tables that the account lacks; the marker row is only ever read.
_LACKING = """
SELECT n.nspname || '.' || c.relname AS name, string_agg(wanted, ', ' ORDER BY wanted) AS rights
  FROM pg_class AS c
  JOIN pg_namespace AS n ON n.oid = c.relnamespace
 CROSS JOIN unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS wanted
 WHERE n.nspname = 'scm' AND c.relkind IN ('r', 'p')
   AND (c.relname <> 'deployment' OR wanted = 'SELECT')
   AND NOT (has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, wanted))
 GROUP BY 1
 ORDER BY 1
"""


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


def look(url: str, seconds: int, variable: str = "SCM_DATABASE_URL") -> Server:
    """Look at the server behind ``url``, a libpq URL, within about ``seconds``. Raises ConfigurationError
    with one line that says what is wrong and where ``variable`` may have to be corrected."""
    with connection(url, seconds, variable) as conn:
        row: dict[str, Any] | None = conn.execute(_LOOK).fetchone()
        assert row is not None
        lacking = {one["name"]: one["rights"] for one in conn.execute(_LACKING).fetchall()}
    return Server(**row, lacking=lacking)


@contextmanager
def connection(url: str, seconds: int, variable: str = "SCM_DATABASE_URL") -> Iterator[Connection]:
    """A connection of one's own whose statements end after ``seconds``. Raises as :func:`look`."""
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
