"""Rows of flat lists: how a page gets into the table of its job type, and how it compares with it.

Belongs here: statements that are made from a :class:`~sync_pipeline.facts.tables.Table` alone. Writes run
inside the caller's transaction, after the lease and the claim were checked. Does not belong here: any one job
type.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from sync_pipeline.core.model import Counts, JobType
from sync_pipeline.database.pool import Connection
from sync_pipeline.database.values import flags, payload, recordset
from sync_pipeline.facts import remap
from sync_pipeline.facts.comparison import ComparedRow, compare_rows
from sync_pipeline.facts.tables import Table

# The upsert: the same content changes nothing, and a row that comes back is no tombstone any more.
_UPSERT = """
INSERT INTO {table} AS t (repo_id, {columns}, batch_id)
SELECT %(repo_id)s, {columns}, %(batch_id)s
  FROM json_to_recordset(%(rows)s) AS s ({types})
 ORDER BY {key_columns}
ON CONFLICT (repo_id, {key_columns}) DO UPDATE
   SET {excluded}, raw = EXCLUDED.raw, content_hash = EXCLUDED.content_hash, batch_id = EXCLUDED.batch_id,
       version = t.version + 1, deleted_at = NULL, stored_at = now()
 WHERE t.batch_id <= EXCLUDED.batch_id
   AND (t.deleted_at IS NOT NULL OR t.content_hash <> EXCLUDED.content_hash)
RETURNING (xmax = 0) AS inserted
"""

# Before copies are stored that win over what is there: nothing that is kept about these is relied on.
_INVALIDATE = """
UPDATE {table} AS t SET content_hash = '', batch_id = 0
 WHERE repo_id = %(repo_id)s AND {key_text} = ANY (%(keys)s)
"""

# Which of some rows are stored with the same content.
_SAME = """
SELECT {key_text} AS key
  FROM json_to_recordset(%(rows)s) AS s ({types})
  JOIN {table} AS t ON t.repo_id = %(repo_id)s AND {same_key} AND t.deleted_at IS NULL
 WHERE t.content_hash = s.content_hash
"""

# All stored rows of a repository.
_STORED = "SELECT {names} FROM {table} WHERE repo_id = %(repo_id)s AND deleted_at IS NULL"


def columns(table: Table, row: Any) -> dict[str, Any]:
    """The columns that ``row`` says, with the hash over them."""
    raw, escaped = payload(row.raw)
    values = table.values(row) | {"flags": flags(row.flags, escaped=escaped)}
    return values | {"raw": raw, "content_hash": table.hash(values)}


def key_of(table: Table, row: Any) -> str:
    """The natural key of a row as text."""
    return str(table.values(row)[table.key[0]])


def store_rows(
    conn: Connection,
    table: Table,
    job_type: JobType,
    *,
    repo_id: int,
    batch_id: int,
    rows: Sequence[Any],
    invalidated: Collection[str] = (),
) -> Counts:
    """Write rows; returns what that changed, counted by the database. Copies of those whose keys are in
    ``invalidated`` win over what is stored. Stored rows leave quarantine.
    """
    once = {key_of(table, row): row for row in rows}
    params = {"repo_id": repo_id, "batch_id": batch_id, "rows": _recordset(table, once.values())}
    if doubtful := sorted(once.keys() & set(invalidated)):
        conn.execute(table.sql(_INVALIDATE), params | {"keys": doubtful})
    written = [row["inserted"] for row in conn.execute(table.sql(_UPSERT), params)]
    remap.resolve(conn, repo_id, job_type, list(once))
    inserted = sum(written)
    return Counts(
        read=len(once),
        inserted=inserted,
        updated=len(written) - inserted,
        unchanged=len(once) - len(written),
    )


def same_keys(conn: Connection, table: Table, repo_id: int, rows: Sequence[Any]) -> set[str]:
    """The keys of those rows that are stored with the same content."""
    params = {"repo_id": repo_id, "rows": _recordset(table, rows)}
    return {row["key"] for row in conn.execute(table.sql(_SAME), params)}


def compare(conn: Connection, table: Table, repo_id: int, rows: Iterable[Any]) -> list[ComparedRow]:
    """The whole list of a repository beside the stored rows. A tombstone counts as not stored."""
    source = {(key_of(table, row),): columns(table, row) for row in rows}
    stored = {
        (str(row[table.key[0]]),): row for row in conn.execute(table.sql(_STORED), {"repo_id": repo_id})
    }
    return compare_rows(source, stored, table.differing)


def _recordset(table: Table, rows: Iterable[Any]) -> Any:
    return recordset(columns(table, row) for row in rows)
