"""The model of all settings, and the values that contradict each other.

Belongs here: the settings of the whole installation, the groups, and the flat name of each setting. Does not
belong here: where a value comes from (:mod:`sync_pipeline.settings.given`).
"""

from __future__ import annotations

import ast
import inspect
import os
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, Field, FilePath, SecretStr
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from sync_pipeline.core.model import Kind
from sync_pipeline.settings.fields import Group, Owners
from sync_pipeline.settings.files import ProjectPath, config_file, read_toml
from sync_pipeline.settings.given import collect
from sync_pipeline.settings.servers import Discovery, GitLab, GitLabServer, Svn, token_source
from sync_pipeline.settings.work import (
    Breaker,
    Chunks,
    Degradation,
    Jobs,
    RateLimit,
    Reaper,
    Reconcile,
    Retention,
    Scheduler,
    Sensors,
    TenantRateLimit,
    Worker,
)

LowerCase = BeforeValidator(lambda value: value.lower() if isinstance(value, str) else value)


class Settings(BaseSettings):
    """All settings. Sizes are bytes, unless the description says otherwise.

    Use :func:`sync_pipeline.settings.load_settings`, which refuses unknown names and turns every problem into
    one line. Making an instance directly, from flat names, is for tests.
    """

    model_config = SettingsConfigDict(extra="forbid", frozen=True, validate_default=True)

    profile: Annotated[Literal["small", "medium", "large"] | None, LowerCase] = None
    """Size of the installation, which selects defaults of the table above."""
    log_level: Annotated[Literal["debug", "info", "warning", "error", "critical"], LowerCase] = "warning"
    """Lowest level of messages on stderr."""
    database_url: str = Field("", repr=False)
    """PostgreSQL URL; empty starts the embedded server."""
    dagster_database_url: str = Field("", repr=False)
    """PostgreSQL URL of Dagster's own tables; empty: schema dagster of the same database."""
    environment: str = Field("development", min_length=1)
    """Must match the marker row of the database."""
    state_dir: ProjectPath = Path(".state")
    """Folder for the embedded server, DAGSTER_HOME and the catalog snapshot. A relative one is below the
    project root of a clone, else below the working folder.
    """
    only: str = ""
    """Loads only this repository specification (for CI), such as gitlab:123 or svn:<url>."""
    asset_owners: Owners = ()
    """Owners of every asset in Dagster: comma-separated e-mail addresses and `team:<name>`. Empty: the team
    of the repository's tenant, `team:<tenant>`."""
    ca_file: FilePath | None = None
    """PEM file with the certificate authorities of private servers, GitLab and SVN."""

    # The text below a group is its title on the page.
    gitlab: GitLab = GitLab()
    """GitLab"""
    discovery: Discovery = Discovery()
    """Discovery of projects"""
    svn: Svn = Svn()
    """Subversion"""
    chunks: Chunks = Chunks()
    """Chunks"""
    reconcile: Reconcile = Reconcile()
    """Sweeps, comparisons"""
    jobs: Jobs = Jobs()
    """Jobs and leases"""
    sensors: Sensors = Sensors()
    """Sensors"""
    scheduler: Scheduler = Scheduler()
    """Scheduler"""
    breaker: Breaker = Breaker()
    """Circuit breaker"""
    degradation: Degradation = Degradation()
    """Degradation"""
    worker: Worker = Worker()
    """Workers and pools"""
    reaper: Reaper = Reaper()
    """Reaper"""
    retention: Retention = Retention()
    """Retention"""
    rate_limit: RateLimit = RateLimit()
    """Rate limit of a GitLab"""
    tenant_rate_limit: TenantRateLimit = TenantRateLimit()
    """Rate limit of a tenant"""

    def __init__(self, **values: Any) -> None:
        """``values`` by flat name go before environment, file and profile."""
        super().__init__(**_grouped(values))

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], init_settings: PydanticBaseSettingsSource, *_: Any, **__: Any
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Called by pydantic-settings. The precedence of what was given is that of
        :func:`sync_pipeline.settings.given.collect`; names that it does not know are passed over."""
        file = config_file()
        given = collect(FIELDS, os.environ, file, read_toml(file), {}).values
        values = _grouped({name: one.value for name, one in given.items()})
        return init_settings, InitSettingsSource(settings_cls, values)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy with other values by flat name; they are not validated."""
        groups: dict[str, dict[str, Any]] = {}
        for name, value in (update or {}).items():
            one = FIELDS[name]
            groups.setdefault(one.group, {})[one.key] = value
        own = groups.pop("", {})
        changed = {group: getattr(self, group).model_copy(update=values) for group, values in groups.items()}
        return super().model_copy(update=own | changed, deep=deep)

    def by_name(self) -> dict[str, Any]:
        """The value of each setting by its flat name."""
        return {
            name: getattr(getattr(self, one.group) if one.group else self, one.key)
            for name, one in FIELDS.items()
        }

    @property
    def switched_off(self) -> dict[str, str]:
        """The switches of :data:`SWITCHES` that are off, each with what does not happen."""
        values = self.by_name()
        return {name: what for name, what in SWITCHES.items() if not values[name]}

    @property
    def catalog_file(self) -> Path:
        """The catalog snapshot that the code location loads."""
        return self.state_dir / "catalog.json"

    def gitlab_servers(self) -> tuple[GitLabServer, ...]:
        """Every configured GitLab: the one of ``gitlab_url``, then the tables in their order."""
        one = self.gitlab
        first = GitLabServer(one.url, token_source(one.token, one.token_file), self.ca_file, one.name)
        others = (
            GitLabServer(
                table.url,
                token_source(table.token, table.token_file, table.token_env),
                table.ca_file or self.ca_file,
                table.name,
            )
            for table in one.tables
        )
        return (*((first,) if one.url else ()), *others)

    @property
    def server_names(self) -> dict[tuple[Kind, str], str]:
        """The names that people gave to servers, by kind and ``instance`` as repositories have it."""
        return {
            (Kind.GITLAB, urlsplit(server.url).netloc): server.name
            for server in self.gitlab_servers()
            if server.name
        } | {(Kind.SVN, table.instance): table.name for table in self.svn.tables}

    def server_name(self, kind: Kind, instance: str) -> str:
        """The name that a person gave to a server; empty for none."""
        return self.server_names.get((kind, instance), "")


# Flat names ---------------------------------------------------------------------------------------------


class Setting(NamedTuple):
    """Where a setting is: the attribute ``key`` of a group, or of the settings themselves."""

    group: str
    key: str
    info: FieldInfo


GROUPS: dict[str, type[Group]] = {
    name: type(field.default)
    for name, field in Settings.model_fields.items()
    if isinstance(field.default, Group)
}
FIELDS: dict[str, Setting] = {
    name: Setting("", name, field) for name, field in Settings.model_fields.items() if name not in GROUPS
} | {
    str(field.alias): Setting(group, key, field)
    for group, model in GROUPS.items()
    for key, field in model.model_fields.items()
}
"""Every setting by its flat name."""


def meanings() -> dict[tuple[str, str], str]:
    """The text below each field, by group and key as in ``FIELDS``: the meaning of a setting, the title of a
    group. Keeping these texts with pydantic would read them at every start, in 30 ms.
    """
    models: dict[str, type[BaseModel]] = {"": Settings, **GROUPS}
    found = {}
    for group, model in models.items():
        definition = ast.parse(inspect.getsource(model)).body[0]
        assert isinstance(definition, ast.ClassDef)
        for field, text in pairwise(definition.body):
            match field, text:
                case ast.AnnAssign(target=ast.Name(id=key)), ast.Expr(value=ast.Constant(value=str(words))):
                    found[group, key] = " ".join(words.split())
    return found


def _grouped(values: Mapping[str, Any]) -> dict[str, Any]:
    """``values`` by flat name, as the model takes them: those of a group in a dictionary of their own."""
    grouped: dict[str, Any] = {}
    for name, value in values.items():
        group = FIELDS[name].group if name in FIELDS else ""
        (grouped.setdefault(group, {}) if group else grouped)[name] = value
    return grouped


SECRETS = frozenset(name for name, one in FIELDS.items() if one.info.annotation is SecretStr)
"""Settings whose value belongs on no command line."""

SWITCHES = {
    "sync_enabled": "nothing is started by itself",
    "sweep_enabled": "nothing stored is read or compared again by itself",
    "cb_enabled": "circuit breakers hold nothing back",
    "degradation_enabled": "a slow source is asked in the usual sizes",
    "reaper_enabled": "lost jobs, runs and leases are not ended until a starter meets them",
}
"""Settings that switch a part of the program on, and what does not happen while one is false."""
