"""The page ``docs/schema.md``: every table and column in words.

Belongs here: the page's form. ``python -m sync_pipeline.operations.schema_page`` prints it for the migrated
database of the settings; a test keeps the file current.
"""

from __future__ import annotations

from collections.abc import Iterable

from sync_pipeline.operations.environment import resolve_urls
from sync_pipeline.settings import load_settings
from sync_pipeline.store.database import Database
from sync_pipeline.store.schema import Table, describe

_HEAD = """# Schema

Generated from the comments in the database by `python -m sync_pipeline.operations.schema_page`; do not edit.
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


def main() -> None:
    """Print the page."""
    with Database(resolve_urls(load_settings()).database_url) as database, database.connection() as conn:
        print(page(describe(conn)), end="")


if __name__ == "__main__":
    main()
