"""The configurations that jobs were made and claimed with: ``scm.configurations``.

Belongs here: keeping one under its hash, and reading it. Which settings it has is decided in
:mod:`sync_pipeline.sync.configuration`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from psycopg.types.json import Jsonb

from sync_pipeline import __version__
from sync_pipeline.database.pool import Connection
from sync_pipeline.database.queries import queries

_SQL = queries("configurations")


def keep(conn: Connection, config_hash: str, settings: Mapping[str, Any]) -> None:
    """Store a configuration under its hash, unless it is there. ``settings`` are values of JSON by name."""
    conn.execute(
        _SQL["keep"], {"config_hash": config_hash, "settings": Jsonb(settings), "code_version": __version__}
    )


def get(conn: Connection, config_hash: str | None) -> dict[str, Any] | None:
    """The settings under a hash; None for one that earlier versions wrote without them."""
    row = conn.execute(_SQL["get"], {"config_hash": config_hash}).fetchone()
    return None if row is None else dict(row["settings"])
