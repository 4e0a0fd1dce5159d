"""The list ``sql/objects.json``: what the migrations make.

Belongs here: printing it. ``python -m sync_pipeline.operations.schema_objects`` does so for the migrated
database of the settings; a test keeps the file current. Comparing with it is in
:mod:`sync_pipeline.store.objects`.
"""

from __future__ import annotations

from sync_pipeline.operations.environment import resolve_urls
from sync_pipeline.settings import load_settings
from sync_pipeline.store import objects
from sync_pipeline.store.database import Database


def main() -> None:
    """Print the list."""
    with Database(resolve_urls(load_settings()).database_url) as database, database.connection() as conn:
        print(objects.document(objects.read(conn)), end="")  # noqa: T201


if __name__ == "__main__":
    main()
