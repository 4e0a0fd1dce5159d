"""The settings in force and where each comes from, as a document.

Belongs here: what may be shown of a value. Does not belong here: reading or judging settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from sync_pipeline.settings import GitLabTable, Settings, SvnTable, config_file
from sync_pipeline.settings_sources import ONLY_IN_FILE, Given, Origin, variable_of

# URLs that may hold a password.
_HIDDEN = frozenset({"database_url", "dagster_database_url"})


def document(settings: Settings, given: Mapping[str, Given]) -> dict[str, Any]:
    """Every setting with its value, what gave it, and its default; of a secret only whether it is set.
    ``given`` is what :func:`sync_pipeline.settings.explained_settings` says of them."""
    file = config_file()
    return {
        "file": None if file is None else str(file),
        "profile": settings.profile,
        "settings": [
            {
                "name": name,
                "variable": None if name in ONLY_IN_FILE else variable_of(name),
                "value": _shown(name, getattr(settings, name)),
                "origin": str(given[name].origin if name in given else Origin.DEFAULT),
                "given_by": given[name].name if name in given else None,
                "default": _shown(name, field.default),
                "meaning": field.description,
            }
            for name, field in Settings.model_fields.items()
        ],
    }


def _shown(name: str, value: object) -> object:
    if name in _HIDDEN or isinstance(value, SecretStr):
        secret = value.get_secret_value() if isinstance(value, SecretStr) else value
        return "set" if secret else "not set"
    if isinstance(value, (GitLabTable, SvnTable)):
        return {key: _shown(key, inner) for key, inner in value}
    if isinstance(value, tuple):
        return [_shown(name, item) for item in value]
    return str(value) if isinstance(value, (Path, date)) else value
