"""The page ``docs/schema.md``: every table and column in words; and ``sql/columns.json``.

Belongs here: the form of both. ``./dev generate`` writes the files; a test keeps them current.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from sync_pipeline.facts.schema import FACT_TABLES, Table

_HEAD = """# Schema

Generated from the comments in the database by `./dev generate`; do not edit.
Times are UTC. Windows are half-open. The role `scm_reader` may read everything here.
"""


def page(tables: Iterable[Table]) -> str:
    """The page as Markdown."""
    parts = [_HEAD]
    for table in tables:
        parts.append(f"\n## {table.name}\n\n{table.meaning} ({table.kind})\n")
        parts.append("\n| column | type | null | meaning |\n|---|---|---|---|\n")
        for column in table.columns:
            null = "" if column.required or table.kind != "table" else "yes"
            parts.append(f"| {column.name} | {column.type} | {null} | {column.meaning} |\n")
    return "".join(parts)


def columns_document(tables: Iterable[Table]) -> str:
    """The text of ``sql/columns.json``."""
    facts = {table.name: table for table in tables if table.name in FACT_TABLES}
    lines = []
    for name in FACT_TABLES:
        columns = ",\n".join(
            f"  {json.dumps([c.name, c.type, c.required, c.meaning])}" for c in facts[name].columns
        )
        lines.append(f' "{name}": [\n{columns}\n ]')
    return "{\n" + ",\n".join(lines) + "\n}\n"
