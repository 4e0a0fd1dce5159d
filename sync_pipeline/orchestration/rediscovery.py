"""Rediscovery: the schedule that keeps the catalog in step with its discovery roots.

Belongs here: when roots are visited automatically, the Dagster job for it, and the report to Dagster
afterwards. It uses the network and may take long, so it is a run and not the body of a tick. The name is
fixed, because Dagster stores the switch by it. Does not belong here: the visit
(:mod:`sync_pipeline.registry.discovery`).
"""

# Dagster looks at the annotations of ops and schedules itself, so they cannot be postponed here.

import logging

import dagster as dg

from sync_pipeline.core import catalog
from sync_pipeline.core.errors import ConfigurationError
from sync_pipeline.core.safe_text import visible
from sync_pipeline.database.pool import Database
from sync_pipeline.ledger import discovery, repos
from sync_pipeline.ledger.discovery import Root
from sync_pipeline.orchestration.failures import failed, refusing
from sync_pipeline.orchestration.processes import sign
from sync_pipeline.orchestration.resources import GitLabResource, PostgresResource
from sync_pipeline.orchestration.schedules import schedule_of
from sync_pipeline.registry.discovery import Discovered, rediscover
from sync_pipeline.scheduling import credentials
from sync_pipeline.settings import Settings
from sync_pipeline.sync.readers import Readers

_log = logging.getLogger(__name__)

REDISCOVERY = "rediscovery"

_FIVE_MINUTES = 300.0


def _job() -> dg.JobDefinition:
    """The job that visits every root that is due, and brings the snapshot up to date."""

    @dg.op(description="Visits every discovery root that is due; the catalog follows.")
    def visit_roots(
        context: dg.OpExecutionContext,
        settings: dg.ResourceParam[Settings],
        postgres: PostgresResource,
        gitlab: GitLabResource,
    ) -> None:
        # The parts of the web page come with it, which a code location does not need to load.
        from sync_pipeline.orchestration.catalog_changes import after_catalog_change

        sign(context.instance, context.run)
        with refusing(), postgres.database() as database:
            readers = gitlab.readers(database)
            due = _due(database, settings, readers)
            found = rediscover(database, settings, readers.gitlab, REDISCOVERY, roots=due)
            for one in found:
                context.log.info(_line(one))
                if one.error is not None:
                    with database.connection() as conn:
                        credentials.note(conn, readers, one.root.instance, one.error)
            if any(one.changed for one in found) or _snapshot_is_old(database, settings):
                after_catalog_change(settings, database)
                context.log.info("exported the catalog")
        errors = [f"{_name(one.root)}: {one.error}" for one in found if one.error is not None]
        if errors:
            raise failed(errors)

    @dg.job(
        name=REDISCOVERY,
        description="Registers new projects of the discovery roots, follows renamed ones, retires vanished "
        "ones.",
        executor_def=dg.in_process_executor,
    )
    def rediscovery() -> None:
        visit_roots()

    return rediscovery


def rediscovery_schedule(settings: Settings) -> dg.ScheduleDefinition:
    """The schedule that starts the job when a root is due or the snapshot is older than the catalog."""

    def check(database: Database, settings: Settings) -> tuple[bool, str]:
        due = _due(database, settings, Readers(settings, database))
        if due or _snapshot_is_old(database, settings):
            return True, f"{len(due)} roots are due"
        return False, "nothing is due"

    # How often it is asked; how often a root is visited is a setting.
    is_rare = settings.discovery.interval_seconds >= _FIVE_MINUTES
    return schedule_of(
        _job(),
        cron="*/5 * * * *" if is_rare else "* * * * *",
        every=_FIVE_MINUTES if is_rare else 60.0,
        description="Visits discovery roots that are due and exports the catalog when it changed.",
        check=check,
    )


def _due(database: Database, settings: Settings, readers: Readers) -> list[Root]:
    """The roots of this pool's servers to visit now. A server that refuses our token is left alone until a
    probe is accepted."""
    mine = settings.worker.instance_allowlist
    with database.connection() as conn:
        stopped = credentials.in_force(conn, readers).stopped
        return [
            root
            for root in discovery.due_roots(conn, settings.discovery.interval_seconds)
            if root.instance not in stopped and (not mine or root.instance in mine)
        ]


def _snapshot_is_old(database: Database, settings: Settings) -> bool:
    """True if the loaded catalog is outdated: a project moved, or the days begin earlier because older facts
    were found.
    """
    try:
        snapshot = catalog.read_snapshot(settings.catalog_file)
    except ConfigurationError:
        return True
    with database.connection() as conn:
        start = repos.history_start(conn, settings.gitlab.history_floor)
        return start != snapshot.history_start or repos.list_all(conn) != list(snapshot.repositories)


def _name(root: Root) -> str:
    return visible(f"{root.instance} {root.group_path or 'membership'}")


def _line(one: Discovered) -> str:
    counted = {
        "registered": one.registered,
        "returned": one.returned,
        "moved": one.moved,
        "vanished": one.vanished,
        "retired": one.retired,
    }
    counts_text = ", ".join(
        f"{len(repositories)} {what}" for what, repositories in counted.items() if repositories
    )
    return f"{_name(one.root)}: {one.listed} listed, {counts_text or 'nothing new'}"
