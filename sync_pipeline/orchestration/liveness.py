"""The fleet-wide asset checks ``attendance``, ``servers``, ``held_back`` and ``code_location``.

``attendance``: sensors, schedules and loops tick, and a living worker pool takes every repository.
``servers``: every server answers and accepts our token. ``held_back``: nothing is paused or
switched off, and no circuit breaker is open. ``code_location``: new runs can load the settings and the
catalog snapshot.

Belongs here: the checks and when they are red. The sensor ``scheduler`` reports a change within a tick; each
run of the schedule ``reconcile`` does them too. Does not belong here: heartbeats, pools and servers that do
not answer (:mod:`sync_pipeline.database`). A daemon that does not run checks nothing: for that there is
``scm-sync health``.
"""

# Dagster looks at the annotations of checks itself, so they cannot be postponed here.

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import dagster as dg

from sync_pipeline.core import catalog
from sync_pipeline.core.errors import ConfigurationError
from sync_pipeline.core.formatting import age, counted
from sync_pipeline.core.model import BreakerState, Kind, Lifecycle, Repository
from sync_pipeline.core.safe_text import one_line, visible
from sync_pipeline.database.pool import Connection
from sync_pipeline.ledger import breakers, heartbeats, pauses, pools, repos, servers
from sync_pipeline.orchestration.resources import GitLabResource, PostgresResource
from sync_pipeline.reports.health import reason_of_server
from sync_pipeline.reports.reasons import HealthReason, remedy
from sync_pipeline.scheduling import credentials
from sync_pipeline.scheduling.credentials import Credentials
from sync_pipeline.settings import Settings, load_settings

LIVENESS, SERVERS, BLOCKED, LOCATION = "attendance", "servers", "held_back", "code_location"

_DESCRIPTIONS = {
    LIVENESS: "Fails if a sensor, schedule or loop misses its ticks, or no running pool accepts an asset.",
    SERVERS: "Fails if a server does not answer or refuses our token.",
    BLOCKED: "Fails if something is paused or switched off, or a circuit breaker is open.",
    LOCATION: "Fails if runs cannot load the code location: invalid settings or catalog snapshot.",
}
_SHOWN = 50


@dataclass(frozen=True, slots=True)
class FleetResult:
    """The result of a fleet-wide check. ``wrong`` names each defect without its age, so that two verdicts can
    be compared; the page shows ``metadata``."""

    name: str
    wrong: tuple[str, ...]
    severity: dg.AssetCheckSeverity
    metadata: Mapping[str, str | int]

    @property
    def passed(self) -> bool:
        """True if nothing is wrong."""
        return not self.wrong

    def evaluation(self, asset: dg.AssetKey) -> dg.AssetCheckEvaluation:
        """As an event of a sensor, shown at ``asset``."""
        return dg.AssetCheckEvaluation(
            asset_key=asset,
            check_name=self.name,
            passed=self.passed,
            severity=self.severity,
            metadata=dict(self.metadata),
        )


def fleet_results(conn: Connection, tokens: Credentials, settings: Settings) -> list[FleetResult]:
    """The fleet-wide checks as of now, with the tokens and settings in force."""
    return [read(conn, tokens, settings) for read in _CHECKS.values()]


def _liveness(conn: Connection, tokens: Credentials, settings: Settings) -> FleetResult:
    silent, unserved = heartbeats.silent(conn), pools.unserved(conn)
    return FleetResult(
        LIVENESS,
        (*(one.name for one in silent), *(f"{one.spec} {one.job_type}" for one in unserved)),
        dg.AssetCheckSeverity.WARN,
        {
            "silent_count": len(silent),
            "unserved_count": len(unserved),
            "silent": ", ".join(f"{one.name} for {age(one.age)}" for one in silent) or "nothing",
            "unserved": ", ".join(f"{one.spec} {one.job_type}" for one in unserved[:_SHOWN]) or "nothing",
            **{f"{name}: what to do": remedy(name) for name in _names(silent=silent, unserved=unserved)},
        },
    )


def _servers(conn: Connection, tokens: Credentials, settings: Settings) -> FleetResult:
    wrong: list[str] = []
    metadata: dict[str, str | int] = {}

    def add(subject: str, reason: HealthReason, line: str) -> None:
        wrong.append(f"{subject} {reason}")
        metadata[subject] = visible(f"{reason}: {line}")
        metadata[f"{subject}: what to do"] = remedy(reason)

    for one in servers.failing(conn):
        reason = reason_of_server(one.error_code)
        if reason is not None and one.is_confirmed:
            number = counted(one.repositories, "repository", "repositories")
            since = f"since {one.failed_at:%Y-%m-%d %H:%M:%S} UTC"
            add(f"{one.kind} {one.instance}", reason, f"{one.error} ({number}, {since})")
    used = {one.instance for one in repos.list_all(conn) if one.kind is Kind.GITLAB and _is_active(one)}
    for instance in sorted(used):
        problem = tokens.problem(instance)
        if problem is not None:
            add(f"{Kind.GITLAB} {instance}", HealthReason.CREDENTIAL, problem)
    severity = dg.AssetCheckSeverity.ERROR
    counts = {"failing_count": len(wrong)}
    return FleetResult(SERVERS, tuple(wrong), severity, counts | (metadata or {"servers": "all answer"}))


def _blocked(conn: Connection, tokens: Credentials, settings: Settings) -> FleetResult:
    """Critical paths that are switched off, pauses in force, and circuit breakers that are not closed."""
    wrong = list(settings.switched_off)
    metadata: dict[str, str | int] = {
        name: f"switched off: {what}; set it to true, unless this is wanted"
        for name, what in settings.switched_off.items()
    }
    paused = pauses.active(conn)
    for pause in paused[:_SHOWN]:
        name = f"pause {pause.pause_id}"
        subject = pause.instance or pause.tenant or (pause.repo_id and f"repository {pause.repo_id}")
        end = f"until {pause.until:%Y-%m-%d %H:%M:%S} UTC" if pause.until else "until it is resumed"
        wrong.append(name)
        metadata[name] = visible(f"{subject or 'everything'} {end} ({pause.actor}: {pause.reason})")
        metadata["paused: what to do"] = remedy("paused")
    for one in breakers.read(conn) if settings.breaker.enabled else ():
        if one.state != BreakerState.CLOSED:
            state = "breaker_open" if one.state == BreakerState.OPEN else "half_open"
            name = f"breaker {one.scope} {one.key}".rstrip()
            wrong.append(f"{name} {state}")
            metadata[name] = visible(f"{state} since {one.since:%Y-%m-%d %H:%M:%S} UTC: {one.reason}")
            metadata[f"{state}: what to do"] = remedy(state)
    counts = {"held_back_count": len(wrong) + max(0, len(paused) - _SHOWN)}
    warn = dg.AssetCheckSeverity.WARN
    return FleetResult(BLOCKED, tuple(wrong), warn, counts | (metadata or {"held_back": "nothing"}))


def _location(conn: Connection, tokens: Credentials, settings: Settings) -> FleetResult:
    """Each run loads the settings and the snapshot anew, while the sensors go on with those of before."""
    wrong: tuple[str, ...] = ()
    try:
        load_settings()
        catalog.load_snapshot(settings.catalog_file)
    except ConfigurationError as error:
        wrong = tuple(map(one_line, error.problems))
    metadata: dict[str, str | int] = {"problem_count": len(wrong)}
    metadata |= {f"problem {number}": line for number, line in enumerate(wrong, 1)}
    return FleetResult(LOCATION, wrong, dg.AssetCheckSeverity.ERROR, metadata)


def _names(**found: Collection[object]) -> list[str]:
    return [name for name, some in found.items() if some]


def _is_active(repository: Repository) -> bool:
    return repository.lifecycle is Lifecycle.ACTIVE


_CHECKS: Mapping[str, Callable[[Connection, Credentials, Settings], FleetResult]] = {
    LIVENESS: _liveness,
    SERVERS: _servers,
    BLOCKED: _blocked,
    LOCATION: _location,
}


def fleet_checks(asset: dg.AssetKey) -> list[dg.AssetChecksDefinition]:
    """The checks, shown at ``asset``."""
    return [_check(asset, name) for name in _CHECKS]


def _check(asset: dg.AssetKey, name: str) -> dg.AssetChecksDefinition:
    @dg.asset_check(asset=asset, name=name, description=_DESCRIPTIONS[name])
    def check(
        settings: dg.ResourceParam[Settings], postgres: PostgresResource, gitlab: GitLabResource
    ) -> dg.AssetCheckResult:
        with postgres.database(max_size=1) as database, database.connection() as conn:
            tokens = credentials.in_force(conn, gitlab.readers(database))
            verdict = _CHECKS[name](conn, tokens, settings)
        return dg.AssetCheckResult(
            passed=verdict.passed, severity=verdict.severity, metadata=dict(verdict.metadata)
        )

    return check
