"""Worker pools: the assets that the pool of these settings accepts, and those that no running pool accepts.

Belongs here: the allowlists applied to repositories, and the parts of the reports about pools. Does not
belong here: whether something is due (:mod:`sync_pipeline.policy`).
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from sync_pipeline.core import job_types
from sync_pipeline.core.model import JobType, Repository
from sync_pipeline.database.pool import Connection
from sync_pipeline.ledger import pools
from sync_pipeline.ledger.pools import Pool
from sync_pipeline.scheduling.dispatch import serves
from sync_pipeline.settings import Settings


def job_types_of(settings: Settings, repository: Repository) -> tuple[JobType, ...]:
    """The job types of a repository that the pool of these settings takes."""
    return tuple(
        job_type
        for job_type in job_types.job_types_of(repository)
        if serves(settings, repository.instance, repository.tenant, job_type)
    )


def unrestricted(settings: Settings) -> Settings:
    """The same settings without allowlists, for what a person named."""
    nothing: dict[str, tuple[str, ...]] = {
        "worker_instance_allowlist": (),
        "worker_tenant_allowlist": (),
        "worker_job_type_allowlist": (),
    }
    return settings.model_copy(update=nothing)


def heartbeat(conn: Connection, settings: Settings) -> None:
    """Write down that the pool of these settings lives and what it takes."""
    if settings.only:
        return  # it has one repository, and takes nothing of the others
    pools.seen(
        conn,
        settings.worker.pool,
        instances=settings.worker.instance_allowlist,
        tenants=settings.worker.tenant_allowlist,
        job_types=settings.worker.job_type_allowlist,
    )


def pool_document(pool: Pool) -> dict[str, Any]:
    """A pool as the reports show it; an empty list is all."""
    return {**asdict(pool), "seen_at": pool.seen_at.isoformat()}
