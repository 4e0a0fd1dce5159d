"""One function that builds the definitions, for :mod:`sync_pipeline.definitions`, commands and tests.

Belongs here: which assets, jobs, sensors and resources a code location has, and the handling of a failed
load. Building them reads the catalog snapshot file and nothing else: no network, no database.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from typing import Any

import click
import dagster as dg

from sync_pipeline.core import catalog
from sync_pipeline.core.errors import ConfigurationError
from sync_pipeline.core.job_types import Family
from sync_pipeline.core.safe_text import visible
from sync_pipeline.orchestration import console
from sync_pipeline.orchestration.assets import family_assets, family_jobs
from sync_pipeline.orchestration.changes import changes_sensors
from sync_pipeline.orchestration.instance import quiet_dagster
from sync_pipeline.orchestration.liveness import fleet_checks
from sync_pipeline.orchestration.partitions import block_window, day_partitions, first_day, parse_day
from sync_pipeline.orchestration.reaper import reaper_sensor
from sync_pipeline.orchestration.reconciliation import (
    reconciliation_asset,
    reconciliation_job,
    reconciliation_key,
    reconciliation_schedule,
)
from sync_pipeline.orchestration.rediscovery import rediscovery_schedule
from sync_pipeline.orchestration.resources import (
    GitLabResource,
    PostgresResource,
    SvnResource,
    WatermarkStoreResource,
)
from sync_pipeline.orchestration.retention import retention_asset, retention_schedule
from sync_pipeline.orchestration.run_spec import PARTITION_TAG, RANGE_END_TAG, RANGE_START_TAG
from sync_pipeline.orchestration.schedules import resync_schedules
from sync_pipeline.orchestration.sensors import scheduler_sensor
from sync_pipeline.orchestration.step import Observer
from sync_pipeline.scheduling import pools
from sync_pipeline.settings import Settings, load_settings


def load_defs() -> dg.Definitions:
    """The definitions of the code location.

    If they cannot be built, or without a catalog snapshot, a command such as ``dagster job execute`` ends
    with exit code 3 and one line on stderr. Otherwise Dagster would print its own call stack around that
    line. A server gets ConfigurationError, shows it as the error of the location, and continues. Without a
    snapshot it serves an empty location.
    """
    try:
        settings = load_settings()
        _log_as(settings)
        if console.is_command():
            _check_command(settings)
        return build_defs(settings=settings)
    except ConfigurationError as error:
        if not console.is_command():
            raise
        console.end_command(error.problems)


def _log_as(settings: Settings) -> None:
    """Write the log of our own modules to stderr, which Dagster hands on."""
    log = logging.getLogger("sync_pipeline")
    log.setLevel(settings.log_level.upper())
    if not log.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(_Lines("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        log.addHandler(handler)


class _Lines(logging.Formatter):
    """Log records without control characters for the terminal; a traceback keeps its lines."""

    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record), keep="\n\t")


def _check_command(settings: Settings) -> None:
    """Refuse a command of ``dagster`` that cannot succeed."""
    console.explain_failures()
    if not settings.catalog_file.exists():
        raise ConfigurationError(
            f"there is no catalog snapshot {settings.catalog_file}; run: scm-sync catalog export, "
            "or correct SCM_STATE_DIR"
        )
    family, keys = _asked_partitions()
    if not os.environ.get("DAGSTER_HOME"):
        if family is Family.REVISIONS and keys:
            raise ConfigurationError(
                "DAGSTER_HOME is not set, so Dagster knows no blocks of revisions; run first: "
                'eval "$(scm-sync env)"'
            )
        console.print_line(
            "DAGSTER_HOME is not set, so Dagster keeps no record of this run; run first: "
            'eval "$(scm-sync env)"'
        )
    for key in keys:
        # Whether there is such a partition is checked in the run.
        (block_window if family is Family.REVISIONS else parse_day)(key)


def _asked_partitions() -> tuple[Family | None, list[str]]:
    """The family of the job that ``dagster job execute`` names, and the partition keys in its tags."""
    params = click.get_current_context().params
    family = next((f for f in Family if f.job_name == params.get("job_name")), None)
    try:
        tags = json.loads(params.get("tags") or "{}")
    except ValueError:
        tags = None  # Dagster's own line about that is good.
    if family is None or not isinstance(tags, dict):
        return family, []
    names = (PARTITION_TAG, RANGE_START_TAG, RANGE_END_TAG)
    return family, [tags[name] for name in names if isinstance(tags.get(name), str)]


def build_defs(
    *,
    settings: Settings | None = None,
    snapshot: catalog.CatalogSnapshot | None = None,
    only: str | None = None,
    resource_overrides: Mapping[str, Any] | None = None,
) -> dg.Definitions:
    """Fresh definitions.

    ``settings`` default to those in force, ``snapshot`` to the file in the state folder, ``only`` to the
    setting of that name. They have the assets that the pool of the settings takes, or those of ``only``.
    Raises ConfigurationError if the snapshot and its copy are damaged, or ``only`` names a repository that
    it does not have.
    """
    settings = settings or load_settings()
    snapshot = snapshot or catalog.load_snapshot(settings.catalog_file)
    only = settings.only if only is None else only
    snapshot = catalog.narrow(snapshot, only)
    # A repository that a person named is read, also if the pool does not take it.
    taking = pools.unrestricted(settings) if only else settings
    repositories = [r for r in snapshot.repositories if pools.job_types_of(taking, r)]
    with quiet_dagster():
        given = dg.ResourceDefinition.hardcoded_resource(settings)
        # Assets that one run may carry have to share their partitions.
        days = day_partitions(first_day(snapshot, settings))
        jobs = family_jobs(repositories, taking)
        postgres = PostgresResource(settings=given)
        return dg.Definitions(
            assets=[
                *family_assets(repositories, days, taking),
                reconciliation_asset(repositories, days, settings),
                retention_asset(settings),
            ],
            asset_checks=fleet_checks(reconciliation_key(settings)),
            # Schedules bring their jobs along.
            jobs=jobs,
            schedules=[
                rediscovery_schedule(settings),
                reconciliation_schedule(reconciliation_job(settings)),
                retention_schedule(settings),
                *resync_schedules(),
            ],
            sensors=[
                scheduler_sensor(repositories, days, jobs, settings, reconciliation_key(settings)),
                reaper_sensor(settings),
                *changes_sensors(repositories, settings),
            ],
            resources={
                "settings": given,
                "svn": SvnResource(settings=given),
                "gitlab": GitLabResource(settings=given),
                "postgres": postgres,
                "watermarks": WatermarkStoreResource(postgres=postgres),
                "observer": dg.ResourceDefinition.hardcoded_resource(Observer()),
                **(resource_overrides or {}),
            },
            executor=dg.in_process_executor,
        )
