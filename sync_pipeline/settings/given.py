"""Where the value of a setting comes from: its names, the precedence, the profiles.

Belongs here: every name of a setting, and refused names with their replacements. Also merging command line,
environment, file and profile, with a problem for each unknown name. Does not belong here: types and ranges of
values (:mod:`sync_pipeline.settings.model`).
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from sync_pipeline.settings.files import CONFIG_NAME

PREFIX = "SCM_"

_log = logging.getLogger(__name__)

# Names ----------------------------------------------------------------------------------------------------

RENAMED = {
    "SCM_CHANGES_TIME_LIMIT": "changes_max_seconds",
    "SCM_CLAIM_LENGTH": "claim_seconds",
    "SCM_CLAIM_RENEW": "claim_renew_seconds",
    "SCM_DELETION_AFTER": "deletion_after_seconds",
    "SCM_DELETION_LOOKS": "deletion_confirmations",
    "SCM_LEASE_LENGTH": "lease_seconds",
    "SCM_LEASE_RENEW": "lease_renew_seconds",
    "SCM_OVERLAP": "overlap_seconds",
    "SCM_REDISCOVERY_INTERVAL": "rediscovery_interval_seconds",
    "SCM_SAFETY_LAG": "safety_lag_seconds",
    "SCM_SENSOR_INTERVAL": "sensor_interval_seconds",
    "SCM_STALE_AFTER": "stale_after_seconds",
    "SCM_SVN_INFO_TIMEOUT": "svn_info_timeout_seconds",
    "SCM_SVN_LOG_TIMEOUT": "svn_log_timeout_seconds",
    "SCM_SVN_TIMEOUT": "svn_timeout_seconds",
    "SCM_SWEEP_INTERVAL": "sweep_interval_seconds",
    "SCM_SYNC_INTERVAL": "sync_interval_seconds",
    "SCM_VANISHED_AFTER": "missing_after_seconds",
    "SCM_VANISHED_LOOKS": "missing_confirmations",
    "SCM_WAIT_LIMIT": "max_wait_seconds",
}
"""Earlier variables of settings of ours, which are accepted with a line in the log that names the new one."""

RENAMED_LOGGED = "_SCM_RENAMED_LOGGED"
"""Variable for child processes: their parent has logged the earlier names of settings."""

ALIASES = {
    **RENAMED,
    "POSTGRES_DSN": "database_url",
    "SVN_USERNAME": "svn_username",
    "SVN_PASSWORD": "svn_password",
    "GITLAB_URL": "gitlab_url",
    "GITLAB_TOKEN": "gitlab_token",
    "GITLAB_PRIVATE_TOKEN": "gitlab_token",
    "ENGRAM_SCM_SYNC_ENABLED": "sync_enabled",
    "SCM_SCHEDULER_SCAN_INTERVAL_SECONDS": "sensor_interval_seconds",
    "SCM_SCHEDULER_CURSOR_AGE_THRESHOLD_SECONDS": "sync_interval_seconds",
    "SCM_MAX_JOBS_PER_TICK": "scheduler_max_enqueue_per_scan",
    "SCM_SCHEDULER_LOG_LEVEL": "log_level",
    "SCM_CLAIM_ENABLE_TENANT_FAIR_CLAIM": "scheduler_enable_tenant_fairness",
    "SCM_CLAIM_MAX_CONSECUTIVE_SAME_TENANT": "scheduler_tenant_fairness_max_per_round",
    "SCM_BACKFILL_REPAIR_WINDOW_HOURS": "scheduler_backfill_repair_window_hours",
    "SCM_WORKER_LEASE_SECONDS": "claim_seconds",
    "SCM_WORKER_RENEW_INTERVAL_SECONDS": "claim_renew_seconds",
    "SCM_WORKER_PARALLELISM": "parallel_repositories",
    "SCM_WORKER_BATCH_SIZE": "chunk_rows",
    "SCM_WORKER_LOCK_TIMEOUT": "max_wait_seconds",
    "SCM_WORKER_JOB_TYPES": "worker_job_type_allowlist",
    "SCM_WORKER_LOG_LEVEL": "log_level",
    "SCM_REAPER_LOG_LEVEL": "log_level",
}
"""Other variables for a setting: of other tools, of the systems that this one replaces, and earlier names of
ours. The name of the setting itself goes first, then the first of these."""

_WATERMARK = "a backfill takes --update-watermark where it is wanted; remove it"
_CUT = "longer windows are cut and none is lost; use SCM_SCHEDULER_MAX_BACKFILL_WINDOW_HOURS"
_SHARED = "all processes share one limit; use SCM_GITLAB_POSTGRES_RATE_LIMIT_"
REFUSED = {
    "SCM_CLAIM_MAX_TENANTS_PER_ROUND": "every tenant has its turn in each round; remove it",
    "SCM_BACKFILL_CRON_HINT": "the schedule is at 02:00 UTC; SCM_FULL_SYNC_DAYS says how far back it reads",
    "SCM_BACKFILL_DEFAULT_UPDATE_WATERMARK": _WATERMARK,
    "SCM_BACKFILL_MAX_TOTAL_WINDOW_SECONDS": _CUT,
    "SCM_BACKFILL_MAX_CHUNKS_PER_REQUEST": "no request is cut short; use SCM_SCHEDULER_MAX_ENQUEUE_PER_SCAN "
    "for the jobs that one plan starts",
    "SCM_GITLAB_RATE_LIMIT_ENABLED": f"{_SHARED}ENABLED",
    "SCM_GITLAB_RATE_LIMIT_REQUESTS_PER_SECOND": f"{_SHARED}RATE",
    "SCM_GITLAB_RATE_LIMIT_BURST_SIZE": f"{_SHARED}BURST",
    "SCM_GITLAB_TENANT_RATE_LIMIT_MAX_WAIT": "the limit of a tenant waits as long as that of the server; use "
    "SCM_GITLAB_POSTGRES_RATE_LIMIT_MAX_WAIT",
    "SCM_GITLAB_MAX_CONCURRENCY": "use SCM_SCHEDULER_PER_INSTANCE_CONCURRENCY for jobs and "
    "SCM_GITLAB_PARALLEL for the requests of one repository",
    "SCM_GITLAB_TOKEN_ENV": "write a [[gitlab]] table, which has the key token_env",
    "SCM_GITLAB_TOKEN_EXEC": "no command is run for a token; let it write the file that "
    "SCM_GITLAB_TOKEN_FILE names",
}
"""Variables of the systems that this one replaces that have no meaning here, and what to do instead."""

TABLES = {
    "": "",
    "scm": "",
    "scm.scheduler": "SCHEDULER_",
    "scm.worker": "WORKER_",
    "scm.reaper": "REAPER_",
    "scm.circuit_breaker": "CB_",
    "scm.degradation": "DEGRADATION_",
    "scm.gitlab": "GITLAB_",
    "scm.gitlab.rate_limit": "GITLAB_POSTGRES_RATE_LIMIT_",
    "scm.svn": "SVN_",
    "scm.backfill": "BACKFILL_",
    "scm.claim": "CLAIM_",
    "scm.retention": "RETENTION_",
}
"""Tables of the file: a key in one of them is the variable ``SCM_<this><KEY>``, by all of its names."""

_POOLS = "scm.worker.pools"
_REFUSED_TABLES = {
    "scm.gitlab.instances": "write a [[gitlab]] table for each server",
    "scm.gitlab.tenants": "write a [[gitlab]] table for each server; a token is for a whole server",
    "scm.gitlab.auth": "write a [[gitlab]] table with token_env or token_file",
}

ONLY_IN_FILE = frozenset({"gitlab", "svn"})
"""Settings that are tables, which have no place in a variable."""

OTHER_VARIABLES = {
    "SCM_CONFIG": f"Path of the TOML file; default: `{CONFIG_NAME}` in the working folder or project root.",
    "SCM_DEBUG": "Any value but empty or 0: errors of the command line show their traceback.",
    "SCM_EMBEDDED_DATABASE_URL": "Written by `scm-sync env`, beside the same `SCM_DATABASE_URL` for other "
    "programs: it is the embedded server's, and `SCM_STATE_DIR` says which that is.",
    "SCM_SET": "Names that `--set` has set, for the messages; the command line writes it itself.",
}
"""Variables with the prefix that are no settings: read before any setting can be."""

OPTIONS = {
    "claim_seconds": "--lease-seconds",
    "reaper_interval_seconds": "--interval-seconds",
    "reaper_policy": "--policy",
    "sensor_interval_seconds": "--interval-seconds",
    "worker_job_type_allowlist": "--job-types",
    "worker_poll_interval": "--poll-interval",
}
"""Options of commands that set a setting; others have the name of their setting."""

# Of dagster.yaml and the tests.
_OTHER_PREFIXES = ("SCM_DAGSTER_", "SCM_TEST_")


def variable_of(name: str) -> str:
    """The environment variable of a setting."""
    return f"{PREFIX}{name.upper()}"


def aliases_of(name: str) -> list[str]:
    """The other variables of a setting, the first of them goes first."""
    return [alias for alias, field_name in ALIASES.items() if field_name == name]


def keys_of(name: str) -> list[str]:
    """The keys of a setting in the file, its own first, then those in tables."""
    found = [f"[[{name}]]" if name in ONLY_IN_FILE else name]
    for variable in (variable_of(name), *aliases_of(name)):
        found += [
            f"{table}.{variable.removeprefix(PREFIX + prefix).lower()}"
            for table, prefix in TABLES.items()
            if prefix and variable.startswith(PREFIX + prefix)
        ]
    return found


# Profiles -------------------------------------------------------------------------------------------------

PROFILES: Mapping[str, Mapping[str, object]] = {
    "small": {
        "scheduler_global_concurrency": 5,
        "scheduler_max_running": 3,
        "sensor_interval_seconds": 60,
        "parallel_repositories": 1,
        "cb_min_samples": 3,
    },
    "medium": {
        "scheduler_global_concurrency": 20,
        "scheduler_max_running": 10,
        "scheduler_per_instance_concurrency": 5,
        "parallel_repositories": 2,
    },
    "large": {
        "scheduler_global_concurrency": 50,
        "scheduler_max_running": 20,
        "scheduler_per_instance_concurrency": 10,
        "scheduler_per_tenant_concurrency": 5,
        "sensor_interval_seconds": 15,
        "claim_seconds": 600.0,
        "cb_min_samples": 10,
        "cb_smoothing_alpha": 0.3,
    },
}
"""Sizes of an installation, below 10 repositories, up to 100, and above: defaults below everything that is
set, where they differ from the usual ones."""


# Values ---------------------------------------------------------------------------------------------------


class Origin(StrEnum):
    """The sources of a value, the highest first."""

    COMMAND_LINE = "command line"
    ENVIRONMENT = "environment"
    FILE = "file"
    PROFILE = "profile"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Given:
    """A value as it was given, not validated yet. ``name`` is what the person wrote: an option, a variable,
    or a key with its file."""

    value: object = field(repr=False)  # it may be a secret
    origin: Origin
    name: str


class Collected(NamedTuple):
    """The values that were given, by setting, and a line for each name that is wrong."""

    values: dict[str, Given]
    problems: list[str]


def collect(
    settings: Collection[str],
    environ: Mapping[str, str],
    file: Path | None,
    content: Mapping[str, Any],
    overrides: Mapping[str, object],
) -> Collected:
    """The values in force, each setting from the highest source that gives it.

    ``settings`` are the names of all. ``content`` is what stands in ``file``, ``overrides`` come from the
    command line.
    """
    problems: list[str] = []
    variables = {variable_of(name): name for name in settings} | ALIASES
    known = [key for name in settings for key in keys_of(name)]
    in_file = _from_file(_leaves(content, "", f" in {file}", problems), variables, known, file, problems)
    above = _from_environment(variables, environ, problems)
    for name, value in overrides.items():
        if name in settings:
            option = OPTIONS.get(name, f"--{name.replace('_', '-')}")
            above[name] = Given(value, Origin.COMMAND_LINE, option)
        else:
            problems.append(f"unknown setting {name}; {advice(name, settings)}")
    of_pool = _from_pool((in_file | above).get("worker_pool"), variables, content, file, problems)
    values = in_file | of_pool | above
    token = values.get("gitlab_token")
    if "gitlab_token_file" in values and token and token.name in ALIASES:
        del values["gitlab_token"]  # a stray token of another tool does not go with a token file of ours
    profile = str(values["profile"].value).lower() if "profile" in values else ""
    defaults = {
        name: Given(value, Origin.PROFILE, f"the profile {profile}")
        for name, value in PROFILES.get(profile, {}).items()
    }
    return Collected(defaults | values, problems)


def current_name(name: str, written: str) -> str:
    """The setting that ``name`` stands for today: a variable without the prefix, in lower case. Logs an
    earlier name, as it was ``written``."""
    variable = variable_of(name)
    if variable in RENAMED:
        new = RENAMED[variable]
        _warn(f"{written} has a new name: {new}, variable {variable_of(new)}")
    return ALIASES.get(variable, name)


@functools.cache  # once in a process
def _warn(line: str) -> None:
    if RENAMED_LOGGED not in os.environ:
        _log.warning("%s", line)


def _from_environment(
    variables: Mapping[str, str], environ: Mapping[str, str], problems: list[str]
) -> dict[str, Given]:
    """An empty variable counts as not set, unless ``--set`` has set it. So does the URL of the embedded
    server that ``scm-sync env`` wrote: a shell with another state folder has another server."""
    known = [name for name, setting in variables.items() if setting not in ONLY_IN_FILE]
    from_set = set(environ.get("SCM_SET", "").split(","))
    if environ.get("SCM_DATABASE_URL") == environ.get("SCM_EMBEDDED_DATABASE_URL"):
        environ = {name: value for name, value in environ.items() if name != "SCM_DATABASE_URL"}
    found: dict[str, Given] = {}
    for name in known:  # the name of a setting itself before the others
        setting = variables[name]
        if setting in from_set and name == variable_of(setting) and name in environ:
            found[setting] = Given(environ[name], Origin.COMMAND_LINE, f"--set {setting}")
        elif environ.get(name) and setting not in found:
            current_name(name.removeprefix(PREFIX).lower(), name)
            found[setting] = Given(environ[name], Origin.ENVIRONMENT, name)
        elif environ.get(name) and name in RENAMED:
            _warn(f"{name} is ignored, because {variable_of(setting)} is set as well; remove it")
    for name in sorted(environ):
        if name in REFUSED and environ[name]:
            problems.append(f"{name}: {REFUSED[name]}")
        elif name.startswith(PREFIX) and name not in (*known, *OTHER_VARIABLES, *REFUSED):
            # A name with a free prefix is refused only where it is nearly the name of a setting.
            if name.startswith(_OTHER_PREFIXES) and not get_close_matches(name, known, n=1, cutoff=0.9):
                continue
            near = advice(name, [*known, *OTHER_VARIABLES], cutoff=0.75)
            problems.append(f"unknown setting {name} in the environment; {near}")
    return found


def _from_file(
    leaves: Iterable[tuple[str, str, Any]],
    variables: Mapping[str, str],
    known: Collection[str],
    file: Path | None,
    problems: list[str],
) -> dict[str, Given]:
    """The settings of ``leaves``: keys of the file, the variable of each, and the value."""
    keys: dict[str, str] = {}
    found: dict[str, Given] = {}
    for key, variable, value in leaves:
        setting = variables.get(variable)
        if setting is None:
            if variable in REFUSED:
                problems.append(f"{key} in {file}: {REFUSED[variable]}")
            else:
                problems.append(f"unknown setting {key} in {file}; {advice(key, [*known, *TABLES])}")
        elif setting in found:
            problems.append(f"{keys[setting]} and {key} in {file} are the same setting; keep one of them")
        else:
            keys[setting] = key
            current_name(variable.removeprefix(PREFIX).lower(), f"{key} in {file}")
            found[setting] = Given(value, Origin.FILE, f"{key} in {file}")
    return found


def _leaves(
    table: Mapping[str, Any], path: str, location: str, problems: list[str]
) -> Iterator[tuple[str, str, Any]]:
    """Every key that is no table, after its tables, with the variable that it stands for and its value."""
    for name, value in table.items():
        key = f"{path}.{name}" if path else name
        if key in _REFUSED_TABLES:
            problems.append(f"[{key}]{location}: {_REFUSED_TABLES[key]}")
        elif key == _POOLS:
            continue
        elif key not in TABLES:
            # Not upper(): a key in capitals would be another one that says the same.
            yield key, PREFIX + TABLES[path] + name.swapcase(), value
        elif isinstance(value, Mapping):
            yield from _leaves(value, key, location, problems)
        else:
            problems.append(f"{key}{location}: write [{key}] and its keys below")


def _from_pool(
    given: Given | None,
    variables: Mapping[str, str],
    content: Mapping[str, Any],
    file: Path | None,
    problems: list[str],
) -> dict[str, Given]:
    """The table of the pool that this process belongs to, which goes over ``[scm.worker]``. ``given`` is the
    name of the pool. The tables of other pools are checked too."""
    pools: Any = content
    for part in _POOLS.split("."):
        pools = pools.get(part, {}) if isinstance(pools, Mapping) else {}
    if not isinstance(pools, Mapping) or not all(isinstance(pool, Mapping) for pool in pools.values()):
        problems.append(f"{_POOLS} in {file}: write [{_POOLS}.<name>] and its keys below")
        return {}
    chosen = str(given.value) if given else "default"
    if given and pools and chosen not in pools:
        near = get_close_matches(chosen, pools, n=1)
        hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(sorted(pools))}"
        problems.append(f"{given.name}: there is no [{_POOLS}.{chosen}] in {file}; {hint}")
    prefix = PREFIX + TABLES["scm.worker"]
    allowed = {name: one for name, one in variables.items() if name != variable_of("worker_pool")}
    found: dict[str, dict[str, Given]] = {}
    for pool, table in pools.items():
        path = f"{_POOLS}.{pool}"
        known = [f"{path}.{name.removeprefix(prefix).lower()}" for name in allowed if name.startswith(prefix)]
        leaves = ((f"{path}.{key}", prefix + key.swapcase(), value) for key, value in table.items())
        found[pool] = _from_file(leaves, allowed, known, file, problems)
    return found.get(chosen, {})


def advice(name: str, known: Collection[str], *, cutoff: float = 0.7) -> str:
    """The nearest known name, by its current form, or a hint to the list of all."""
    near = get_close_matches(name, known, n=1, cutoff=cutoff)
    if not near:
        return "docs/settings.md lists the known ones"
    return f"did you mean {variable_of(RENAMED[near[0]]) if near[0] in RENAMED else near[0]}?"
