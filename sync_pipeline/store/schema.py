"""What the tables and columns mean, read back from the comments in the database.

Belongs here: the query behind ``docs/schema.md``. The comments themselves are written in the migrations.
"""

from __future__ import annotations

from dataclasses import dataclass

from sync_pipeline.store.database import Connection

# Every table and view of ours with its columns, in the order of the migrations.
_DESCRIBE = """
SELECT n.nspname || '.' || c.relname AS name,
       CASE c.relkind WHEN 'v' THEN 'view' WHEN 'm' THEN 'materialized view' ELSE 'table' END AS kind,
       obj_description(c.oid, 'pg_class') AS meaning,
       a.attname AS column_name,
       format_type(a.atttypid, a.atttypmod) AS type,
       a.attnotnull AS required,
       col_description(c.oid, a.attnum) AS column_meaning
  FROM pg_class AS c
  JOIN pg_namespace AS n ON n.oid = c.relnamespace
  JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
 WHERE n.nspname IN ('scm', 'identity') AND c.relkind IN ('r', 'p', 'v', 'm')
 ORDER BY n.nspname DESC, c.relkind = 'v' DESC, c.relname, a.attnum
"""


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
    for row in conn.execute(_DESCRIBE):
        column = Column(row["column_name"], row["type"], row["required"], row["column_meaning"] or "")
        known = tables.get(row["name"])
        columns = (*known.columns, column) if known else (column,)
        tables[row["name"]] = Table(row["name"], row["kind"], row["meaning"] or "", columns)
    return list(tables.values())
