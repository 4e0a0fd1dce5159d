"""The settings in force and where each comes from, as a document.

Belongs here: what may be shown of a value, and where the credential of each server comes from. Does not
belong here: reading or judging settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from sync_pipeline.core.catalog import LOCAL, instance_of
from sync_pipeline.core.model import Kind
from sync_pipeline.settings import (
    FIELDS,
    GitLabTable,
    Given,
    Origin,
    Settings,
    SvnTable,
    config_file,
    meanings,
)
from sync_pipeline.settings.given import ONLY_IN_FILE, variable_of

# URLs that may hold a password.
_HIDDEN = frozenset({"database_url", "dagster_database_url"})


def document(settings: Settings, given: Mapping[str, Given]) -> dict[str, Any]:
    """Every setting with its value, what gave it, and its default; of a secret only whether it is set.
    ``given`` is what :func:`sync_pipeline.settings.explained_settings` says of them."""
    file, values, meaning = config_file(), settings.by_name(), meanings()
    return {
        "file": None if file is None else str(file),
        "profile": settings.profile,
        "settings": [
            {
                "name": name,
                "variable": None if name in ONLY_IN_FILE else variable_of(name),
                "value": _shown(name, values[name]),
                "origin": str(given[name].origin if name in given else Origin.DEFAULT),
                "given_by": given[name].name if name in given else None,
                "default": _shown(name, one.info.default),
                "meaning": meaning[one.group, one.key],
            }
            for name, one in FIELDS.items()
        ],
    }


@dataclass(frozen=True, slots=True)
class CredentialSources:
    """Where this process takes its credentials from: a variable, file or key, never the credential.
    ``gitlab`` by instance; ``svn`` for every SVN server, None where there is none."""

    gitlab: Mapping[str, str] = field(default_factory=dict)
    svn: str | None = None

    def of(self, kind: Kind, instance: str) -> str | None:
        """The source for a server; None where there is no credential, or none is needed."""
        if instance == LOCAL:
            return None
        return self.svn if kind is Kind.SVN else self.gitlab.get(instance)


def credential_sources(settings: Settings, given: Mapping[str, Given]) -> CredentialSources:
    """The sources of the settings in force; ``given`` as in :func:`document`."""
    gitlab = {}
    if "gitlab_token_file" in given:
        name = given["gitlab_token_file"].name
        gitlab[instance_of(settings.gitlab.url)] = f"{settings.gitlab.token_file} ({name})"
    elif "gitlab_token" in given:
        gitlab[instance_of(settings.gitlab.url)] = given["gitlab_token"].name
    for table in settings.gitlab.tables:
        key = f"[[gitlab]] in {config_file()}"
        if table.token_file is not None:
            gitlab[instance_of(table.url)] = f"{table.token_file} (token_file of {key})"
        elif table.token_env:
            gitlab[instance_of(table.url)] = f"{table.token_env} (token_env of {key})"
        elif table.token.get_secret_value():
            gitlab[instance_of(table.url)] = f"token of {key}"
    names = [given[name].name for name in ("svn_username", "svn_password") if name in given]
    return CredentialSources(gitlab, " and ".join(names) or None)


def _shown(name: str, value: object) -> object:
    if name in _HIDDEN or isinstance(value, SecretStr):
        secret = value.get_secret_value() if isinstance(value, SecretStr) else value
        return "set" if secret else "not set"
    if isinstance(value, (GitLabTable, SvnTable)):
        return {key: _shown(key, inner) for key, inner in value}
    if isinstance(value, tuple):
        return [_shown(name, item) for item in value]
    return str(value) if isinstance(value, (Path, date)) else value
