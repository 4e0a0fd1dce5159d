"""GitLab and Subversion servers: addresses, credentials, names, and how they are read.

Belongs here: the groups of the two kinds of servers, their tables in the file, and tokens. Does not belong
here: limits of requests that several groups of processes share (:mod:`sync_pipeline.settings.work`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import field as part
from datetime import date
from pathlib import Path
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, FilePath, SecretStr, model_validator

from sync_pipeline.core import clock
from sync_pipeline.core.errors import ConfigurationError
from sync_pipeline.core.model import FLEET
from sync_pipeline.settings.fields import Group, Seconds, SecondsOrZero, Servers, SmallCount
from sync_pipeline.settings.files import ProjectPath

_MAX_ALIAS_LENGTH = 32
_TRUST_FAILURES = ("unknown-ca", "cn-mismatch", "expired", "not-yet-valid", "other")


# Values -------------------------------------------------------------------------------------------------


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
    location = host if port in (None, {"http": 80, "https": 443}[parts.scheme]) else f"{host}:{port}"
    path = re.sub(r"/+", "/", parts.path).rstrip("/").removesuffix("/api/v4").rstrip("/")
    return f"{parts.scheme}://{location}{path}"


def _svn_server(value: str) -> str:
    """Scheme and host of an SVN server. Raises ValueError."""
    text = value.strip().rstrip("/").lower()
    if not re.fullmatch(r"(https?|svn(\+\w+)?)://(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:\d+)?|file:", text):
        raise ValueError("write the server only, like https://svn.example.com, or file:///")
    return "file:///" if text == "file:" else text


def _trust_failures(value: str) -> str:
    """Known certificate failures, comma-separated. Raises ValueError."""
    names = [name.strip() for name in value.split(",") if name.strip()]
    for name in names:
        if name not in _TRUST_FAILURES:
            raise ValueError(f"{name!r} is none of {', '.join(_TRUST_FAILURES)}")
    return ",".join(names)


def _past(value: date) -> date:
    if not date(1970, 1, 1) <= value <= clock.now().date():
        raise ValueError("write a day from 1970-01-01 to today")
    return value


def _usable_token(text: str) -> str:
    """``text`` without the blanks around it. Raises ValueError where it cannot be a token."""
    token = text.strip()
    if not re.fullmatch(r"[!-~]*", token):
        raise ValueError("the token holds a blank or a character that no token has; set it anew")
    return token


Alias = Annotated[str, AfterValidator(_alias)]
"""The short name of a server: first part of the keys of its assets."""
BaseUrl = Annotated[str, AfterValidator(_base_url)]
SvnServer = Annotated[str, AfterValidator(_svn_server)]
Token = Annotated[SecretStr, AfterValidator(lambda token: SecretStr(_usable_token(token.get_secret_value())))]
Past = Annotated[date, AfterValidator(_past)]
TrustFailures = Annotated[str, AfterValidator(_trust_failures)]


def token_source(token: SecretStr, file: Path | None, variable: str = "") -> Callable[[], str]:
    """A function that gives the token in force, from file, variable or ``token``."""
    if file is not None:
        return lambda: _token_of_file(file)
    if variable:
        return lambda: _token_of_variable(variable)
    return token.get_secret_value


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


# Servers ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GitLabServer:
    """A GitLab that may be read. ``url`` is its base: no trailing slash, no ``/api/v4``.

    ``token`` is called at each use, so that a rotated token is used at once; the empty text stands for no
    token. It raises ConfigurationError, without the token, where there should be one and is none.
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

    url: BaseUrl
    token: Token = SecretStr("")
    token_env: str = ""
    token_file: ProjectPath | None = None
    ca_file: FilePath | None = None
    name: Alias = ""

    @model_validator(mode="after")
    def _one_token(self) -> Self:
        if sum(map(bool, (self.token.get_secret_value(), self.token_env, self.token_file))) > 1:
            raise ValueError("give one of token, token_env and token_file")
        return self


class SvnTable(BaseModel):
    """A ``[[svn]]`` table of the TOML file: the name of one SVN server. ``url`` is its scheme and host."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: SvnServer
    name: Alias = Field(min_length=1)

    @property
    def instance(self) -> str:
        """The server as repositories have it: the host, with the port where it is not the default."""
        scheme, _, location = self.url.partition("://")
        port = {"http": 80, "https": 443, "svn": 3690, "svn+ssh": 22}.get(scheme)
        return location.removesuffix(f":{port}").strip("/") or "local"


# Groups -------------------------------------------------------------------------------------------------


class GitLab(Group, alias_generator="gitlab_{}".format):
    """GitLab servers, and how a project is read."""

    url: BaseUrl = ""
    """The GitLab server, like https://gitlab.example.com. Tables [[gitlab]] in the file add more servers."""
    token: Token = SecretStr("")
    """Its access token with scope read_api."""
    token_file: ProjectPath | None = None
    """File that holds the token instead, read at each use; a relative path is below the project root."""
    name: Alias = ""
    """Its short name, such as main. It is the first part of the keys of its assets and is fixed when the
    first repository is registered. A later name changes only labels. Empty: made from the host."""
    tables: tuple[GitLabTable, ...] = Field((), alias="gitlab")
    """More GitLab servers, each with the keys url, one of token, token_env (name of a variable) and
    token_file, ca_file, and name (as SCM_GITLAB_NAME)."""
    parallel: int = Field(4, ge=1, le=16)
    """Parallel requests of one repository to a GitLab."""
    graphql: bool = True
    """Read notes, approvers and reviewers of many merge requests in one request. A server without GraphQL is
    read by REST, with the same rows in the end."""
    safety_lag_seconds: float = Field(60.0, ge=0, le=86_400, alias="safety_lag_seconds")
    """Time before the server's clock at which an incremental reading of a GitLab ends."""
    overlap_seconds: SecondsOrZero = Field(300.0, alias="overlap_seconds")
    """Time before the watermark at which an incremental reading of a GitLab begins."""
    origin_days: int = Field(30, ge=0, le=36_500, alias="origin_days")
    """Days before the registration of a project that are read first."""
    history_floor: Past = Field(date(2000, 1, 1), alias="history_floor")
    """First possible day of the daily partitions; older facts are in one earlier window."""


class Discovery(Group):
    """Lists the projects below a discovery root."""

    interval_seconds: Seconds = Field(3600.0, alias="rediscovery_interval_seconds")
    """Time between two listings of a discovery root."""
    missing_confirmations: SmallCount = Field(3, alias="missing_confirmations")
    """Listings in a row that miss a project before it may be retired."""
    missing_after_seconds: SecondsOrZero = Field(86_400.0, alias="missing_after_seconds")
    """Shortest absence from the listings before a project may be retired."""


class Svn(Group, alias_generator="svn_{}".format):
    """Subversion servers, and limits of svn commands."""

    username: str = ""
    """User name for every SVN server."""
    password: SecretStr = SecretStr("")
    """Password for every SVN server."""
    info_timeout_seconds: Seconds = 60.0
    """Wall clock limit of svn info."""
    log_timeout_seconds: Seconds = 300.0
    """Wall clock limit of svn log for one window."""
    timeout_seconds: Seconds = 120.0
    """Wall clock limit of every other svn command."""
    max_answer_bytes: int = Field(2 * 1024**3, gt=0, le=2**40)
    """Largest output of one svn command; a larger one halves the window."""
    max_memory_bytes: int = Field(2 * 1024**3, ge=256 * 1024**2, le=2**40)
    """Largest address space of one svn command (on Linux). A command that needs more halves the window."""
    aliases: Servers = ()
    """Other addresses of the SVN servers, like `https://svn.example.com:8443`. A redirect to the same path
    there is followed, and the password may be sent there."""
    tables: tuple[SvnTable, ...] = Field((), alias="svn")
    """Names of SVN servers, each table with the keys url (scheme and host, or `file:///`) and name (as
    SCM_GITLAB_NAME)."""
    trust_failures: TrustFailures = ""
    """Certificate failures to accept, comma-separated, as svn names them:
    unknown-ca,cn-mismatch,expired,not-yet-valid,other."""
    rate: float = Field(50.0, ge=0.1, le=100_000)
    """svn commands per second to one server, of all processes together; as many at once."""
