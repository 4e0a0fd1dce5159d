"""Proofs that our own records agree with each other.

Belongs here: running ``sql/ops/prove_*.sql``; each lists what is wrong and is empty when all is well.
"""

from __future__ import annotations

from typing import Any

from sync_pipeline.store.database import Connection
from sync_pipeline.store.migrations import sql_folder


def names() -> list[str]:
    """The proofs there are: ``counts``, ``coverage``, ``history``, ``paths``, ``refs``."""
    return sorted(file.stem.removeprefix("prove_") for file in (sql_folder() / "ops").glob("prove_*.sql"))


def failures(conn: Connection) -> dict[str, list[dict[str, Any]]]:
    """What each proof that fails has found, by its name; empty when all is well."""
    found = {}
    for name in names():
        query = (sql_folder() / "ops" / f"prove_{name}.sql").read_bytes()
        if rows := conn.execute(query).fetchall():
            found[name] = rows
    return found
