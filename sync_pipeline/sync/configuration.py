"""The settings in force as they are kept with jobs.

Belongs here: which settings those are, and their hash. Numbers, switches and dates shape what a job does; a
text or a list may be a secret, an address or a path, and is never kept.
"""

from __future__ import annotations

import hashlib
import json
from datetime import date
from typing import Any

from sync_pipeline.settings import FIELDS, Settings
from sync_pipeline.settings.given import RENAMED, variable_of
from sync_pipeline.store import configurations
from sync_pipeline.store.database import Connection

_HASH = 16


def effective(settings: Settings) -> dict[str, Any]:
    """The numbers, switches and dates of the settings, by name, as values of JSON."""
    return {
        name: value.isoformat() if isinstance(value, date) else value
        for name, value in settings.by_name().items()
        if isinstance(value, int | float | date)
    }


def changed(kept: dict[str, Any]) -> dict[str, Any]:
    """Those of a kept configuration that are not the defaults of this version."""
    defaults = {name: one.info.default for name, one in FIELDS.items()}
    plain = {name: one.isoformat() if isinstance(one, date) else one for name, one in defaults.items()}
    named = {RENAMED.get(variable_of(name), name): value for name, value in kept.items()}
    return {name: value for name, value in named.items() if name not in plain or plain[name] != value}


def hash_of(settings: Settings) -> str:
    """The hash by which jobs name their configuration."""
    text = json.dumps(effective(settings), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:_HASH]


def keep(conn: Connection, settings: Settings) -> str:
    """Keep the settings in force; returns their hash."""
    config_hash = hash_of(settings)
    configurations.keep(conn, config_hash, effective(settings))
    return config_hash
