"""Which worker pools live, and what none of them takes.

Belongs here: ``scm.worker_pools``. A pool is a code location or ``scm-sync worker`` with allowlists; each
says at every tick that it lives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sync_pipeline.model import Kind
from sync_pipeline.store.database import Connection

DEFAULT_POOL = "default"
"""Name of the pool of an installation that has one."""

ALIVE_SECONDS = 900.0
"""A pool that has not been heard of for so long is taken for gone."""

_SEEN = """
INSERT INTO scm.worker_pools AS p (name, instances, tenants, job_types, seen_at)
VALUES (%(name)s, %(instances)s, %(tenants)s, %(job_types)s, clock_timestamp())
ON CONFLICT (name) DO UPDATE
   SET instances = EXCLUDED.instances, tenants = EXCLUDED.tenants, job_types = EXCLUDED.job_types,
       seen_at = EXCLUDED.seen_at
"""

# For the status report.
_ALIVE = """
SELECT name, instances, tenants, job_types, seen_at
  FROM scm.worker_pools
 WHERE seen_at > clock_timestamp() - make_interval(secs => %(alive)s)
 ORDER BY name
"""

# What no living pool takes: it is reported, never taken by all. Without any pool there is nothing to report.
_UNSERVED = """
WITH alive AS (
    SELECT * FROM scm.worker_pools
     WHERE seen_at > clock_timestamp() - make_interval(secs => %(alive)s)
)
SELECT r.repo_id, r.kind, r.url, r.project_id, w.job_type, r.instance, r.tenant
  FROM scm.sync_watermarks AS w
  JOIN scm.repos AS r USING (repo_id)
 WHERE r.lifecycle = 'active'
   AND EXISTS (SELECT FROM alive)
   AND NOT EXISTS (SELECT FROM alive AS p
                    WHERE (p.instances = '{}' OR r.instance = ANY (p.instances))
                      AND (p.tenants = '{}' OR r.tenant = ANY (p.tenants))
                      AND (p.job_types = '{}' OR w.job_type = ANY (p.job_types)))
 ORDER BY r.repo_id, w.job_type
 LIMIT %(limit)s
"""


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
        _SEEN,
        {
            "name": name,
            "instances": list(instances),
            "tenants": list(tenants),
            "job_types": [str(job_type) for job_type in job_types],
        },
    )


def alive(conn: Connection) -> list[Pool]:
    """The pools that were heard of lately."""
    return [Pool(**row) for row in conn.execute(_ALIVE, {"alive": ALIVE_SECONDS}).fetchall()]


def unserved(conn: Connection, limit: int = 1000) -> list[Unserved]:
    """What no living pool takes; nothing while no pool lives at all."""
    params = {"alive": ALIVE_SECONDS, "limit": limit}
    return [Unserved(**row) for row in conn.execute(_UNSERVED, params).fetchall()]
