"""The page ``docs/schema.md``: every table and column in words.

Belongs here: the page's form. ``./dev generate`` writes the file; a test keeps it current.
"""

from __future__ import annotations

from collections.abc import Iterable

from sync_pipeline.facts.schema import Table

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
