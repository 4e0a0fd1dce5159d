"""What people have paused.

Belongs here: ``scm.pauses``: making, ending and reading them. Both the plan and the claim of a job honour
them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import psycopg

from sync_pipeline.store.database import Connection

# One active pause per place: to change it, end it and make another.
_ADD = """
INSERT INTO scm.pauses (scope, instance, tenant, repo_id, job_type, reason, actor, until)
VALUES (%(scope)s, %(instance)s, %(tenant)s, %(repo_id)s, %(job_type)s, left(%(reason)s, 2000), %(actor)s,
        clock_timestamp() + make_interval(secs => %(seconds)s))
RETURNING pause_id
"""

# Before a new one is made: those whose time is over give way.
_CLOSE_OVER = """
UPDATE scm.pauses
   SET ended_at = until, ended_by = 'time'
 WHERE ended_at IS NULL AND until <= clock_timestamp()
"""

_END = """
UPDATE scm.pauses
   SET ended_at = clock_timestamp(), ended_by = %(actor)s
 WHERE pause_id = %(pause_id)s AND ended_at IS NULL
RETURNING pause_id
"""

# What is paused now, for the plan and for people.
_ACTIVE = """
SELECT p.pause_id, p.scope, p.instance, p.tenant, p.repo_id, p.job_type, p.reason, p.actor, p.created_at,
       p.until
  FROM scm.pauses AS p
 WHERE p.ended_at IS NULL AND (p.until IS NULL OR p.until > clock_timestamp())
 ORDER BY p.pause_id
"""


# Why a job may not be claimed: the pause that ends last.
_OF_JOB = """
SELECT p.pause_id, p.scope, p.instance, p.tenant, p.repo_id, p.job_type, p.reason, p.actor, p.created_at,
       p.until
  FROM scm.sync_jobs AS j
  JOIN scm.repos AS r USING (repo_id)
  JOIN scm.pauses AS p
    ON p.ended_at IS NULL
   AND (p.until IS NULL OR p.until > clock_timestamp())
   AND (p.scope = 'global' OR p.instance = r.instance OR p.tenant = r.tenant OR p.repo_id = r.repo_id)
   AND (p.job_type IS NULL OR p.job_type = j.job_type)
 WHERE j.job_id = %(job_id)s
 ORDER BY coalesce(p.until, 'infinity') DESC
 LIMIT 1
"""


@dataclass(frozen=True, slots=True)
class PauseRow:
    """A pause that holds now. ``repo_id``, ``instance`` and ``tenant`` are set by ``scope``."""

    pause_id: int
    scope: str
    instance: str | None
    tenant: str | None
    repo_id: int | None
    job_type: str | None
    reason: str
    actor: str
    created_at: datetime
    until: datetime | None


def active(conn: Connection) -> list[PauseRow]:
    """The pauses that hold now, oldest first."""
    return [PauseRow(**row) for row in conn.execute(_ACTIVE).fetchall()]


def of_job(conn: Connection, job_id: UUID) -> PauseRow | None:
    """The pause that keeps a job from being claimed now, the one that ends last; None if there is none."""
    row = conn.execute(_OF_JOB, {"job_id": job_id}).fetchone()
    return None if row is None else PauseRow(**row)


def add(
    conn: Connection,
    *,
    scope: str,
    instance: str | None = None,
    tenant: str | None = None,
    repo_id: int | None = None,
    job_type: str | None = None,
    seconds: float | None = None,
    actor: str,
    reason: str,
) -> int | None:
    """Pause a place for so many seconds, or until somebody ends it; returns the number of the pause, None
    where it is paused already."""
    params: dict[str, Any] = {
        "scope": scope,
        "instance": instance,
        "tenant": tenant,
        "repo_id": repo_id,
        "job_type": job_type,
        "seconds": seconds,
        "actor": actor,
        "reason": reason,
    }
    try:
        with conn.transaction():
            conn.execute(_CLOSE_OVER)
            row = conn.execute(_ADD, params).fetchone()
    except psycopg.errors.UniqueViolation:
        return None
    assert row is not None
    return int(row["pause_id"])


def end(conn: Connection, pause_id: int, *, actor: str) -> bool:
    """End a pause; False if there is none of this number that holds."""
    return conn.execute(_END, {"pause_id": pause_id, "actor": actor}).fetchone() is not None
