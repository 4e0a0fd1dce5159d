"""The meaning of the tables and columns, read back from the comments in the database.

Belongs here: the query behind ``docs/schema.md``. The comments themselves are written in the migrations.

``sql/columns.json`` has the columns of the facts for processes that may not ask a database, such as a code
location of Dagster. ``./dev generate`` writes it; a test keeps it current.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from sync_pipeline.database.pool import Connection
from sync_pipeline.database.queries import queries, sql_folder
from sync_pipeline.facts.job_types import FACTS

FACT_TABLES = tuple(one.table for one in FACTS.values())
"""The table of each job type, by name."""


_SQL = queries("schema")


@dataclass(frozen=True, slots=True)
class Column:
    """A column: SQL type, whether NULL is impossible, one sentence."""

    name: str
    type: str
    required: bool
    meaning: str


@dataclass(frozen=True, slots=True)
class Table:
    """A table or view with its columns."""

    name: str
    kind: str
    meaning: str
    columns: tuple[Column, ...]


def describe(conn: Connection) -> list[Table]:
    """Every table and view of the schemas ``scm`` and ``identity``."""
    tables: dict[str, Table] = {}
    for row in conn.execute(_SQL["describe"]):
        column = Column(row["column_name"], row["type"], row["required"], row["column_meaning"] or "")
        known = tables.get(row["name"])
        columns = (*known.columns, column) if known else (column,)
        tables[row["name"]] = Table(row["name"], row["kind"], row["meaning"] or "", columns)
    return list(tables.values())


def fact_columns() -> dict[str, tuple[Column, ...]]:
    """The columns of each of ``FACT_TABLES``, as the migrations of this program make them."""
    known = json.loads((sql_folder() / "columns.json").read_text(encoding="utf-8"))
    return {name: tuple(Column(*one) for one in columns) for name, columns in known.items()}
