"""Jobs: one per family, so that ``dagster job execute`` and the sensors have a name to call.

Belongs here: the selection behind each name. A job per asset would make the location slow to load.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

from sync_pipeline.job_types import Family
from sync_pipeline.model import Repository
from sync_pipeline.operations import pools
from sync_pipeline.orchestration.failures import StepFailure
from sync_pipeline.orchestration.specs import asset_key
from sync_pipeline.settings import Settings


def console_at(level: str) -> dict[str, Any]:
    """Run configuration: what of a run's log a terminal gets; the event log has everything anyway."""
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
    """A job without any asset would succeed without doing anything, and whoever called it would be misled."""
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
