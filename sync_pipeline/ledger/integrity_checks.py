"""Checks that our own records agree with each other.

Belongs here: running ``sql/ops/prove_*.sql``, each of which lists what is wrong, and counting what is open.
Does not belong here: what lies outside of the database (:mod:`sync_pipeline.admin.verification`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sync_pipeline.database.pool import Connection
from sync_pipeline.database.queries import queries, sql_folder

SHOWN_ROWS = 20
"""So many rows of a check are kept; the others are counted."""

_EMPTY = " Empty when all is well."

# Around a check: the number of all rows with the first ones, so that a large damage is no large answer.
_HEAD, _TAIL = b"SELECT count(*) OVER () AS disagreeing, p.* FROM (\n", b"\n) AS p LIMIT %(limit)s"


_SQL = queries("integrity_checks")


@dataclass(frozen=True, slots=True)
class IntegrityCheck:
    """The result of one check: ``total`` rows disagree, of which ``rows`` are the first ones. ``about``
    describes a row."""

    name: str
    about: str
    total: int
    rows: list[dict[str, Any]]


def names() -> list[str]:
    """The names of all checks, such as ``coverage`` and ``jobs``."""
    return sorted(file.stem.removeprefix("prove_") for file in (sql_folder() / "ops").glob("prove_*.sql"))


def integrity_checks(conn: Connection, limit: int = SHOWN_ROWS) -> Iterator[IntegrityCheck]:
    """Run every check, in the order of their names."""
    for name in names():
        text = (sql_folder() / "ops" / f"prove_{name}.sql").read_bytes()
        # Only the frame has a parameter.
        query = text.strip().removesuffix(b";").replace(b"%", b"%%")
        found = conn.execute(_HEAD + query + _TAIL, {"limit": limit}).fetchall()
        totals = [row.pop("disagreeing") for row in found]
        yield IntegrityCheck(name, _about(text.decode()), max(totals, default=0), found)


def failures(conn: Connection) -> dict[str, list[dict[str, Any]]]:
    """The rows of each check that fails, by its name; empty when all is well."""
    return {check.name: check.rows for check in integrity_checks(conn) if check.total}


def open_records(conn: Connection) -> list[dict[str, Any]]:
    """``what`` is open, how much of it, and since when the oldest (``open``, ``oldest_at``)."""
    return conn.execute(_SQL["open"]).fetchall()


def _about(text: str) -> str:
    """The comment that a check begins with, without the sentence that all of them share."""
    lines = []
    for line in text.splitlines():
        if not line.startswith("--"):
            break
        lines.append(line.removeprefix("--").strip())
    return " ".join(lines).replace(_EMPTY, "")
