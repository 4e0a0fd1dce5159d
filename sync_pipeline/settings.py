"""Every setting of the program: name, type, default, unit, and where its value comes from.

Belongs here: the model, the precedence, the refusal of what is unknown or wrong, and the page
``docs/settings.md`` that is generated from the model (``python -m sync_pipeline.settings``). Does not belong
here: what any setting is used for beyond its one-line meaning, and connecting to anything.

Precedence, highest first: command line, environment (``SCM_<NAME>``, for the SVN credentials also
``SVN_USERNAME`` and ``SVN_PASSWORD``), TOML file, default. The file is the one that ``SCM_CONFIG`` names, or
``sync_pipeline.toml`` in the working folder, or the one in the project root. Its keys are the field names, at
top level. An empty variable counts as not set.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args

from pydantic import Field, FilePath, SecretStr, ValidationError, field_validator, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from sync_pipeline.errors import ConfigurationError

CONFIG_NAME = "sync_pipeline.toml"
PREFIX = "SCM_"

# Names from the systems this one replaces, accepted so that their environments keep working.
_ALIASES = {"SVN_USERNAME": "svn_username", "SVN_PASSWORD": "svn_password"}
# Variables with the prefix that are no settings: read before any setting can be, or by dagster.yaml and
# the tests.
OTHER_VARIABLES = {
    "SCM_CONFIG": f"Path of the TOML file; default: `{CONFIG_NAME}` in the working folder or project root.",
    "SCM_DEBUG": "Any value but empty or 0: errors of the command line show their traceback.",
}
_OTHER_PREFIXES = ("SCM_DAGSTER_", "SCM_TEST_")
# Values that may hold a password: never repeated in a message.
_SECRET = frozenset({"database_url", "dagster_database_url", "svn_password"})
_TRUST_FAILURES = ("unknown-ca", "cn-mismatch", "expired", "not-yet-valid", "other")


def project_root() -> Path:
    """The clone that this package runs from, or the working folder when it was installed as a wheel."""
    clone = Path(__file__).resolve().parent.parent
    if (clone / "pyproject.toml").is_file() and (clone / "sql").is_dir():
        return clone
    return Path.cwd()


def config_file() -> Path | None:
    """The TOML file in force, or None. Raises ConfigurationError if ``SCM_CONFIG`` names no file."""
    if named := os.environ.get("SCM_CONFIG"):
        if not Path(named).is_file():
            raise ConfigurationError(
                f"SCM_CONFIG: there is no file {named}; correct the path or unset SCM_CONFIG"
            )
        return Path(named)
    for folder in (Path.cwd(), project_root()):
        if (folder / CONFIG_NAME).is_file():
            return folder / CONFIG_NAME
    return None


class _Aliases(InitSettingsSource):
    """The variables of :data:`_ALIASES`, just below the ones with our prefix."""

    def __init__(self, settings_class: type[BaseSettings]) -> None:
        found = {field: os.environ[name] for name, field in _ALIASES.items() if os.environ.get(name)}
        super().__init__(settings_class, found)


class Settings(BaseSettings):
    """All settings. Durations are seconds, sizes are bytes, unless the description says otherwise.

    Use :func:`load_settings`, which refuses unknown names and turns every problem into one line. Making an
    instance directly is for tests.
    """

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        extra="forbid",
        frozen=True,
        env_ignore_empty=True,
        validate_default=True,
        allow_inf_nan=False,
    )

    database_url: str = Field("", repr=False, description="PostgreSQL URL; empty starts the embedded server.")
    dagster_database_url: str = Field(
        "",
        repr=False,
        description="PostgreSQL URL of Dagster's own tables; empty: schema dagster of the same database.",
    )
    environment: str = Field(
        "development", min_length=1, description="Must match the marker row of the database."
    )
    state_dir: Path = Field(
        Path(".state"),
        description="Folder for the embedded server, DAGSTER_HOME and the catalog snapshot; a relative one "
        "is below the project root of a clone, else below the working folder.",
    )
    only: str = Field(
        "", description="Load this one repository specification only (for CI), such as svn:<url>."
    )

    svn_username: str = Field("", description="User name for every SVN server; also read from SVN_USERNAME.")
    svn_password: SecretStr = Field(
        SecretStr(""), description="Password for every SVN server; also read from SVN_PASSWORD."
    )
    svn_info_timeout: float = Field(
        60.0, gt=0, le=31_536_000, description="Seconds: wall clock limit of svn info."
    )
    svn_log_timeout: float = Field(
        300.0, gt=0, le=31_536_000, description="Seconds: wall clock limit of svn log for one window."
    )
    svn_timeout: float = Field(
        120.0, gt=0, le=31_536_000, description="Seconds: wall clock limit of every other svn command."
    )
    svn_max_answer_bytes: int = Field(
        2 * 1024**3,
        gt=0,
        description="Bytes: largest answer of one svn command; a larger one halves the window.",
    )
    svn_ca_file: FilePath | None = Field(
        None, description="PEM file with the certificate authorities of private servers."
    )
    svn_trust_failures: str = Field(
        "",
        description="Certificate failures to accept, comma-separated, as svn names them: "
        "unknown-ca,cn-mismatch,expired,not-yet-valid,other.",
    )

    chunk_revisions: int = Field(1000, ge=1, le=100_000, description="Revisions of a chunk.")
    fingerprint_revisions: int = Field(
        5, ge=1, le=100, description="Stored revisions compared with the source at every visit."
    )
    sweep_recent_revisions: int = Field(
        100, ge=0, description="Newest revisions re-read by each sweep for edited properties."
    )
    sweep_interval: float = Field(
        3600.0, gt=0, le=31_536_000, description="Seconds: shortest time between two sweeps of a repository."
    )
    job_max_attempts: int = Field(3, ge=1, description="Attempts at a job before it is dead.")
    claim_length: float = Field(
        300.0, gt=0, le=31_536_000, description="Seconds: length of the claim on a job."
    )
    claim_renew: float = Field(
        60.0, gt=0, le=31_536_000, description="Seconds: how often the claim is renewed."
    )
    lease_length: float = Field(
        60.0, gt=0, le=31_536_000, description="Seconds: length of the lease of a (repository, job type)."
    )
    lease_renew: float = Field(
        15.0, gt=0, le=31_536_000, description="Seconds: how often the lease is renewed."
    )
    wait_limit: float = Field(
        600.0,
        ge=0,
        le=31_536_000,
        description="Seconds: longest wait for a lease or a job that somebody else holds.",
    )
    parallel_repositories: int = Field(
        4, ge=1, le=64, description="Repositories synced side by side in one run."
    )

    sync_interval: float = Field(
        300.0, gt=0, le=31_536_000, description="Seconds: a repository is due when its last visit is older."
    )
    sensor_interval: int = Field(
        30, ge=1, description="Seconds: shortest time between two ticks of a sensor."
    )
    max_jobs_per_tick: int = Field(100, ge=1, description="Jobs that one scheduler tick may start.")
    max_queued_runs: int = Field(
        10, ge=1, description="The scheduler holds back while so many Dagster runs wait."
    )
    changes_per_tick: int = Field(
        20, ge=1, description="SVN repositories that one tick of the changes sensor looks at."
    )
    changes_time_limit: float = Field(
        3.0, gt=0, le=31_536_000, description="Seconds: wall clock limit of one tick of the changes sensor."
    )
    stale_after: float = Field(
        3600.0, gt=0, le=31_536_000, description="Seconds: the health check fails when freshness is older."
    )

    @property
    def catalog_file(self) -> Path:
        """The catalog snapshot that the code location loads."""
        return self.state_dir / "catalog.json"

    @field_validator("state_dir")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        return project_root() / value.expanduser()

    @field_validator("svn_trust_failures")
    @classmethod
    def _known_failures(cls, value: str) -> str:
        names = [name.strip() for name in value.split(",") if name.strip()]
        for name in names:
            if name not in _TRUST_FAILURES:
                raise ValueError(f"{name!r} is none of {', '.join(_TRUST_FAILURES)}")
        return ",".join(names)

    @model_validator(mode="after")
    def _renewed_in_time(self) -> Settings:
        for what in ("claim", "lease"):
            if getattr(self, f"{what}_renew") >= getattr(self, f"{what}_length"):
                raise ValueError(f"{what}_renew must be shorter than {what}_length, or the {what} is lost")
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The precedence, highest first; called by pydantic-settings."""
        toml = TomlConfigSettingsSource(settings_cls, config_file())
        return init_settings, env_settings, _Aliases(settings_cls), toml


def load_settings(**overrides: object) -> Settings:
    """The settings in force; ``overrides`` come from the command line, None means not given.

    Raises ConfigurationError with one line that names the key, the problem and, for an unknown name, the
    nearest known one. Values that may be secret are never repeated.
    """
    given = {name: value for name, value in overrides.items() if value is not None}
    file = config_file()
    in_file = _read_toml(file) if file else {}
    _refuse_unknown(file, in_file)
    try:
        return Settings(**given)  # type: ignore[arg-type]  # the model checks the types
    except ValidationError as error:
        raise ConfigurationError(_one_line(error, given, file, in_file)) from None


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
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
        problem, _, place = str(error).rpartition(" (at ")
        found = re.fullmatch(r"line (\d+), column (\d+)\)", place)
        lines = text.splitlines() or [""]
        line, column = found.groups() if found else (str(len(lines)), str(len(lines[-1]) + 1))
        raise ConfigurationError(
            f"{path}: line {line}, column {column}: {problem}; correct the TOML"
        ) from None


def _refuse_unknown(file: Path | None, in_file: Mapping[str, Any]) -> None:
    known = {f"{PREFIX}{name.upper()}" for name in Settings.model_fields}
    for name in sorted(os.environ):
        if not name.startswith(PREFIX) or name in known or name in OTHER_VARIABLES:
            continue
        near = get_close_matches(name, [*known, *OTHER_VARIABLES], n=1, cutoff=0.75)
        # A name with a free prefix is refused only when it looks like a slip of the pen.
        if name.startswith(_OTHER_PREFIXES) and not get_close_matches(name, known, n=1, cutoff=0.9):
            continue
        raise ConfigurationError(f"unknown setting {name} in the environment; {_advice(near)}")
    for key in in_file:
        if key not in Settings.model_fields:
            near = get_close_matches(key, Settings.model_fields, n=1, cutoff=0.7)
            raise ConfigurationError(f"unknown setting {key} in {file}; {_advice(near)}")
        if isinstance(in_file[key], bool):  # pydantic would read true as 1
            raise ConfigurationError(f"{key} in {file}: true and false are no values of it")


def _advice(near: list[str]) -> str:
    return f"did you mean {near[0]}?" if near else "docs/settings.md lists the known ones"


def _one_line(
    error: ValidationError, given: Mapping[str, object], file: Path | None, in_file: Mapping[str, Any]
) -> str:
    first = error.errors(include_url=False, include_context=False)[0]
    problem = first["msg"].removeprefix("Value error, ")
    if not first["loc"]:
        return problem
    key = str(first["loc"][0])
    if first["type"] == "extra_forbidden":
        return f"unknown setting {key}; {_advice(get_close_matches(key, Settings.model_fields, n=1))}"
    variable = f"{PREFIX}{key.upper()}"
    aliases = [name for name, field in _ALIASES.items() if field == key and os.environ.get(name)]
    if key in given:
        name = f"--{key.replace('_', '-')}"
    elif os.environ.get(variable):
        name = variable
    elif aliases:
        name = aliases[0]
    else:
        name = f"{key} in {file}" if key in in_file else key
    value = "" if key in _SECRET or first["type"] == "value_error" else f", not {first['input']!r:.80}"
    return f"{name}: {problem[:1].lower()}{problem[1:]}{value}"


def document() -> str:
    """The text of ``docs/settings.md``."""
    return "\n".join(_document()) + "\n"


def _document() -> Iterator[str]:
    yield "# Settings"
    yield ""
    yield "Generated by `python -m sync_pipeline.settings > docs/settings.md`; a test keeps it current."
    yield ""
    yield "A value comes from the first of these that has one: the command line, the environment variable,"
    yield f"the TOML file (`SCM_CONFIG`, else `{CONFIG_NAME}` in the working folder, else in the project"
    yield "root; its keys are at top level), the default. An unknown name, a wrong type or a value out of"
    yield "range is refused with exit code 3."
    yield ""
    yield "| variable | TOML key | type | default | meaning |"
    yield "|---|---|---|---|---|"
    for name, field in Settings.model_fields.items():
        names = f"`{PREFIX}{name.upper()}` | `{name}`"
        yield f"| {names} | {_type(field)} | {_default(field)} | {field.description} |"
    yield ""
    yield "Variables that are no settings:"
    yield ""
    yield "| variable | meaning |"
    yield "|---|---|"
    for name, meaning in OTHER_VARIABLES.items():
        yield f"| `{name}` | {meaning} |"


def _type(field: FieldInfo) -> str:
    kinds = {"str": "text", "int": "whole number", "float": "number", "Path": "path", "SecretStr": "secret"}
    annotation = next((arg for arg in get_args(field.annotation) if arg is not type(None)), field.annotation)
    name = kinds.get(getattr(annotation, "__name__", ""), "path")
    signs = {"gt": "more than", "ge": "at least", "le": "at most"}
    bounds = [
        f"{words} {getattr(bound, sign):g}"
        for bound in field.metadata
        for sign, words in signs.items()
        if hasattr(bound, sign)
    ]
    return ", ".join([name, *bounds])


def _default(field: FieldInfo) -> str:
    value = field.default
    if isinstance(value, SecretStr) or value in ("", None):
        return "none"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


if __name__ == "__main__":
    print(document(), end="")
