"""Jobs: one per family, so that ``dagster job execute`` and the sensors have a name to call.

Belongs here: the selection behind each name. A job per asset would make the location slow to load.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

from sync_pipeline.model import Repository
from sync_pipeline.orchestration.specs import asset_key
from sync_pipeline.policy.families import Family

_WHAT = {
    Family.COMMITS: "GitLab commits",
    Family.MERGE_REQUESTS: "GitLab merge requests and their reviews",
    Family.REVISIONS: "SVN revisions",
}


def console_at(level: str) -> dict[str, Any]:
    """Run configuration: what of a run's log a terminal gets; the event log has everything anyway."""
    return {"loggers": {"console": {"config": {"log_level": level}}}}


def family_jobs(repositories: Sequence[Repository]) -> list[UnresolvedAssetJobDefinition]:
    """The jobs of a code location, also of an empty one: a name that vanishes breaks its callers."""
    return [
        dg.define_asset_job(
            family.job_name,
            selection=dg.AssetSelection.assets(
                *(
                    asset_key(repository, job_type)
                    for repository in repositories
                    if repository.kind is family.kind
                    for job_type in family.job_types
                )
            ),
            description=f"Sync {_WHAT[family]}. With a partition (or a range of them): that window of every "
            "repository. Without: what is new since the watermark.",
            executor_def=dg.in_process_executor,
        )
        for family in Family
    ]
