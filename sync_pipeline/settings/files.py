"""The TOML file of the settings: where it is, and its text.

Belongs here: finding the file, reading it, and paths that are relative to the project root. Does not belong
here: the meaning of a key (:mod:`sync_pipeline.settings.given`).
"""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator

from sync_pipeline.core.errors import ConfigurationError

CONFIG_NAME = "sync_pipeline.toml"


def project_root() -> Path:
    """The clone that this package runs from, or the working folder when it was installed as a wheel."""
    clone = Path(__file__).resolve().parents[2]
    if (clone / "pyproject.toml").is_file() and (clone / "sql").is_dir():
        return clone
    return Path.cwd()


ProjectPath = Annotated[Path, AfterValidator(lambda path: project_root() / path.expanduser())]
"""A path; a relative one is below the project root."""


def config_file() -> Path | None:
    """The TOML file in force, or None. Raises ConfigurationError if ``SCM_CONFIG`` names no file."""
    if named := os.environ.get("SCM_CONFIG"):
        if not Path(named).is_file():
            raise ConfigurationError(
                f"SCM_CONFIG: there is no file {named}; correct the path or unset SCM_CONFIG"
            )
        return Path(named)
    paths = (Path.cwd() / CONFIG_NAME, project_root() / CONFIG_NAME)
    return next((location for location in paths if location.is_file()), None)


def read_toml(path: Path | None) -> dict[str, Any]:
    """The content of a TOML file; empty for None. Raises ConfigurationError that names the wrong place."""
    if path is None:
        return {}
    try:
        text = path.read_text(encoding="utf-8-sig")  # editors may begin it with a byte order mark
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ConfigurationError(f"{path}: line {line} is not UTF-8; save the file as UTF-8") from None
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror}") from None
    return parse_toml(text, path)


def parse_toml(text: str, path: Path) -> dict[str, Any]:
    """``text`` as TOML; ``path`` is for the message. Raises ConfigurationError with line and column."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        # The message names keys and characters of the syntax, never a value.
        problem, _, location = str(error).rpartition(" (at ")
        found = re.fullmatch(r"line (\d+), column (\d+)\)", location)
        lines = text.splitlines() or [""]
        line, column = found.groups() if found else (str(len(lines)), str(len(lines[-1]) + 1))
        raise ConfigurationError(
            f"{path}: line {line}, column {column}: {problem}; correct the TOML"
        ) from None
