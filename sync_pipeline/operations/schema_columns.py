"""The list ``sql/columns.json``: the columns of the facts in words.

Belongs here: printing it. ``python -m sync_pipeline.operations.schema_columns`` does so for the migrated
database of the settings; a test keeps the file current.
"""

from __future__ import annotations

from sync_pipeline.operations.environment import resolve_urls
from sync_pipeline.settings import load_settings
from sync_pipeline.store.database import Database
from sync_pipeline.store.schema import columns_document, describe


def main() -> None:
    """Print the list."""
    with Database(resolve_urls(load_settings()).database_url) as database, database.connection() as conn:
        print(columns_document(describe(conn)), end="")  # noqa: T201


if __name__ == "__main__":
    main()
