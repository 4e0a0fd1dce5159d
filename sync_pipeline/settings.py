"""Every setting of the program: name, type, default, unit, and what may stand together.

Belongs here: the model and the refusal of what is wrong, all of it at once, a line each. Does not belong
here: by which names a setting may be given and the precedence of what was given
(:mod:`sync_pipeline.settings_sources`), how the page about them looks (:mod:`sync_pipeline.settings_page`),
what a setting is used for beyond its one-line meaning, and connecting to anything.

The file is the one that ``SCM_CONFIG`` names, or ``sync_pipeline.toml`` in the working folder, or the one in
the project root. ``python -m sync_pipeline.settings`` prints the page.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from dataclasses import field as part
from datetime import date
from math import inf
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    FilePath,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from sync_pipeline import clock, settings_page
from sync_pipeline.errors import ConfigurationError
from sync_pipeline.model import FLEET, JobType, Kind
from sync_pipeline.settings_sources import (
    CONFIG_NAME,
    ONLY_IN_FILE,
    Given,
    Origin,
    advice,
    collect,
    read_toml,
)

# Values that may hold a password: never repeated in a message.
_SECRET = frozenset(
    {"database_url", "dagster_database_url", "svn_password", "gitlab_url", "gitlab_token", "gitlab"}
)
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


# Servers ------------------------------------------------------------------------------------------------

_MAX_ALIAS_LENGTH = 32


def _alias(value: str) -> str:
    """An alias as it may stand in the key of an asset. Raises ValueError."""
    if value == FLEET:
        raise ValueError(
            f"{value} is the name of the assets about the whole installation; choose another one"
        )
    if value and not (re.fullmatch(r"[a-z0-9]+(_[a-z0-9]+)*", value) and len(value) <= _MAX_ALIAS_LENGTH):
        raise ValueError(
            f"write at most {_MAX_ALIAS_LENGTH} characters, a-z, 0-9 and single _ between them, "
            "like main or gitlab_eu"
        )
    return value


Alias = Annotated[str, AfterValidator(_alias)]
"""The short name of a server: first part of the keys of its assets."""


@dataclass(frozen=True, slots=True)
class GitLabServer:
    """A GitLab that may be read. ``url`` is its base: no trailing slash, no ``/api/v4``.

    ``token`` is to be called at each use, so that a rotated token is used at once; the empty text stands for
    no token. It raises ConfigurationError, without the token, where there should be one and is none.
    ``ca_file`` names the certificate authorities to trust, None for those of the system. ``name`` is the
    alias that a person gave it; empty for none.
    """

    url: str
    token: Callable[[], str] = part(repr=False, compare=False)
    ca_file: Path | None
    name: str = ""


class GitLabTable(BaseModel):
    """A ``[[gitlab]]`` table of the TOML file: one server and where its token is."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str
    token: SecretStr = SecretStr("")
    token_env: str = ""
    token_file: Path | None = None
    ca_file: FilePath | None = None
    name: Alias = ""

    @field_validator("url")
    @classmethod
    def _base(cls, value: str) -> str:
        return _base_url(value)

    @field_validator("token")
    @classmethod
    def _usable(cls, value: SecretStr) -> SecretStr:
        return SecretStr(_usable_token(value.get_secret_value()))

    @field_validator("token_file")
    @classmethod
    def _absolute(cls, value: Path | None) -> Path | None:
        return value and project_root() / value.expanduser()

    @model_validator(mode="after")
    def _one_token(self) -> Self:
        if sum(map(bool, (self.token.get_secret_value(), self.token_env, self.token_file))) > 1:
            raise ValueError("give one of token, token_env and token_file")
        return self


class SvnTable(BaseModel):
    """A ``[[svn]]`` table of the TOML file: the name of one SVN server. ``url`` is its scheme and host."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str
    name: Alias = Field(min_length=1)

    @field_validator("url")
    @classmethod
    def _server(cls, value: str) -> str:
        text = value.strip().rstrip("/").lower()
        if not re.fullmatch(r"(https?|svn(\+\w+)?)://(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:\d+)?|file:", text):
            raise ValueError("write the server only, like https://svn.example.com, or file:///")
        return "file:///" if text == "file:" else text

    @property
    def instance(self) -> str:
        """The server as repositories have it: the host, with the port where it is not the default."""
        scheme, _, place = self.url.partition("://")
        port = {"http": 80, "https": 443, "svn": 3690, "svn+ssh": 22}.get(scheme)
        return place.removesuffix(f":{port}").strip("/") or "local"


def _base_url(url: str) -> str:
    """The base of a GitLab server as it is stored and compared; empty for an empty one. Raises ValueError
    that does not repeat ``url``, which may hold credentials."""
    if not url.strip():
        return ""
    try:
        parts = urlsplit(url.strip())
        port, host = parts.port, (parts.hostname or "").encode("idna").decode("ascii")
    except (ValueError, UnicodeError):
        host, port = "", None
    if not re.fullmatch(r"[a-z0-9][a-z0-9._-]*|[0-9a-f:.]+", host) or parts.scheme not in ("http", "https"):
        raise ValueError("this is no URL of a server; write it like https://gitlab.example.com")
    if "@" in parts.netloc:
        raise ValueError("the URL holds credentials; leave them out and set the token on its own")
    if "@" in parts.path:
        # A password with a slash ends the host before the @ does.
        raise ValueError("the URL holds an @; leave credentials out and set the token on its own")
    if parts.query or parts.fragment or re.search(r"[\s%]", parts.path):
        raise ValueError("write the URL without ?, #, % and blanks, like https://gitlab.example.com")
    host = f"[{host}]" if ":" in host else host
    place = host if port in (None, {"http": 80, "https": 443}[parts.scheme]) else f"{host}:{port}"
    path = re.sub(r"/+", "/", parts.path).rstrip("/").removesuffix("/api/v4").rstrip("/")
    return f"{parts.scheme}://{place}{path}"


def _usable_token(text: str) -> str:
    """``text`` without the blanks around it. Raises ValueError where it cannot be a token."""
    token = text.strip()
    if not re.fullmatch(r"[!-~]*", token):
        raise ValueError("the token holds a blank or a character that no token has; set it anew")
    return token


def _token_of_file(path: Path) -> str:
    """The token in a file, or ConfigurationError."""
    try:
        token = _usable_token(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigurationError(f"the token file {path} cannot be read: {error.strerror}") from None
    except ValueError:  # not UTF-8 too
        raise ConfigurationError(
            f"the token file {path} holds a blank or a character that no token has; write the token anew"
        ) from None
    if not token:
        raise ConfigurationError(f"the token file {path} is empty; write the token into it")
    return token


def _token_of_variable(name: str) -> str:
    """The token in an environment variable, or ConfigurationError."""
    try:
        token = _usable_token(os.environ.get(name, ""))
    except ValueError as error:
        raise ConfigurationError(f"{name}: {error}") from None
    if not token:
        raise ConfigurationError(f"{name} is not set; a [[gitlab]] table says that it holds the token")
    return token


def _token_source(token: SecretStr, file: Path | None, variable: str = "") -> Callable[[], str]:
    if file is not None:
        return lambda: _token_of_file(file)
    if variable:
        return lambda: _token_of_variable(variable)
    return token.get_secret_value


# Lists --------------------------------------------------------------------------------------------------


def _items(value: object) -> tuple[str, ...]:
    """The items of a list or of a comma-separated text, each once. Raises ValueError where it is neither."""
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, (list, tuple)) or not all(isinstance(item, str) for item in items):
        raise ValueError("write a list of texts, or one text with commas")
    stripped = dict.fromkeys(item.strip() for item in items)
    if "" in stripped and not isinstance(value, str):  # which may stand for nothing and for everything
        raise ValueError("an item of the list is empty; leave it out")
    return tuple(filter(None, stripped))


def _hosts(value: object) -> tuple[str, ...]:
    """Hosts as they are compared: lower case, without a default port."""
    items = _items(value)
    if any(re.search(r"[/@\s]", item) for item in items):
        raise ValueError("write hosts only, like gitlab.example.com or svn.example.com:8443")
    return tuple(dict.fromkeys(re.sub(r":(80|443)$", "", item.lower()) for item in items))


def _servers(value: object) -> tuple[str, ...]:
    """Servers as scheme, host and port."""
    items = _items(value)
    if not all(re.fullmatch(r"(https?|svn)://[^/@\s]+/?", item) for item in items):
        raise ValueError("write servers only, like https://svn.example.com or http://svn.example.com:8080")
    return tuple(item.rstrip("/") for item in items)


def _job_types(value: object) -> tuple[JobType, ...]:
    """Job types by any of their names; ``all`` is the empty list."""
    items = _items(value)
    if [item.lower() for item in items] == ["all"]:
        return ()
    return tuple(dict.fromkeys(map(JobType.parse, items)))


def _owners(value: object) -> tuple[str, ...]:
    """Owners by the rules of Dagster, which would refuse the whole code location."""
    items = _items(value)
    if not all(re.fullmatch(r"team:.+|[\w.%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,7}", i, re.ASCII) for i in items):
        raise ValueError("write e-mail addresses or teams, like ann@example.com or team:platform")
    return items


Names = Annotated[tuple[str, ...], BeforeValidator(_items)]
Owners = Annotated[tuple[str, ...], BeforeValidator(_owners)]
Instances = Annotated[tuple[str, ...], BeforeValidator(_hosts)]
Servers = Annotated[tuple[str, ...], BeforeValidator(_servers)]
JobTypes = Annotated[tuple[JobType, ...], BeforeValidator(_job_types)]


# The settings -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Contradiction:
    """Settings that are right in themselves and cannot stand together."""

    names: frozenset[str]
    problem: str


class Contradictions(ValueError):
    """All of them that were found."""

    def __init__(self, found: Sequence[Contradiction]) -> None:
        super().__init__("\n".join(one.problem for one in found))
        self.found = found


# Of two settings the first has to be less than the second, or at most as much; and why.
_LESS = (
    ("claim_renew", "claim_length", "the claim is lost"),
    ("lease_renew", "lease_length", "the lease is lost"),
)
_INTERVALS_UNTIL_STALE = 2
_AT_MOST = (
    ("scheduler_max_running", "scheduler_global_concurrency", "so many never run"),
    ("cb_min_samples", "cb_window_count", "a circuit breaker never opens"),
    ("cb_recovery_success_count", "cb_half_open_max_requests", "a circuit breaker never closes"),
    ("degradation_min_batch_size", "degradation_default_batch_size", ""),
    ("degradation_default_batch_size", "degradation_max_batch_size", ""),
    ("degradation_min_forward_window_seconds", "degradation_default_forward_window_seconds", ""),
    ("degradation_default_forward_window_seconds", "degradation_max_forward_window_seconds", ""),
    ("degradation_base_sleep_seconds", "degradation_max_sleep_seconds", ""),
)


def _contradictions(settings: Settings) -> Iterator[Contradiction]:
    for pairs, words in ((_LESS, "less than"), (_AT_MOST, "at most")):
        for low, high, otherwise in pairs:
            small, large = getattr(settings, low), getattr(settings, high)
            if small > large or (small == large and pairs is _LESS):
                why = f", or {otherwise}" if otherwise else ""
                problem = f"{low} ({small:.15g}) must be {words} {high} ({large:.15g}){why}"
                yield Contradiction(frozenset({low, high}), problem)
    least = _INTERVALS_UNTIL_STALE * settings.sync_interval
    if settings.stale_after < least:
        yield Contradiction(
            frozenset({"sync_interval", "stale_after"}),
            f"stale_after ({settings.stale_after:.15g}) must be at least twice sync_interval "
            f"({settings.sync_interval:.15g}), or what is on time is called stale",
        )
    if settings.gitlab_token_file and settings.gitlab_token.get_secret_value():
        yield Contradiction(
            frozenset({"gitlab_token", "gitlab_token_file"}),
            "gitlab_token and gitlab_token_file are both set; keep one of them",
        )
    hosts = [urlsplit(server.url).netloc for server in settings.gitlab_servers()]
    for host in dict.fromkeys(hosts):
        if hosts.count(host) > 1:
            yield Contradiction(
                frozenset({"gitlab_url", "gitlab"}),
                f"{host} is configured as two GitLab servers; keep one of them",
            )
    of_svn = [table.instance for table in settings.svn]
    for host in dict.fromkeys(of_svn):
        if of_svn.count(host) > 1:
            yield Contradiction(frozenset({"svn"}), f"{host} has two [[svn]] tables; keep one of them")
    named = [(server.name, server.url) for server in settings.gitlab_servers() if server.name]
    named += [(table.name, table.url) for table in settings.svn]
    for name in dict.fromkeys(name for name, _ in named):
        urls = [url for other, url in named if other == name]
        if len(urls) > 1:
            yield Contradiction(
                frozenset({"gitlab_name", "gitlab", "svn"}),
                f"{' and '.join(urls)} have the same name {name!r}; give each server a name of its own",
            )


class _Sources(InitSettingsSource):
    """Everything that was given, whatever else is wrong."""

    def __init__(self, settings_class: type[BaseSettings]) -> None:
        file = config_file()
        content = read_toml(file) if file else {}
        found = collect(settings_class.model_fields, os.environ, file, content, {})
        super().__init__(settings_class, {name: one.value for name, one in found.values.items()})


class Settings(BaseSettings):
    """All settings. Durations are seconds, sizes are bytes, unless the description says otherwise.

    Use :func:`load_settings`, which refuses unknown names and turns every problem into one line. Making an
    instance directly is for tests.
    """

    model_config = SettingsConfigDict(
        extra="forbid",
        frozen=True,
        validate_default=True,
        allow_inf_nan=False,
    )

    profile: Literal["small", "medium", "large"] | None = Field(
        None, description="Size of the installation: chooses the defaults of the table above."
    )
    log_level: Literal["debug", "info", "warning", "error", "critical"] = Field(
        "warning", description="The least that is said on stderr."
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
        "",
        description="Load this one repository specification only (for CI), such as gitlab:123 or svn:<url>.",
    )
    asset_owners: Owners = Field(
        (),
        description="Owners of every asset in Dagster, comma-separated e-mail addresses and `team:<name>`; "
        "empty: the team of the repository's tenant, `team:<tenant>`.",
    )

    ca_file: FilePath | None = Field(
        None, description="PEM file with the certificate authorities of private servers, GitLab and SVN."
    )

    gitlab_url: str = Field(
        "",
        description="The GitLab server, like https://gitlab.example.com. More of them: [[gitlab]] tables "
        "in the file.",
    )
    gitlab_token: SecretStr = Field(
        SecretStr(""),
        description="Its access token with scope read_api.",
    )
    gitlab_token_file: Path | None = Field(
        None,
        description="File that holds the token instead, read at each use; a relative path is below the "
        "project root.",
    )
    gitlab_name: Alias = Field(
        "",
        description="Its short name, such as main: first part of the keys of its assets, fixed when the "
        "first repository of the server is registered. A later name changes labels only. Empty: made from "
        "the host.",
    )
    gitlab: tuple[GitLabTable, ...] = Field(
        (),
        description="More GitLab servers, each with the keys url, one of token, token_env (name of a "
        "variable) and token_file, ca_file, and name (as SCM_GITLAB_NAME).",
    )
    gitlab_parallel: int = Field(
        4, ge=1, le=16, description="Requests of one repository sent side by side to a GitLab."
    )
    safety_lag: float = Field(
        60.0,
        ge=0,
        le=86_400,
        description="Seconds: an incremental reading of a GitLab ends so long before the server's clock.",
    )
    overlap: float = Field(
        300.0,
        ge=0,
        le=31_536_000,
        description="Seconds: an incremental reading of a GitLab begins so long before the watermark.",
    )
    origin_days: int = Field(
        30, ge=0, le=36_500, description="Days before the registration of a project that are read first."
    )
    history_floor: date = Field(
        date(2000, 1, 1),
        description="No daily partition begins before this day; what is older is one window in front.",
    )
    rediscovery_interval: float = Field(
        3600.0, gt=0, le=31_536_000, description="Seconds: how often a discovery root is visited."
    )
    vanished_looks: int = Field(
        3, ge=1, le=1000, description="Listings in a row that miss a project before it may be retired."
    )
    vanished_after: float = Field(
        86_400.0,
        ge=0,
        le=31_536_000,
        description="Seconds: shortest absence from the listings before a project may be retired.",
    )

    svn_username: str = Field("", description="User name for every SVN server.")
    svn_password: SecretStr = Field(SecretStr(""), description="Password for every SVN server.")
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
        le=2**40,
        description="Bytes: largest answer of one svn command; a larger one halves the window.",
    )
    svn_max_memory_bytes: int = Field(
        2 * 1024**3,
        ge=256 * 1024**2,
        le=2**40,
        description="Bytes: largest address space of one svn command (on Linux); one that needs more halves "
        "the window.",
    )
    svn_aliases: Servers = Field(
        (),
        description="Other addresses of the SVN servers, like `https://svn.example.com:8443`: a redirect to "
        "the same path there is followed, and the password may go there.",
    )
    svn: tuple[SvnTable, ...] = Field(
        (),
        description="Names of SVN servers, each table with the keys url (scheme and host, or `file:///`) and "
        "name (as SCM_GITLAB_NAME).",
    )
    svn_trust_failures: str = Field(
        "",
        description="Certificate failures to accept, comma-separated, as svn names them: "
        "unknown-ca,cn-mismatch,expired,not-yet-valid,other.",
    )

    chunk_revisions: int = Field(1000, ge=1, le=100_000, description="Revisions of a chunk.")
    chunk_rows: int = Field(500, ge=1, le=100_000, description="GitLab: rows of a chunk.")
    fingerprint_revisions: int = Field(
        5, ge=1, le=100, description="Stored revisions compared with the source at every visit."
    )
    sweep_enabled: bool = Field(
        True,
        description="False: nothing that is stored is read or compared again by itself: not by the schedules "
        "`reconcile`, `full_sync` and `repair_recent`, and not by the sweeps of live syncing.",
    )
    sweep_recent_revisions: int = Field(
        100, ge=0, le=1_000_000, description="Newest revisions re-read by each sweep for edited properties."
    )
    sweep_interval: float = Field(
        3600.0, gt=0, le=31_536_000, description="Seconds: shortest time between two sweeps of a repository."
    )
    deletion_looks: int = Field(
        2, ge=1, le=1000, description="Comparisons that find a row gone before it may become a tombstone."
    )
    deletion_after: float = Field(
        21_600.0,
        ge=0,
        le=31_536_000,
        description="Seconds: how long a row has to be gone at least before it becomes a tombstone.",
    )
    reconcile_recent_days: float = Field(
        2.0,
        gt=0,
        le=365,
        description="Days before the watermark that the schedule `reconcile` compares every hour.",
    )
    sweep_days: float = Field(
        30.0,
        ge=1,
        le=3650,
        description="Days in which the schedule `reconcile` compares everything once with all details.",
    )
    sweep_requests: int = Field(
        600,
        ge=60,
        le=1_000_000,
        description="Requests an hour that the schedule `reconcile` sends to one instance at most.",
    )
    job_max_attempts: int = Field(3, ge=1, le=1000, description="Attempts at a job before it is dead.")
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
        4,
        ge=1,
        le=64,
        description="Repositories synced side by side in one run; each takes up to two connections to the "
        "database, the process two more.",
    )

    sync_interval: float = Field(
        300.0, gt=0, le=31_536_000, description="Seconds: a repository is due when its last visit is older."
    )
    sensor_interval: int = Field(
        30, ge=1, le=86_400, description="Seconds: shortest time between two ticks of a sensor."
    )
    max_queued_runs: int = Field(
        10, ge=1, le=100_000, description="The scheduler holds back while so many Dagster runs wait."
    )
    changes_per_tick: int = Field(
        20, ge=1, le=100_000, description="SVN repositories that one tick of the changes sensor looks at."
    )
    changes_time_limit: float = Field(
        3.0, gt=0, le=31_536_000, description="Seconds: wall clock limit of one tick of the changes sensor."
    )
    stale_after: float = Field(
        3600.0,
        gt=0,
        le=31_536_000,
        description="Seconds: the health check fails when freshness is older. At least twice sync_interval, "
        "which is the default where that is more.",
    )

    # Scheduling: how much is handed out at once, in which order, and what is left alone for a while. Only
    # policy reads them.
    sync_enabled: bool = Field(
        True, description="False: nothing is started by itself; what a person starts still runs."
    )
    scheduler_max_running: int = Field(
        100, ge=1, le=100_000, description="Jobs at work at once, whoever does them."
    )
    scheduler_global_concurrency: int = Field(
        200,
        ge=1,
        le=100_000,
        description="Jobs handed out at once: those at work and those that wait in a run.",
    )
    scheduler_per_instance_concurrency: int = Field(
        100, ge=1, le=100_000, description="Jobs of one instance handed out at once."
    )
    scheduler_per_tenant_concurrency: int = Field(
        100, ge=1, le=100_000, description="Jobs of one tenant handed out at once."
    )
    scheduler_max_enqueue_per_scan: int = Field(
        100, ge=1, le=100_000, description="Jobs that one tick of the scheduler may start."
    )
    scheduler_error_budget_threshold: float = Field(
        0.3,
        gt=0,
        le=1,
        description="Share of failed runs, 0 to 1, from which a (repository, job type) is left alone.",
    )
    scheduler_pause_duration_seconds: float = Field(
        300.0, gt=0, le=31_536_000, description="Seconds: how long it is left alone before it is probed."
    )
    scheduler_rate_limit_threshold: float = Field(
        0.1,
        gt=0,
        le=1,
        description="Share of runs that met a 429, 0 to 1, from which the priority is lowered.",
    )
    scheduler_backfill_repair_window_hours: float = Field(
        24.0, gt=0, le=87_600, description="Hours: the recent window that a repair backfill reads again."
    )
    scheduler_max_backfill_window_hours: float = Field(
        8784.0,
        gt=0,
        le=87_600,
        description="Hours: longest window of a backfill job of merge requests or reviews that the scheduler "
        "starts. Of a longer one it starts the newest piece, and the rest stays queued. Time before the "
        "oldest fact does not count. What a person runs is read in chunks, however long it is.",
    )
    backfill_max_concurrent_jobs: int | None = Field(
        None,
        ge=1,
        le=100_000,
        description="Jobs of history handed out at once; at most half of scheduler_global_concurrency, which "
        "is also the default.",
    )
    scheduler_enable_tenant_fairness: bool = Field(
        True, description="True: the tenant that waited longest is served first. False: by priority only."
    )
    scheduler_tenant_fairness_max_per_round: int = Field(
        1, ge=1, le=1000, description="Jobs of one tenant before the next tenant has its turn."
    )
    scheduler_mvp_mode_enabled: bool = Field(
        False, description="True: only the job types of scheduler_mvp_job_type_allowlist start by themselves."
    )
    scheduler_mvp_job_type_allowlist: JobTypes = Field(
        (JobType.COMMITS,), description="Job types that start by themselves where the MVP mode is on; `all`."
    )
    full_sync_days: int = Field(
        7,
        ge=0,
        le=3650,
        description="Days before now that are read again at 02:00 UTC; of SVN so many blocks; 0 is off.",
    )

    # Circuit breaker: shares, 0 to 1, of the finished runs in the window or of their requests.
    cb_enabled: bool = Field(
        True, description="False: circuit breakers hold nothing back, and their state stays as it is."
    )
    cb_failure_rate_threshold: float = Field(
        0.3, gt=0, le=1, description="Share of failed runs that opens a circuit breaker."
    )
    cb_rate_limit_threshold: float = Field(
        0.2, gt=0, le=1, description="Share of requests answered with a 429 that opens it."
    )
    cb_timeout_rate_threshold: float = Field(
        0.2, gt=0, le=1, description="Share of requests without an answer in time that opens it."
    )
    cb_min_samples: int = Field(
        5, ge=1, le=10_000, description="Runs in the window below which it stays as it is."
    )
    cb_enable_smoothing: bool = Field(True, description="Smooth the shares (exponential moving average).")
    cb_smoothing_alpha: float = Field(
        0.5, ge=0.01, le=1, description="Weight of the newest look in the smoothed shares; 1 is no smoothing."
    )
    cb_window_count: int = Field(20, ge=1, le=10_000, description="Newest runs that are judged at most.")
    cb_window_minutes: float = Field(
        30.0, gt=0, le=525_600, description="Minutes: runs that finished longer ago are not judged."
    )
    cb_open_duration_seconds: float = Field(
        300.0, gt=0, le=31_536_000, description="Seconds: how long it is open before it is tried again."
    )
    cb_half_open_max_requests: int = Field(
        3, ge=1, le=1000, description="Probes while half open; it opens again where they run out."
    )
    cb_recovery_success_count: int = Field(
        2, ge=1, le=1000, description="Probes in a row that have to succeed to close it."
    )
    cb_degraded_batch_size: int = Field(
        10, ge=1, le=10_000, description="Rows of a page while it is not closed."
    )
    cb_degraded_forward_window_seconds: float = Field(
        300.0,
        gt=0,
        le=31_536_000,
        description="Seconds: first step through a list by time while it is not closed.",
    )
    cb_backfill_only_mode: bool = Field(
        True, description="While it is open: true starts a backfill job now and then, false starts nothing."
    )
    cb_backfill_interval_seconds: float = Field(
        600.0, gt=0, le=31_536_000, description="Seconds between two backfill jobs while it is open."
    )
    cb_probe_budget_per_interval: int = Field(
        2, ge=1, le=1000, description="Probes that are started at once while it is half open."
    )
    cb_probe_job_types_allowlist: JobTypes = Field(
        (JobType.COMMITS,), description="Job types that serve as probes; `all`."
    )

    # Degradation: smaller and slower where a source cannot follow; it loses speed, never a row.
    degradation_enabled: bool = Field(
        True, description="False: sizes stay the usual ones, and nothing rests after time-outs."
    )
    degradation_min_batch_size: int = Field(10, ge=1, le=10_000, description="Fewest rows of a page.")
    degradation_default_batch_size: int = Field(
        100, ge=1, le=10_000, description="Rows of a page where nothing is degraded."
    )
    degradation_max_batch_size: int = Field(
        500, ge=1, le=10_000, description="Most rows of a page; GitLab gives 100 at most whatever is asked."
    )
    degradation_batch_shrink_factor: float = Field(
        0.5, gt=0, lt=1, description="By what sizes are multiplied after a refusal or time-out."
    )
    degradation_batch_grow_factor: float = Field(
        1.2, gt=1, le=10, description="By what they are multiplied after a success."
    )
    degradation_min_forward_window_seconds: float = Field(
        300.0, gt=0, le=31_536_000, description="Seconds: shortest step through a list by time."
    )
    degradation_default_forward_window_seconds: float = Field(
        3600.0,
        gt=0,
        le=31_536_000,
        description="Seconds: the step that shrinks and grows; at this length lists are read as one.",
    )
    degradation_max_forward_window_seconds: float = Field(
        86_400.0,
        gt=0,
        le=31_536_000,
        description="Seconds: longest step of a degraded job through time in which something was updated.",
    )
    degradation_rate_limit_threshold: int = Field(
        3, ge=1, le=1000, description="429s in a row after which details are left for later."
    )
    degradation_timeout_threshold: int = Field(
        3, ge=1, le=1000, description="Time-outs or 5xx in a row after which the run pauses."
    )
    degradation_content_too_large_threshold: int = Field(
        5, ge=1, le=1000, description="Too large answers in a row after which details are left for later."
    )
    degradation_base_sleep_seconds: float = Field(
        1.0, gt=0, le=3600, description="Seconds: first such pause; each further one is twice as long."
    )
    degradation_max_sleep_seconds: float = Field(
        300.0,
        gt=0,
        le=86_400,
        description="Seconds: longest such pause, also where the server asks for more.",
    )
    degradation_recovery_success_count: int = Field(
        5, ge=1, le=1000, description="Successes in a row after which nothing is degraded any more."
    )

    # Worker pools: what this process takes. An empty list is all.
    worker_pool: str = Field(
        "default",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,59}$",
        description="Name of the pool that this process belongs to.",
    )
    worker_instance_allowlist: Instances = Field(
        (),
        description="Instances that it takes, comma-separated: host, with the port if not the default.",
    )
    worker_tenant_allowlist: Names = Field((), description="Tenants that it takes, comma-separated.")
    worker_job_type_allowlist: JobTypes = Field((), description="Job types that it takes, comma-separated.")
    worker_poll_interval: float = Field(
        10.0, gt=0, le=86_400, description="Seconds: how often scm-sync worker looks for due jobs."
    )
    worker_max_renew_failures: int = Field(
        3, ge=1, le=100, description="Renewals of a claim in a row that fail before the job is given up."
    )

    # The reaper: what became of those who work on jobs, and when what waits is given up.
    reaper_enabled: bool = Field(
        True,
        description="False: the reaper ends nothing. What starts a job still takes over an expired claim.",
    )
    reaper_interval_seconds: int = Field(
        60, ge=1, le=86_400, description="Seconds: how often the reaper looks for abandoned work."
    )
    reaper_job_grace_seconds: float = Field(
        60.0,
        ge=0,
        le=31_536_000,
        description="Seconds after the end of a claim before the reaper takes the job from its owner.",
    )
    reaper_lock_grace_seconds: float = Field(
        120.0,
        ge=0,
        le=31_536_000,
        description="Seconds after the end of a lease before the reaper releases it and raises the fence.",
    )
    reaper_run_max_seconds: float = Field(
        3600.0,
        gt=0,
        le=31_536_000,
        description="Seconds: longest time that a run without a live claim stays open, ours or Dagster's.",
    )
    reaper_policy: str = Field(
        "failed",
        description="What a job becomes whose owner is gone: failed (waits before its next attempt) or "
        "pending (is due at once).",
    )
    job_expire_days: float = Field(
        30.0,
        ge=0,
        le=36_500,
        description="Days: a waiting job that nothing has touched for so long, and without which nothing is "
        "missing, is given up; 0 is never.",
    )

    # Retention: how long records of finished work are kept; 0 is for ever.
    retention_jobs_days: float = Field(
        90.0, ge=0, le=36_500, description="Days that finished jobs are kept, with their runs and batches."
    )
    retention_events_days: float = Field(
        365.0,
        ge=0,
        le=36_500,
        description="Days that ended pauses, edges of circuit breakers and resolved differences are kept.",
    )
    retention_dagster_runs_days: float = Field(
        30.0, ge=0, le=36_500, description="Days that Dagster keeps a run that ended, with its events."
    )
    retention_dagster_ticks_days: float = Field(
        90.0, ge=0, le=36_500, description="Days that Dagster keeps a tick of a sensor or schedule."
    )

    # Rate limits: one bucket of each server, shared by everybody who uses the same database.
    gitlab_postgres_rate_limit_enabled: bool = Field(
        True, description="Every request to a GitLab takes from a bucket that all processes share."
    )
    gitlab_postgres_rate_limit_rate: float = Field(
        10.0, ge=0.1, le=100_000, description="Requests a second to one GitLab, summed over all processes."
    )
    gitlab_postgres_rate_limit_burst: int = Field(
        20, ge=1, le=100_000, description="Requests that may be sent at once after a quiet time."
    )
    gitlab_postgres_rate_limit_max_wait: float = Field(
        60.0,
        ge=0,
        le=3600,
        description="Seconds: a request that would have to wait longer is not sent; its job is tried later.",
    )
    gitlab_tenant_rate_limit_enabled: bool = Field(
        False,
        description="Syncing the projects of a tenant also takes from a bucket of that tenant at its GitLab.",
    )
    gitlab_tenant_rate_limit_rate: float = Field(
        5.0, ge=0.1, le=100_000, description="Requests a second for one tenant at one GitLab."
    )
    gitlab_tenant_rate_limit_burst: int = Field(
        10, ge=1, le=100_000, description="Requests for one tenant that may be sent at once."
    )
    svn_rate: float = Field(
        50.0,
        ge=0.1,
        le=100_000,
        description="svn commands a second to one server, summed over all processes; as many at once.",
    )

    @property
    def switched_off(self) -> dict[str, str]:
        """The switches of :data:`SWITCHES` that are off, each with what does not happen."""
        return {name: what for name, what in SWITCHES.items() if not getattr(self, name)}

    @property
    def catalog_file(self) -> Path:
        """The catalog snapshot that the code location loads."""
        return self.state_dir / "catalog.json"

    def gitlab_servers(self) -> tuple[GitLabServer, ...]:
        """Every configured GitLab: the one of ``gitlab_url``, then the tables in their order."""
        first = GitLabServer(
            self.gitlab_url,
            _token_source(self.gitlab_token, self.gitlab_token_file),
            self.ca_file,
            self.gitlab_name,
        )
        return (
            *((first,) if self.gitlab_url else ()),
            *(
                GitLabServer(
                    table.url,
                    _token_source(table.token, table.token_file, table.token_env),
                    table.ca_file or self.ca_file,
                    table.name,
                )
                for table in self.gitlab
            ),
        )

    @property
    def server_names(self) -> dict[tuple[Kind, str], str]:
        """The names that people gave to servers, by kind and ``instance`` as repositories have it."""
        return {
            (Kind.GITLAB, urlsplit(server.url).netloc): server.name
            for server in self.gitlab_servers()
            if server.name
        } | {(Kind.SVN, table.instance): table.name for table in self.svn}

    def server_name(self, kind: Kind, instance: str) -> str:
        """The name that a person gave to a server; empty for none."""
        return self.server_names.get((kind, instance), "")

    @field_validator("state_dir", "gitlab_token_file")
    @classmethod
    def _absolute(cls, value: Path | None) -> Path | None:
        return value and project_root() / value.expanduser()

    @field_validator("gitlab_url")
    @classmethod
    def _base(cls, value: str) -> str:
        return _base_url(value)

    @field_validator("gitlab_token")
    @classmethod
    def _usable(cls, value: SecretStr) -> SecretStr:
        return SecretStr(_usable_token(value.get_secret_value()))

    @field_validator("history_floor")
    @classmethod
    def _past(cls, value: date) -> date:
        if not date(1970, 1, 1) <= value <= clock.now().date():
            raise ValueError("write a day from 1970-01-01 to today")
        return value

    @field_validator("svn_trust_failures")
    @classmethod
    def _known_failures(cls, value: str) -> str:
        names = [name.strip() for name in value.split(",") if name.strip()]
        for name in names:
            if name not in _TRUST_FAILURES:
                raise ValueError(f"{name!r} is none of {', '.join(_TRUST_FAILURES)}")
        return ",".join(names)

    @field_validator("reaper_policy")
    @classmethod
    def _known_policy(cls, value: str) -> str:
        if value not in ("failed", "pending"):
            raise ValueError(f"{value!r} is neither failed nor pending")
        return value

    @field_validator("profile", "log_level", mode="before")
    @classmethod
    def _lower_case(cls, value: object) -> object:
        return value.lower() if isinstance(value, str) else value

    @model_validator(mode="before")
    @classmethod
    def _follow(cls, data: Any) -> Any:
        """A longer sync_interval alone moves the default of what must not be less than twice that."""
        if isinstance(data, dict) and "sync_interval" in data and "stale_after" not in data:
            with suppress(TypeError, ValueError, OverflowError):
                least = _INTERVALS_UNTIL_STALE * float(data["sync_interval"])
                default = cls.model_fields["stale_after"].default
                data = {**data, "stale_after": least} if default < least < inf else data
        return data

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if found := list(_contradictions(self)):
            raise Contradictions(found)
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
        """What an instance is made of; called by pydantic-settings. The precedence of what was given is that
        of :func:`sync_pipeline.settings_sources.collect`."""
        return init_settings, _Sources(settings_cls)


SWITCHES = {
    "sync_enabled": "nothing is started by itself",
    "sweep_enabled": "nothing stored is read or compared again by itself",
    "cb_enabled": "circuit breakers hold nothing back",
    "degradation_enabled": "a slow source is asked in the usual sizes",
    "reaper_enabled": "lost jobs, runs and leases are not ended until a starter meets them",
}
"""Settings that switch a part of the program on, and what does not happen while one is false."""

SECRETS = frozenset(name for name, field in Settings.model_fields.items() if field.annotation is SecretStr)
"""Settings whose value belongs on no command line."""


def load_settings(**overrides: object) -> Settings:
    """The settings in force; ``overrides`` come from the command line, None means not given.

    Raises ConfigurationError with a line for each problem: it names the key, what is wrong and, for an
    unknown name, the nearest known one. Values that may be secret are never repeated.
    """
    return explained_settings(**overrides)[0]


def explained_settings(**overrides: object) -> tuple[Settings, dict[str, Given]]:
    """As :func:`load_settings`, and what gave each setting that does not have its default."""
    file = config_file()
    content = read_toml(file) if file else {}
    named = {name: value for name, value in overrides.items() if value is not None}
    collected = collect(Settings.model_fields, os.environ, file, content, named)
    problems, given = collected.problems, collected.values
    values = {name: one.value for name, one in given.items()}
    wrong = set()
    for name, one in given.items():
        # pydantic would read true as 1
        is_boolean = Settings.model_fields[name].annotation is bool
        if one.origin is Origin.FILE and isinstance(one.value, bool) and not is_boolean:
            problems.append(f"{one.name}: true and false are no values of it")
            wrong.add(name)
    settings, errors = _judge(values, wrong)
    for error in errors:
        if error["loc"]:
            problems.append(_line(error, given, file))
            wrong.add(str(error["loc"][0]))
    if wrong:  # what contradicts is judged only once everything has a value
        settings, errors = _judge(values, wrong)
    for error in errors:
        if not error["loc"]:
            problems += _against_each_other(error["ctx"]["error"], given, wrong)
    if problems or settings is None:
        raise ConfigurationError(*problems)
    return settings, given


def _judge(values: Mapping[str, object], wrong: Set[str]) -> tuple[Settings | None, list[ErrorDetails]]:
    """The settings of ``values`` but for the ``wrong`` ones, or what is wrong with them."""
    every: dict[str, Any] = {
        name: values[name] if name in values and name not in wrong else field.default
        for name, field in Settings.model_fields.items()
    }
    if "stale_after" not in values:
        del every["stale_after"]  # its default depends on sync_interval
    try:
        return Settings(**every), []
    except ValidationError as error:
        return None, error.errors(include_url=False)


def _against_each_other(error: Contradictions, given: Mapping[str, Given], wrong: Set[str]) -> Iterator[str]:
    """A line for each contradiction between settings that are right in themselves."""
    for one in error.found:
        if not wrong & one.names:
            names = [given[name].name for name in sorted(one.names) if name in given]
            yield f"{one.problem}; see {' and '.join(names)}"


def _line(error: ErrorDetails, given: Mapping[str, Given], file: Path | None) -> str:
    """What is wrong with a setting in itself."""
    problem = error["msg"].removeprefix("Value error, ")
    key, *place = error["loc"]
    if key in ONLY_IN_FILE and not place:
        return f"{key} in {file}: write [[{key}]] and its keys below"
    if key in ONLY_IN_FILE:
        number, *inner = place
        if error["type"] == "extra_forbidden":
            table = GitLabTable if key == "gitlab" else SvnTable
            problem = f"unknown key; {advice(str(inner[0]), table.model_fields, cutoff=0.6)}"
        where = f"[[{key}]] number {int(number) + 1} in {file}:{f' {inner[0]}' if inner else ''}"
        return f"{where}: {problem[:1].lower()}{problem[1:]}"
    value = "" if key in _SECRET or error["type"] == "value_error" else f", not {error['input']!r:.80}"
    name = given[str(key)].name if key in given else str(key)
    return f"{name}: {problem[:1].lower()}{problem[1:]}{value}"


def document() -> str:
    """The text of ``docs/settings.md``."""
    return settings_page.document(Settings.model_fields)


if __name__ == "__main__":
    print(document(), end="")
