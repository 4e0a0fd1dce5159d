"""Assets: every (repository, job type), built as one multi-asset per (instance, family); a job per family.

A job per asset would make the location slow to load. ``dagster job execute`` and the sensors call the jobs by
their names.

Belongs here: the definitions. :mod:`sync_pipeline.orchestration.specs` has the spec of each asset, and
:mod:`sync_pipeline.orchestration.step` the body of a run.
"""

# Dagster looks at the annotation of ``context`` itself, so annotations cannot be postponed here.

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import dagster as dg

from sync_pipeline.core.job_types import Family, by_family
from sync_pipeline.core.model import JobType, Kind, Repository
from sync_pipeline.database.pool import connections_for
from sync_pipeline.orchestration.dagster_internals import UnresolvedAssetJobDefinition
from sync_pipeline.orchestration.failures import StepFailure, refusing
from sync_pipeline.orchestration.health_checks import CHECK_DESCRIPTION, CHECK_NAME
from sync_pipeline.orchestration.partitions import partitions_of, svn_blocks
from sync_pipeline.orchestration.processes import sign
from sync_pipeline.orchestration.resources import (
    GitLabResource,
    PostgresResource,
    SvnResource,
    WatermarkStoreResource,
)
from sync_pipeline.orchestration.run_spec import POOLS_VARIABLE, read_run_spec, repository_tag
from sync_pipeline.orchestration.specs import asset_key, asset_spec
from sync_pipeline.orchestration.step import Observer, Step
from sync_pipeline.registry import server_names
from sync_pipeline.scheduling import pools
from sync_pipeline.settings import Settings

BLOCKS_PER_RUN = 10
DAYS_PER_RUN = 100
"""Partitions that one run of a backfill carries at most; Dagster cuts its range from the oldest on."""

ASSETS_WITH_COLUMNS = 300
"""A code location with more assets leaves the columns of their tables out, because every process of Dagster
loads them for each asset. Measured with 3,000 assets: 43 MB in 6.5 s instead of 13 MB in 0.7 s.
"""

Units = tuple[Repository, tuple[JobType, ...]]
"""A repository with those of its job types of one family that are taken."""


def family_assets(
    repositories: Sequence[Repository], days: dg.DailyPartitionsDefinition, settings: Settings
) -> list[dg.AssetsDefinition]:
    """One multi-asset per (instance, family), with one spec per (repository, job type) that the pool of
    ``settings`` takes, retired ones too. ``days`` are the partitions of everything from GitLab."""
    grouped: dict[tuple[str, Family], list[Units]] = {}
    for repository in repositories:
        for family, job_types in by_family(pools.job_types_of(settings, repository)):
            grouped.setdefault((repository.instance_slug, family), []).append((repository, job_types))
    labels = server_names.labels(repositories, settings)
    number = sum(len(job_types) for members in grouped.values() for _, job_types in members)
    with_columns = number <= ASSETS_WITH_COLUMNS
    return [
        _multi_asset(slug, family, members, days, labels, settings, with_columns)
        for (slug, family), members in sorted(grouped.items())
    ]


def _op_name(alias: str, family: Family) -> str:
    """Name of the op of a server's ``family``. It must differ from the names of jobs, or Dagster loads no
    location. A server may have the fixed alias ``sync``.
    """
    name = f"{alias}_{family}"
    return f"{name}_of_server" if name == family.job_name else name


def _multi_asset(
    instance_slug: str,
    family: Family,
    assets: Sequence[Units],
    days: dg.DailyPartitionsDefinition,
    labels: Mapping[int, str],
    settings: Settings,
    with_columns: bool,
) -> dg.AssetsDefinition:
    members = {
        asset_key(repository, job_type): (repository, job_type)
        for repository, job_types in assets
        for job_type in job_types
    }
    svn_family = family.kind is Kind.SVN
    # Given with each spec: to the decorator it would make Dagster build every spec a second time.
    partitions: dg.PartitionsDefinition = svn_blocks if svn_family else days

    @dg.multi_asset(
        name=_op_name(instance_slug, family),
        specs=[
            asset_spec(
                repository,
                job_type,
                partitions,
                labels[repository.repo_id],
                settings,
                with_columns=with_columns,
            )
            for repository, job_type in members.values()
        ],
        check_specs=[
            dg.AssetCheckSpec(CHECK_NAME, asset=key, description=CHECK_DESCRIPTION) for key in members
        ],
        can_subset=True,
        backfill_policy=dg.BackfillPolicy.multi_run(BLOCKS_PER_RUN if svn_family else DAYS_PER_RUN),
        pool=instance_slug if os.environ.get(POOLS_VARIABLE) else None,
    )
    def sync(
        context: dg.AssetExecutionContext,
        settings: dg.ResourceParam[Settings],
        svn: SvnResource,
        gitlab: GitLabResource,
        postgres: PostgresResource,
        watermarks: WatermarkStoreResource,
        observer: dg.ResourceParam[Observer],
    ) -> Iterator[dg.AssetCheckResult]:
        chosen = context.selected_asset_keys
        selected = [
            (repository, wanted)
            for repository, job_types in assets
            if (wanted := tuple(j for j in job_types if asset_key(repository, j) in chosen))
        ]
        sign(context.instance, context.run, repository_tag([repository for repository, _ in selected]))
        with refusing():
            order = read_run_spec(context.run.tags, partitions_of(family, context.instance, days))
            with (
                postgres.database(max_size=connections_for(settings.jobs.parallel_repositories)) as database,
                watermarks.store() as store,
            ):
                step = Step(
                    context=context,
                    settings=settings,
                    family=family,
                    order=order,
                    days=days,
                    database=database,
                    watermarks=store,
                    readers=svn.readers(database) if svn_family else gitlab.readers(database),
                    observer=observer,
                )
                yield from step.execute(selected)

    return sync


# Jobs -------------------------------------------------------------------------------------------------


def console_at(level: str) -> dict[str, Any]:
    """Run configuration with this log level for the terminal; the event log has every level."""
    return {"loggers": {"console": {"config": {"log_level": level}}}}


def family_jobs(
    repositories: Sequence[Repository], settings: Settings
) -> list[UnresolvedAssetJobDefinition | dg.JobDefinition]:
    """The jobs of a code location, also of an empty one: a name that vanishes breaks its callers."""
    return [_job(family, repositories, settings) for family in Family]


def _job(
    family: Family, repositories: Sequence[Repository], settings: Settings
) -> UnresolvedAssetJobDefinition | dg.JobDefinition:
    keys = [
        asset_key(repository, job_type)
        for repository in repositories
        for job_type in pools.job_types_of(settings, repository)
        if job_type in family.job_types
    ]
    if not keys:
        return _nothing(family)
    return dg.define_asset_job(
        family.job_name,
        selection=dg.AssetSelection.assets(*keys),
        description=f"Sync {family.content}. With a partition (or a range of them): that window of every "
        "repository. Without: what is new since the watermark.",
        executor_def=dg.in_process_executor,
    )


def _nothing(family: Family) -> dg.JobDefinition:
    """The job of a family without assets. It fails, because doing nothing would look like success."""
    line = (
        f"no repository of this code location has {family.content}: SCM_ONLY names one of another kind, "
        "its pool takes none, or none is registered"
    )

    @dg.op(name=f"{family.job_name}_has_nothing")
    def has_nothing() -> None:
        raise StepFailure(line)

    @dg.job(
        name=family.job_name, description=f"Not possible here: {line}.", executor_def=dg.in_process_executor
    )
    def nothing() -> None:
        has_nothing()

    return nothing
