"""The configurations that jobs were made and claimed with: ``scm.configurations``.

Belongs here: keeping one under its hash, and reading it. Which settings it has is decided in
:mod:`sync_pipeline.sync.configuration`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from psycopg.types.json import Jsonb

from sync_pipeline import __version__
from sync_pipeline.store.database import Connection

# Each configuration once, written by the first process that uses it.
_KEEP = """
INSERT INTO scm.configurations (config_hash, settings, code_version)
VALUES (%(config_hash)s, %(settings)s, %(code_version)s)
ON CONFLICT DO NOTHING
"""

# For a person who looks at a job.
_GET = "SELECT settings FROM scm.configurations WHERE config_hash = %(config_hash)s"


def keep(conn: Connection, config_hash: str, settings: Mapping[str, Any]) -> None:
    """Store a configuration under its hash, unless it is there. ``settings`` are values of JSON by name."""
    conn.execute(
        _KEEP, {"config_hash": config_hash, "settings": Jsonb(settings), "code_version": __version__}
    )


def get(conn: Connection, config_hash: str | None) -> dict[str, Any] | None:
    """The settings under a hash; None for one that earlier versions wrote without them."""
    row = conn.execute(_GET, {"config_hash": config_hash}).fetchone()
    return None if row is None else dict(row["settings"])
