"""Which worker pools live, and what none of them takes.

Belongs here: ``scm.worker_pools``. A pool is a code location or ``scm-sync worker`` with allowlists; each
says at every tick that it lives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sync_pipeline.core.model import Kind
from sync_pipeline.database.pool import Connection
from sync_pipeline.database.queries import queries

DEFAULT_POOL = "default"
"""Name of the pool of an installation that has one."""

ALIVE_SECONDS = 900.0
"""A pool that has not been heard of for so long is taken for gone."""


_SQL = queries("pools")


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool and what it takes; an empty list is all."""

    name: str
    instances: Sequence[str]
    tenants: Sequence[str]
    job_types: Sequence[str]
    seen_at: datetime


@dataclass(frozen=True, slots=True)
class Unserved:
    """A (repository, job type) that no living pool takes."""

    repo_id: int
    kind: str
    url: str
    project_id: int | None
    job_type: str
    instance: str
    tenant: str

    @property
    def spec(self) -> str:
        """The text by which a person names the repository."""
        return f"gitlab:{self.project_id}" if self.kind == Kind.GITLAB else f"svn:{self.url}"


def seen(
    conn: Connection,
    name: str,
    *,
    instances: Sequence[str],
    tenants: Sequence[str],
    job_types: Sequence[str],
) -> None:
    """Write down that a pool lives and what it takes."""
    conn.execute(
        _SQL["seen"],
        {
            "name": name,
            "instances": list(instances),
            "tenants": list(tenants),
            "job_types": [str(job_type) for job_type in job_types],
        },
    )


def alive(conn: Connection) -> list[Pool]:
    """The pools that were heard of lately."""
    return [Pool(**row) for row in conn.execute(_SQL["alive"], {"alive": ALIVE_SECONDS}).fetchall()]


def unserved(conn: Connection, limit: int = 1000) -> list[Unserved]:
    """The assets that no running pool accepts; empty while no pool runs."""
    params = {"alive": ALIVE_SECONDS, "limit": limit}
    return [Unserved(**row) for row in conn.execute(_SQL["unserved"], params).fetchall()]
