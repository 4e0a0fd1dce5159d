"""Jobs: one per family, so that ``dagster job execute`` and the sensors have a name to call.

Belongs here: the selection behind each name. A job per asset would make the location slow to load.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

from sync_pipeline.model import JobType, Repository
from sync_pipeline.orchestration.assets import asset_key

SYNC_REVISIONS = "sync_revisions"
JOB_OF_JOB_TYPE = {JobType.REVISIONS: SYNC_REVISIONS}
"""Which job syncs which job type."""


def console_at(level: str) -> dict[str, Any]:
    """Run configuration: what of a run's log a terminal gets; the event log has everything anyway."""
    return {"loggers": {"console": {"config": {"log_level": level}}}}


def family_jobs(svn: Sequence[Repository]) -> list[UnresolvedAssetJobDefinition]:
    """The jobs of a code location, also of an empty one: a name that vanishes breaks its callers."""
    return [
        dg.define_asset_job(
            SYNC_REVISIONS,
            selection=dg.AssetSelection.assets(*(asset_key(r, JobType.REVISIONS) for r in svn)),
            description="Sync SVN revisions. With a partition (or a range of them): that window of every "
            "repository. Without: what is new since the watermark.",
            executor_def=dg.in_process_executor,
        )
    ]
