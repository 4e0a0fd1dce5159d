"""The checks of the Dagster instance for ``scm-sync doctor``.

Belongs here: DAGSTER_HOME, storage, daemon and limits, as plain findings. Tables of Dagster's that are not
there yet are not made by looking. Does not belong here: any other check; those are in
:mod:`sync_pipeline.reports.doctor`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import dagster as dg

from sync_pipeline.core import clock
from sync_pipeline.core.errors import ConfigurationError
from sync_pipeline.core.formatting import failed_starts
from sync_pipeline.database import diagnosis
from sync_pipeline.orchestration.instance import dagster_environment, quiet_dagster
from sync_pipeline.reports import run_starts
from sync_pipeline.reports.doctor import Finding, failed, ok, skipped, warning
from sync_pipeline.reports.doctor.findings import DAGSTER_CHECKS, error_text
from sync_pipeline.runtime import environment
from sync_pipeline.settings import Settings

_CONNECT_SECONDS = 4
# A daemon writes one every 30 seconds.
_SILENT_SECONDS = 300.0


def dagster_checks(settings: Settings, database_url: str | None) -> dict[str, Finding]:
    """The findings of DAGSTER_HOME, the storage, the daemon and the limits; ``database_url`` is that of our
    database, None where it does not answer."""
    found = dict.fromkeys(DAGSTER_CHECKS, skipped("Dagster's storage is not there"))
    storage, ready = _storage(settings, database_url)
    found |= {"dagster_home": _home(settings), "dagster_storage": storage}
    if ready:
        with dagster_environment(settings), quiet_dagster(), dg.DagsterInstance.get() as instance:
            found["dagster_storage"] = _versions(instance, storage)
            found["dagster_daemon"] = _daemon(instance)
            found["dagster_concurrency"] = _concurrency(instance)
        found["dagster_runs"] = _runs(settings, database_url)
    return found


def _runs(settings: Settings, database_url: str | None) -> Finding:
    """Whether Dagster can start runs. One that fails before it begins has no row in our ledger."""
    starts = run_starts.read_starts(settings, database_url or "")
    if starts is None:
        return skipped("Dagster's tables cannot be read")
    if not starts.runs:
        return skipped("Dagster had no run in the last day")
    if not starts.failed:
        return ok(f"each of the last {starts.runs} began")
    seen = failed_starts(starts.runs, starts.failed, starts.reason)
    remedy = "remove the cause that the reason names; see runs.log in the state folder, and Runs in the UI"
    return (failed if 2 * starts.failed >= starts.runs else warning)(seen, remedy)


def _home(settings: Settings) -> Finding:
    if not settings.state_dir.exists():
        return skipped(f"{settings.state_dir} is not there yet; the first start makes it")
    try:
        home = environment.dagster_home(settings)
    except ConfigurationError as error:
        return failed(*error_text(error, "correct SCM_STATE_DIR"))
    theirs = os.environ.get("DAGSTER_HOME")
    if theirs and Path(theirs).resolve() != home.resolve():
        return warning(
            f"DAGSTER_HOME is {theirs}, this program uses {home}",
            'eval "$(scm-sync env)" in this shell, or the dagster command shows something else',
        )
    return ok(str(home))


def _storage(settings: Settings, database_url: str | None) -> tuple[Finding, bool]:
    """Whether Dagster's tables can be reached, and whether they are there."""
    own = settings.dagster_database_url
    variable = "SCM_DAGSTER_DATABASE_URL" if own else "SCM_DATABASE_URL"
    try:
        if own:
            url = environment.dagster_url(own)
        elif database_url is None:
            return skipped("the database does not answer"), False
        else:
            url = environment.dagster_url(database_url, environment.DAGSTER_SCHEMA)
        server = diagnosis.inspect(url.replace("+psycopg2", "", 1), _CONNECT_SECONDS, variable)
    except ConfigurationError as error:
        return failed(*error_text(error, f"correct {variable}")), False
    if server.has_runs:
        return ok(f"PostgreSQL {server.version}"), True
    if server.may_create_tables if server.has_schema else server.may_create:
        return ok("no tables yet; the first start of scm-sync up or the runner makes them"), False
    what = "tables in its schema" if server.has_schema else "the schema dagster"
    return failed(f"the account may not make {what}", "grant it CREATE there"), False


def _versions(instance: dg.DagsterInstance, storage: Finding) -> Finding:
    for one in (instance.run_storage, instance.event_log_storage, instance.schedule_storage):
        version = one.alembic_version() if one is not None else None
        if version is not None and version[0] != version[1]:
            return failed(
                "its tables are those of another version of Dagster",
                'stop scm-sync up, then: eval "$(scm-sync env)" && dagster instance migrate',
            )
    return storage


def _daemon(instance: dg.DagsterInstance) -> Finding:
    beats = instance.get_daemon_heartbeats()
    needed = [beats[kind] for kind in instance.get_required_daemon_types() if kind in beats]
    if not needed:
        return skipped("none has run on this storage yet")
    silent = {beat.daemon_type: clock.now().timestamp() - beat.timestamp for beat in needed}
    if min(silent.values()) > _SILENT_SECONDS:
        minutes = min(silent.values()) / 60
        return warning(
            f"none runs; the last one was alive {minutes:.0f} minutes ago",
            "start scm-sync up; without it nothing is synced by itself",
        )
    late = [kind for kind, seconds in silent.items() if seconds > _SILENT_SECONDS]
    wrong = [beat.daemon_type for beat in needed if beat.errors]
    if late or wrong:
        problems = [f"silent: {', '.join(late)}"] * bool(late) + [f"with errors: {', '.join(wrong)}"] * bool(
            wrong
        )
        return warning("; ".join(problems), "look at Deployment > Daemons in the UI, or restart scm-sync up")
    return ok(f"alive, {max(silent.values()):.0f} s ago at most")


def _concurrency(instance: dg.DagsterInstance) -> Finding:
    wrong = list(_wrong_limits(instance))
    if wrong:
        return warning("; ".join(wrong), "take these settings of dagster.yaml from the installed one")
    limits = instance.get_concurrency_config()
    assert limits.run_queue_config is not None
    return ok(
        f"{limits.run_queue_config.max_concurrent_runs} runs at a time, "
        f"{limits.pool_config.default_pool_limit} in the pool of an instance",
    )


def _wrong_limits(instance: dg.DagsterInstance) -> Iterator[str]:
    """Settings of dagster.yaml with which live syncing may starve, or two would retry."""
    limits = instance.get_concurrency_config()
    queue, pools = limits.run_queue_config, limits.pool_config
    if queue is None:
        yield "runs are not queued"
    else:
        by_key = {one.get("key"): int(one.get("limit", 0)) for one in queue.tag_concurrency_limits}
        room = queue.max_concurrent_runs
        if room >= 0 and not 0 < by_key.get("dagster/backfill", room + 1) * 2 <= room:
            yield "backfills may take more than half of the runs"
    granularity = pools.pool_granularity
    if granularity is None or granularity.value != "op":
        yield "pools do not limit ops"
    if not pools.default_pool_limit:
        yield "pools have no default limit"
    if not instance.run_monitoring_enabled:
        yield "run monitoring is off"
    if instance.run_retries_enabled:
        yield "run retries are on, beside those of the job ledger"
