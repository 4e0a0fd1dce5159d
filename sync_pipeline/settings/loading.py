"""The settings in force, or everything that is wrong with them, a line each.

Belongs here: the lines about wrong and contradictory values. Does not belong here: the names by which a
setting may be given, and the precedence (:mod:`sync_pipeline.settings.given`).
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from sync_pipeline.core.errors import ConfigurationError
from sync_pipeline.settings.files import config_file, read_toml
from sync_pipeline.settings.given import ONLY_IN_FILE, Given, advice, collect
from sync_pipeline.settings.model import FIELDS, GROUPS, Settings
from sync_pipeline.settings.servers import GitLabTable, SvnTable
from sync_pipeline.settings.work import INTERVALS_UNTIL_STALE

# Values that may hold a password: never repeated in a message.
_SECRET = frozenset(
    {"database_url", "dagster_database_url", "svn_password", "gitlab_url", "gitlab_token", "gitlab"}
)
# Everything has a value, so that nothing is read again. The default of stale_after_seconds is no constant.
_DEFAULTS = {name: one.info.default for name, one in FIELDS.items() if name != "stale_after_seconds"}


def load_settings(**overrides: object) -> Settings:
    """The settings in force; ``overrides`` come from the command line, None means not given.

    Raises ConfigurationError with a line for each problem: it names the key, what is wrong and, for an
    unknown name, the nearest known one. Values that may be secret are never repeated.
    """
    return explained_settings(**overrides)[0]


def explained_settings(**overrides: object) -> tuple[Settings, dict[str, Given]]:
    """As :func:`load_settings`, and what gave each setting that does not have its default."""
    file = config_file()
    named = {name: value for name, value in overrides.items() if value is not None}
    given, problems = collect(FIELDS, os.environ, file, read_toml(file), named)
    values = {name: one.value for name, one in given.items()}
    wrong: set[str] = set()
    settings, errors = _validated(values)
    for error in errors:
        name, *location = error["loc"][error["loc"][0] in GROUPS :]
        wrong.add(str(name))
        problems.append(_line(str(name), location, error, given, file))
    if settings is None:  # values that contradict each other are found once everything has a value
        settings, _ = _validated(values | {name: FIELDS[name].info.default for name in wrong})
    for one in _contradictions(settings) if settings else ():
        if not wrong & one.names:
            sources = [given[name].name for name in sorted(one.names) if name in given]
            problems.append(f"{one.problem}; see {' and '.join(sources)}")
    if problems or settings is None:
        raise ConfigurationError(*problems)
    return settings, given


def _validated(values: Mapping[str, Any]) -> tuple[Settings | None, list[ErrorDetails]]:
    """The settings of ``values``, or what is wrong with each of them."""
    try:
        return Settings(**{**_DEFAULTS, **values}), []
    except ValidationError as error:
        return None, error.errors(include_url=False)


def _line(
    name: str, location: list[int | str], error: ErrorDetails, given: Mapping[str, Given], file: Path | None
) -> str:
    """The line about a setting that is wrong in itself."""
    problem = error["msg"].removeprefix("Value error, ")
    if name in ONLY_IN_FILE and not location:
        return f"{name} in {file}: write [[{name}]] and its keys below"
    value = "" if name in _SECRET or error["type"] == "value_error" else f", not {error['input']!r:.80}"
    where = f"{given[name].name}:" if name in given else f"{name}:"
    if name in ONLY_IN_FILE:
        number, *inner = location
        if error["type"] == "extra_forbidden":
            table = GitLabTable if name == "gitlab" else SvnTable
            problem = f"unknown key; {advice(str(inner[0]), table.model_fields, cutoff=0.6)}"
        where = f"[[{name}]] number {int(number) + 1} in {file}:{f' {inner[0]}:' if inner else ''}"
        value = ""
    return f"{where} {problem[:1].lower()}{problem[1:]}{value}"


# Contradictions -----------------------------------------------------------------------------------------


class Contradiction(NamedTuple):
    """Settings that are right in themselves and cannot stand together."""

    names: frozenset[str]
    problem: str


# Of two settings the first has to be less than the second, or at most as much; and why.
_LESS = (
    ("claim_renew_seconds", "claim_seconds", "the claim is lost"),
    ("lease_renew_seconds", "lease_seconds", "the lease is lost"),
)
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
    values = settings.by_name()
    for pairs, words in ((_LESS, "less than"), (_AT_MOST, "at most")):
        for low, high, otherwise in pairs:
            small, large = values[low], values[high]
            if small > large or (small == large and pairs is _LESS):
                why = f", or {otherwise}" if otherwise else ""
                problem = f"{low} ({small:.15g}) must be {words} {high} ({large:.15g}){why}"
                yield Contradiction(frozenset({low, high}), problem)
    interval, stale = settings.scheduler.sync_interval_seconds, settings.scheduler.stale_after_seconds
    if stale < INTERVALS_UNTIL_STALE * interval:
        yield Contradiction(
            frozenset({"sync_interval_seconds", "stale_after_seconds"}),
            f"stale_after_seconds ({stale:.15g}) must be at least twice sync_interval_seconds "
            f"({interval:.15g}), or what is on time is called stale",
        )
    if settings.gitlab.token_file and settings.gitlab.token.get_secret_value():
        yield Contradiction(
            frozenset({"gitlab_token", "gitlab_token_file"}),
            "gitlab_token and gitlab_token_file are both set; keep one of them",
        )
    yield from _doubled_servers(settings)


def _doubled_servers(settings: Settings) -> Iterator[Contradiction]:
    """Servers that are configured twice, and names that several servers have."""
    gitlab, svn = settings.gitlab_servers(), settings.svn.tables
    for host in _repeated((urlsplit(server.url).netloc, server.url) for server in gitlab):
        problem = f"{host} is configured as two GitLab servers; keep one of them"
        yield Contradiction(frozenset({"gitlab_url", "gitlab"}), problem)
    for host in _repeated((table.instance, table.url) for table in svn):
        yield Contradiction(frozenset({"svn"}), f"{host} has two [[svn]] tables; keep one of them")
    named = [(server.name, server.url) for server in gitlab if server.name]
    for name, urls in _repeated(named + [(table.name, table.url) for table in svn]).items():
        problem = f"{' and '.join(urls)} have the same name {name!r}; give each server a name of its own"
        yield Contradiction(frozenset({"gitlab_name", "gitlab", "svn"}), problem)


def _repeated(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """The second items of ``pairs`` by the first, where there are several."""
    found: dict[str, list[str]] = defaultdict(list)
    for key, value in pairs:
        found[key].append(value)
    return {key: values for key, values in found.items() if len(values) > 1}
