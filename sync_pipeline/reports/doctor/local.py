"""The checks of this machine and of what our own files and tables say.

Belongs here: settings, folders, the catalog snapshot, the ``svn`` command, heartbeats, worker pools, health.
Does not belong here: anything that asks a server of others.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from sync_pipeline.core import catalog
from sync_pipeline.core.errors import ConfigurationError
from sync_pipeline.core.formatting import age, counted
from sync_pipeline.core.model import Kind, Lifecycle, Repository
from sync_pipeline.ledger.heartbeats import Heartbeat
from sync_pipeline.ledger.pools import Pool, Unserved
from sync_pipeline.registry import server_names as server_name_rules
from sync_pipeline.reports import slowness
from sync_pipeline.reports.doctor.findings import Finding, error_text, failed, ok, skipped, warning
from sync_pipeline.reports.health import HealthResult
from sync_pipeline.reports.reasons import PASSES, WAITS_FOR_ITSELF, HealthReason, remedies
from sync_pipeline.settings import SECRETS, Settings, config_file, load_settings
from sync_pipeline.settings.given import OTHER_VARIABLES, PREFIX
from sync_pipeline.sources.svn import process

_GIB = 1024**3
LITTLE_SPACE, NO_SPACE = 2 * _GIB, _GIB // 4
"""Bytes free below which a disk is worth a warning, and below which it fails."""

_SVN_SECONDS = 5
_SVN_MEMORY = 1024**3
_OLDEST_SVN = (1, 14)
_SHOWN = 5


# Settings -----------------------------------------------------------------------------------------------


def settings_in_force() -> tuple[list[Finding], Settings | None]:
    """The settings and what is to be said about them. Where only names are wrong, the others are in force all
    the same, so that the checks can go on; None where there are none."""
    try:
        settings = load_settings()
    except ConfigurationError as error:
        lists = "docs/settings.md lists every setting"
        problems = (error_text(ConfigurationError(problem), lists) for problem in error.problems)
        return [failed(seen, remedy) for seen, remedy in problems], _without_unknown()
    file = config_file()
    given = sorted(name for name in os.environ if name.startswith(PREFIX) and name not in OTHER_VARIABLES)
    seen = f"{file}" if file else "no TOML file"
    seen += f"; from the environment: {', '.join(given)}" if given else "; nothing from the environment"
    off = [
        warning(f"switched off: {what}", f"set {name} to true, unless this is wanted", name)
        for name, what in settings.switched_off.items()
    ]
    if file is not None and _is_open_secret(file, settings):
        seen = f"{file} holds a secret and everybody may read it"
        return [warning(seen, f"chmod 600 {file}"), *off], settings
    return [ok(seen), *off], settings


def _without_unknown() -> Settings | None:
    try:
        return Settings()
    except (ValueError, ConfigurationError):  # pydantic's is a ValueError
        return None


def _is_open_secret(file: Path, settings: Settings) -> bool:
    try:
        keys = re.findall(r"(?m)^\s*(\w+)\s*=", file.read_text(encoding="utf-8-sig"))
        # The URLs of databases hold passwords more often than not.
        secrets = {*SECRETS, "token", "database_url", "dagster_database_url"}
        return bool(secrets & set(keys)) and bool(file.stat().st_mode & 0o004)
    except OSError:
        return False


# Folders ------------------------------------------------------------------------------------------------


def state_folder(settings: Settings) -> Finding:
    """Whether the state folder can be written, and what it takes."""
    folder = settings.state_dir
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        remedy = "correct its owner and mode, or set SCM_STATE_DIR"
        return failed(f"{existing} cannot be written", remedy)
    if existing != folder:
        return ok(f"{folder} is not there yet and can be made")
    return ok(f"{folder} takes {_size(_taken(folder))}")


def disk_space(folder: Path) -> Finding:
    """The free space of the disk that ``folder`` is on, or will be."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    seen = f"{_size(free)} free below {existing}"
    remedy = "free space, or move it to a larger disk"
    if free < NO_SPACE:
        return failed(seen, remedy)
    if free < LITTLE_SPACE:
        return warning(seen, remedy)
    return ok(seen)


def temporary_files() -> Path:
    """Where the answers of svn are kept while they are read; one may take two gigabytes."""
    return Path(tempfile.gettempdir())


def _taken(folder: Path) -> int:
    """Bytes of all files below, as far as they can be seen; they may vanish meanwhile."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(parent, name)).st_size
            except OSError:
                continue
    return total


def _size(count: int) -> str:
    if count >= _GIB:
        return f"{count / _GIB:.1f} GiB"
    return f"{count / 1024**2:.0f} MiB"


# The catalog --------------------------------------------------------------------------------------------


def catalog_snapshot(settings: Settings, known: Sequence[Repository] | None) -> Finding:
    """Whether Dagster loads the catalog that the database has; ``known`` is None where that cannot be
    read."""
    file, again = settings.catalog_file, "run: scm-sync catalog export"
    try:
        snapshot = catalog.read_snapshot(file)
    except ConfigurationError as error:
        return failed(*error_text(error, again))
    if snapshot.written_at is None:
        if known:
            return failed(f"{file} is missing, with {_repositories(len(known))} registered", again)
        return skipped(f"{file} is not there yet; the first scm-sync repo add writes it")
    seen = f"{_repositories(len(snapshot.repositories))}, written {snapshot.written_at:%Y-%m-%d %H:%M:%S} UTC"
    if known is None:
        return ok(f"{seen}; not compared, because the database cannot be read")
    ours = {repository.repo_id: repository for repository in known}
    theirs = {repository.repo_id: repository for repository in snapshot.repositories}
    if ours != theirs:
        differing = sum(ours.get(key) != theirs.get(key) for key in {*ours, *theirs})
        return warning(f"{seen}; the database has {differing} of them otherwise", again)
    return ok(f"{seen}, the same as in the database")


def server_names(settings: Settings, repositories: Sequence[Repository]) -> list[Finding]:
    """Names of servers that are the alias of another server in the keys of assets."""
    conflicts = server_name_rules.conflicts(repositories, settings)
    found = [failed(*error_text(error, "")) for error in conflicts]
    if not settings.server_names:
        return [ok("no server has a name in the settings")]
    return found or [ok(f"{', '.join(sorted(settings.server_names.values()))}: each is one server")]


def _repositories(number: int) -> str:
    return counted(number, "repository", "repositories")


# Commands and sensors -----------------------------------------------------------------------------------


def svn_command(known: Sequence[Repository] | None) -> Finding:
    """The version of the command that reads Subversion, if it is needed."""
    install = "install the package subversion, 1.14 or newer"
    active = [r for r in known or () if r.kind is Kind.SVN and r.lifecycle is Lifecycle.ACTIVE]
    command = shutil.which("svn")
    if command is None:
        if known is not None and not active:
            return skipped("not on PATH, and no SVN repository is registered")
        needed = counted(len(active), "registered SVN repository", "registered SVN repositories")
        return failed(f"not on PATH, and needed by {needed if active else 'SVN repositories'}", install)
    arguments = ["--version", "--quiet"]
    limits = process.CommandLimits(_SVN_SECONDS, answer_bytes=1000, memory_bytes=_SVN_MEMORY)
    answer = process.run(command, arguments, limits=limits, environment=process.environment(tunnel=False))
    version = answer.file.read(0, 100).decode("ascii", "replace").strip()
    found = re.match(r"(\d+)\.(\d+)", version)
    if answer.status != 0 or not found:
        return failed("does not say its version", install)
    if (int(found[1]), int(found[2])) < _OLDEST_SVN:
        return warning(f"version {version}", install)
    return ok(f"version {version}")


def code_server(beats: Sequence[Heartbeat]) -> Finding:
    """Whether the code server of ``scm-sync up`` answers quickly."""
    up = slowness.of_up(beats)
    if not up:
        return skipped("no scm-sync up has reported lately")
    slow = slowness.summary(beats)
    if slow:
        remedy = (
            "no data is lost, syncing is only late; start fewer runs at once (max_concurrent_runs in "
            "dagster.yaml), or give the machine more cores"
        )
        return warning("; ".join(slow), remedy)
    return ok(f"answers in {max(beat.seconds for beat in up):.1f} s")


def sensors(beats: Sequence[Heartbeat]) -> Finding:
    """Whether each sensor, schedule and loop that ever ticked still does."""
    if not beats:
        return skipped("none has ticked on this database yet")
    silent = [f"{beat.name} for {age(beat.age)}" for beat in beats if beat.silent]
    failing = [f"{beat.name} {beat.outcome}" for beat in beats if beat.outcome.startswith("failed")]
    if silent:
        return warning(
            f"silent: {_some(silent)}",
            "start scm-sync up or the loop; where it runs, look whether the sensor is switched off in "
            "the UI; what is gone for good: scm-sync health --forget NAME",
        )
    if failing:
        return warning(_some(failing), "look at the sensor's ticks in the UI")
    newest = min(beat.age for beat in beats)
    return ok(f"{len(beats)} tick, the latest {age(newest)} ago")


def pools(living: Sequence[Pool], unserved: Sequence[Unserved]) -> Finding:
    """Whether a running worker pool accepts each asset."""
    if not living:
        return skipped("none was heard of lately")
    names = ", ".join(pool.name for pool in living)
    if unserved:
        what = _some([f"{one.spec} {one.job_type}" for one in unserved])
        remedy = "start a pool that accepts them, or widen an allowlist (SCM_WORKER_..._ALLOWLIST)"
        return warning(f"no running pool ({names}) accepts {what}", remedy)
    return ok(f"each asset is accepted by a running pool: {names}")


def assets(results: Sequence[HealthResult], repositories: Sequence[Repository]) -> list[Finding]:
    """One finding for each reason that needs a person, with the line and remedy that every report shows."""
    found: dict[HealthReason, list[HealthResult]] = {}
    for verdict in results:
        if not verdict.health.passed:
            for reason in verdict.health.reasons:
                if reason not in WAITS_FOR_ITSELF | PASSES:
                    found.setdefault(reason, []).append(verdict)
    if not found:
        return [ok(f"{counted(len(results), 'asset')}, none of them unhealthy")]
    specs = {repository.repo_id: repository.spec for repository in repositories}
    return [_unhealthy(reason, some, specs) for reason, some in sorted(found.items())]


def _unhealthy(reason: HealthReason, some: Sequence[HealthResult], specs: Mapping[int, str]) -> Finding:
    first = some[0]
    spec = specs.get(first.facts.repo_id, str(first.facts.repo_id))
    what = f"{counted(len(some), 'asset')}, such as {spec} {first.facts.job_type}"
    advice = remedies(first.health.reasons, spec)[reason]
    return warning(f"{reason}: {what}: {first.health.detail[reason]}", advice)


def _some(texts: Sequence[str]) -> str:
    more = len(texts) - _SHOWN
    return ", ".join(texts[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
