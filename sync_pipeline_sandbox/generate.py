"""Writes the files that ``./dev generate`` makes from migrations, settings and types of documents.

Belongs here: which file has which text. A test of each file fails until the file has it. The migrations
run in an embedded PostgreSQL that is deleted afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from sync_pipeline.database import migrations, objects
from sync_pipeline.database.pool import Database
from sync_pipeline.facts.schema import describe
from sync_pipeline.runtime import environment
from sync_pipeline_sandbox import schema_page, schemas, settings_page


def texts() -> Mapping[str, str]:
    """The text of each generated file, by its path in the clone."""
    with TemporaryDirectory(prefix="scm-generate-") as folder:
        state_dir = Path(folder)
        try:
            url = environment.ensure_server(state_dir, durable=False)
            migrations.migrate(url, "generate")
            with Database(url) as database, database.connection() as conn:
                tables = describe(conn)
                found = objects.read(conn)
        finally:
            environment.remove_server(state_dir)
    return {
        "docs/schema.md": schema_page.page(tables),
        "docs/settings.md": settings_page.document(),
        "sql/columns.json": schema_page.columns_document(tables),
        "sql/objects.json": objects.document(found),
        **schemas.texts(),
    }


def main() -> None:
    """Write the files whose text changed, and print their names."""
    root = Path(__file__).parents[1]
    for name, text in texts().items():
        path = root / name
        if path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(f"written: {name}")


if __name__ == "__main__":
    main()
