"""Details that a server refuses for every merge request of a repository: one state each, not one per row.

Belongs here: ``scm.unreadable_details``, and which merge requests lack such a detail once it can be read
again. A detail of one merge request that cannot be read is a deferred fetch
(:mod:`sync_pipeline.facts.quarantine`). Writes run inside the caller's fenced transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sync_pipeline.core.model import JobType, Refusal
from sync_pipeline.database.pool import Connection
from sync_pipeline.database.queries import queries
from sync_pipeline.facts import reviews

_SQL = queries("unreadable")


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A detail that cannot be read ``since`` then, and why. ``is_due``: the server is to be asked again.
    ``readable_at``: since when it can be read again, while merge requests lack it still. Times are UTC."""

    detail: str
    since: datetime
    error: str
    is_due: bool
    readable_at: datetime | None


def known(
    conn: Connection, repo_id: int, job_type: JobType, fingerprint: str | None
) -> Mapping[str, Unreadable]:
    """The details that cannot be read, by their names. One that another token than that of ``fingerprint``
    was refused is due at once."""
    params = {"repo_id": repo_id, "job_type": str(job_type), "fingerprint": fingerprint}
    return {row["detail"]: Unreadable(**row) for row in conn.execute(_SQL["known"], params)}


def refuse(
    conn: Connection,
    *,
    repo_id: int,
    job_type: JobType,
    refusal: Refusal,
    fingerprint: str | None,
    pause: timedelta,
) -> None:
    """The server refuses a detail of every merge request; it is asked again after ``pause``."""
    params = {"repo_id": repo_id, "job_type": str(job_type), "fingerprint": fingerprint, "pause": pause}
    params |= {"detail": refusal.detail, "code": refusal.code, "error": refusal.error}
    conn.execute(_SQL["refused"], params)
    conn.execute(_SQL["settle"], params)


def postpone(
    conn: Connection,
    *,
    repo_id: int,
    job_type: JobType,
    detail: str,
    fingerprint: str | None,
    pause: timedelta,
) -> None:
    """The server did not say whether the detail can be read: it is asked again after ``pause``."""
    params = {"repo_id": repo_id, "job_type": str(job_type), "detail": detail}
    conn.execute(_SQL["postpone"], params | {"fingerprint": fingerprint, "pause": pause})


def readable(conn: Connection, repo_id: int, job_type: JobType, detail: str) -> None:
    """The detail can be read again; merge requests lack it until :func:`delete`."""
    conn.execute(_SQL["readable"], {"repo_id": repo_id, "job_type": str(job_type), "detail": detail})


def delete(conn: Connection, repo_id: int, job_type: JobType, detail: str) -> None:
    """Every merge request that lacks the detail was read since it can be read, or has it deferred."""
    conn.execute(_SQL["delete"], {"repo_id": repo_id, "job_type": str(job_type), "detail": detail})


def without(
    conn: Connection,
    repo_id: int,
    job_type: JobType,
    detail: str,
    since: datetime,
    limit: int,
    *,
    again: bool = False,
) -> list[int]:
    """At most ``limit`` merge requests that lack the detail and were not read since ``since``, the newest
    first. With ``again`` those that were follow behind them."""
    query = _SQL["reviews_without"] if job_type is JobType.REVIEWS else _SQL["merge_requests_without"]
    params = {"repo_id": repo_id, "detail": detail, "part": reviews.part_of(detail), "again": again}
    return [row["iid"] for row in conn.execute(query, params | {"since": since, "limit": limit})]


def mark_asked(conn: Connection, repo_id: int, job_type: JobType, iids: Sequence[int]) -> None:
    """These were asked for, whether they came or not."""
    query = _SQL["asked_reviews"] if job_type is JobType.REVIEWS else _SQL["asked_merge_requests"]
    conn.execute(query, {"repo_id": repo_id, "iids": list(iids)})
