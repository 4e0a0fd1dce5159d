"""The latest look at each GitLab project: ``scm.project_snapshots``.

Belongs here: keeping a look for the other job types of the project, whose visits follow in other processes a
moment later. Does not belong here: looking (:mod:`sync_pipeline.sources.gitlab.project`), and what follows
from a look (:mod:`sync_pipeline.sync.project`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sync_pipeline.core.model import JobType
from sync_pipeline.database import values as raws
from sync_pipeline.database.pool import Connection
from sync_pipeline.database.queries import queries

_SQL = queries("project_snapshots")


@dataclass(frozen=True, slots=True)
class StoredProject:
    """The result of a visit to a project: the project without its secrets, and the clocks of server and
    database (UTC).
    """

    raw: Mapping[str, Any]
    server_date: datetime | None
    looked_at: datetime


def recent(
    conn: Connection, repo_id: int, fingerprint: str, job_types: Collection[JobType], *, seconds: float
) -> StoredProject | None:
    """The latest look with this token, if it is younger than ``seconds`` and serves ``job_types`` for the
    first time. None where the token is stopped."""
    params = {
        "repo_id": repo_id,
        "fingerprint": fingerprint,
        "job_types": [str(one) for one in job_types],
        "seconds": seconds,
    }
    return _stored(conn.execute(_SQL["recent"], params).fetchone())


def latest(conn: Connection, repo_id: int, fingerprint: str, *, seconds: float) -> StoredProject | None:
    """The latest look with this token, if it is younger than ``seconds``. None where the token is stopped."""
    params = {"repo_id": repo_id, "fingerprint": fingerprint, "seconds": seconds}
    return _stored(conn.execute(_SQL["latest"], params).fetchone())


def _stored(row: Mapping[str, Any] | None) -> StoredProject | None:
    if row is None:
        return None
    return StoredProject(raws.restored(row["raw"], row["escaped"]), row["server_date"], row["looked_at"])


def put(
    conn: Connection, repo_id: int, fingerprint: str, job_types: Collection[JobType], snapshot: StoredProject
) -> None:
    """Keep a look that ``job_types`` have used."""
    stored, escaped = raws.payload(snapshot.raw)
    conn.execute(
        _SQL["put"],
        {
            "repo_id": repo_id,
            "fingerprint": fingerprint,
            "job_types": [str(one) for one in job_types],
            "raw": stored,
            "escaped": escaped,
            "server_date": snapshot.server_date,
            "looked_at": snapshot.looked_at,
        },
    )


def used(conn: Connection, repo_id: int, job_types: Collection[JobType], snapshot: StoredProject) -> None:
    """These job types have used the look; the next visit of each looks anew."""
    params = {
        "repo_id": repo_id,
        "job_types": [str(one) for one in job_types],
        "looked_at": snapshot.looked_at,
    }
    conn.execute(_SQL["used"], params)
