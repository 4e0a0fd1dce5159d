"""Empty databases for the programs that store in PostgreSQL.

Belongs here: an embedded server for the time of a benchmark.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sync_pipeline.database import migrations
from sync_pipeline.runtime.environment import ensure_server, remove_server


@contextmanager
def databases(state: Path) -> Iterator[Callable[[], str]]:
    """A PostgreSQL server, and a function that makes a database with our schema and returns its URL."""
    url = ensure_server(state)
    names = (f"bench{number}" for number in itertools.count(1))

    def make() -> str:
        name = next(names)
        migrations.create_database(url, name)
        fresh = url.replace("@/scm?", f"@/{name}?")
        migrations.migrate(fresh, "development")
        return fresh

    try:
        yield make
    finally:
        remove_server(state)
