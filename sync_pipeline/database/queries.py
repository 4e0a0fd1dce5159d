"""Reads the SQL statements of the store modules from ``sql/queries/``.

Each file belongs to the module of its name. A statement begins with ``-- name: NAME``. The comments below
that line say what the statement is for; they are not sent to the server.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import LiteralString, cast

from sync_pipeline.core.errors import ConfigurationError

_STATEMENT = re.compile(r"^-- name: (\w+)\n(?:--.*\n)*", re.MULTILINE)


def sql_folder() -> Path:
    """The folder ``sql/``: inside the installed package, or at the top of the source tree. Raises
    ConfigurationError when neither is there."""
    package = Path(str(resources.files("sync_pipeline")))
    for folder in (package / "_sql", package.parent / "sql"):
        if (folder / "queries").is_dir():
            return folder
    raise ConfigurationError("the SQL files are missing from this installation; install sync_pipeline again")


def queries(module: str) -> Mapping[str, LiteralString]:
    """The statements of ``sql/queries/<module>.sql`` by name."""
    _, *parts = _STATEMENT.split((sql_folder() / "queries" / f"{module}.sql").read_text(encoding="utf-8"))
    texts = (part.strip() for part in parts[1::2])
    # psycopg takes literals only. A file of the program is as trustworthy as its code.
    return cast("Mapping[str, LiteralString]", dict(zip(parts[::2], texts, strict=True)))
