"""Rediscovery: the schedule that keeps the catalog in step with its discovery roots.

Belongs here: when roots are visited by themselves, the Dagster job that does it, and what Dagster is told
afterwards. It uses the network and may take long, so it is a run and not the body of a tick. What a visit
does is in :mod:`sync_pipeline.operations.discovery`. The name is fixed: Dagster keeps the switch by it.
"""

# Dagster looks at the annotations of ops and schedules itself, so they cannot be postponed here.

import logging

import dagster as dg

from sync_pipeline import catalog
from sync_pipeline.errors import ConfigurationError
from sync_pipeline.operations.discovery import Discovered, rediscover
from sync_pipeline.orchestration.failures import failed, refusing
from sync_pipeline.orchestration.processes import sign
from sync_pipeline.orchestration.ticks import UNFINISHED, heartbeat, skips_outages
from sync_pipeline.quality import credentials
from sync_pipeline.resources import GitLabResource, PostgresResource
from sync_pipeline.safe_text import visible
from sync_pipeline.settings import Settings
from sync_pipeline.store import discovery, repos
from sync_pipeline.store.database import Database
from sync_pipeline.store.discovery import Root
from sync_pipeline.sync.readers import Readers

_log = logging.getLogger(__name__)

REDISCOVERY = "rediscovery"

_FIVE_MINUTES = 300.0


def rediscovery_job() -> dg.JobDefinition:
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


def rediscovery_schedule(job: dg.JobDefinition, settings: Settings) -> dg.ScheduleDefinition:
    """The schedule that starts ``job`` when a root is due or the snapshot is older than the catalog."""

    # How often it is asked; how often a root is visited is a setting.
    every = _FIVE_MINUTES if settings.discovery.interval_seconds >= _FIVE_MINUTES else 60.0

    @dg.schedule(
        name=REDISCOVERY,
        job=job,
        cron_schedule="*/5 * * * *" if every == _FIVE_MINUTES else "* * * * *",
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description="Visits discovery roots that are due and exports the catalog when it changed.",
    )
    @skips_outages
    def rediscovery(
        context: dg.ScheduleEvaluationContext,
        settings: dg.ResourceParam[Settings],
        postgres: PostgresResource,
        gitlab: GitLabResource,
    ) -> dg.RunRequest | dg.SkipReason:
        with postgres.database() as database, heartbeat(database, settings, REDISCOVERY, every=every) as say:
            due = _due(database, settings, gitlab.readers(database))
            if not due and not _snapshot_is_old(database, settings):
                say("nothing is due")
                return dg.SkipReason("nothing is due")
            unfinished = dg.RunsFilter(job_name=REDISCOVERY, statuses=UNFINISHED)
            if context.instance.get_runs_count(unfinished):
                say("a run is at work")
                return dg.SkipReason("a run is at work")
            say(f"{len(due)} roots are due")
        return dg.RunRequest()

    return rediscovery


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
    """True if the code location would load something else than the catalog: a project moved, or older facts
    than any before were found, so that the days begin earlier."""
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
    told = ", ".join(f"{len(repositories)} {what}" for what, repositories in counted.items() if repositories)
    return f"{_name(one.root)}: {one.listed} listed, {told or 'nothing new'}"
