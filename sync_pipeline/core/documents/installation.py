"""The documents of ``scm-sync health`` and ``scm-sync settings``.

Belongs here: documents about this installation. Does not belong here: those about its work.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field
from typing_extensions import TypedDict

from sync_pipeline.core.documents.common import Text

# "for" is a keyword, so this one is written as a call.
Probed = TypedDict("Probed", {"for": Literal["scheduler", "worker", "reaper", "location"] | None})


class Probe(Probed):
    """scm-sync health --json."""

    pool: str
    ready: bool
    """The database answers and is migrated."""
    alive: bool | None
    """The heartbeat is fresh; null where it was not requested or cannot be read."""
    age_seconds: float | None
    """Since the latest tick."""
    said: str
    """One line for a person."""
    exit_code: Literal[0, 1, 2]


class Setting(TypedDict):
    """A setting."""

    name: Annotated[str, Field(pattern="^[a-z][a-z0-9_]*$")]
    variable: str | None
    """Its environment variable; null where it is only in the file."""
    value: Any
    """The value in force; of a secret, and of the URL of a database, `set` or `not set`."""
    origin: Literal["command line", "environment", "file", "profile", "default"]
    given_by: str | None
    """The option, the variable, the key with its file, or the profile; null for a default."""
    default: Any
    """Its value if nothing gave it."""
    meaning: Text


class SettingsInForce(TypedDict):
    """scm-sync settings --json. docs/settings.md has units and bounds."""

    file: str | None
    """The TOML file in force."""
    profile: Literal["small", "medium", "large"] | None
    settings: Annotated[list[Setting], Field(min_length=1)]
