"""The buckets that all processes share: ``scm.sync_rate_limits``.

Belongs here: a token or a place in the queue taken in one statement by the database's clock, and a bucket
changed under its lock. Does not belong here: what an answer changes (:mod:`sync_pipeline.policy.rate_limits`,
whose ``take`` says in Python what :func:`acquire` does) and the waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from sync_pipeline.core.model import Bucket, Kind
from sync_pipeline.database.pool import Connection, database_time
from sync_pipeline.database.queries import queries
from sync_pipeline.database.rows import read_row

ALL, SVN = "all", "svn"
"""Buckets of a whole server: of a GitLab, and of an SVN server, which may be the same host."""

_TENANT = "tenant:"


_SQL = queries("rate_limits")


@dataclass(frozen=True, slots=True)
class Permit:
    """The result for one request: send it in ``wait`` seconds, or do not send it if that is too long.
    ``needs_own``: nothing was taken, because this kind of request has its own bucket. ``ahead`` more permits
    were taken for the moment, for all kinds but ``slowed_kinds``, which have their own buckets. ``rate`` is
    in requests a second, and ``given_at`` the database's clock.
    """

    wait: float
    needs_own: bool
    ahead: int
    slowed_kinds: tuple[str, ...]
    given_at: datetime
    rate: float
    paused_until: datetime | None
    pause_reason: str | None
    consecutive_429: int


@dataclass(frozen=True, slots=True)
class Listed:
    """A bucket with its counters: requests let through, turned away, and refusals of the server, ever."""

    instance: str
    endpoint_class: str
    bucket: Bucket
    consumed: int
    rejected: int
    limited: int


def acquire(
    conn: Connection,
    instance: str,
    bucket: str,
    limits: Mapping[str, float],
    *,
    longest: float,
    kind: str | None = None,
    ahead: int = 0,
    unused: int = 0,
) -> Permit:
    """Take a token or a position in the queue, unless the wait is longer than ``longest`` seconds. Then the
    bucket counts a rejected request. ``limits`` are the numbers of
    :meth:`~sync_pipeline.policy.rate_limits.RateLimits.of_statement`. ``kind`` is the kind of request that
    may have its own bucket and has no token of it yet. Without a wait up to ``ahead`` more permits are taken.
    ``unused`` of those taken before were not used and are given back.
    """
    values = {
        **limits,
        "instance": instance,
        "bucket": bucket,
        "longest": longest,
        "kind": kind,
        "ahead": ahead,
        "unused": unused,
    }
    while (row := conn.execute(_SQL["acquire"], values).fetchone()) is None:
        start = {"instance": instance, "bucket": bucket, "tokens": limits["burst"], "rate": limits["rate"]}
        conn.execute(_SQL["create"], start)
    return read_row(Permit, row, needs_own=row["has_own"], slowed_kinds=tuple(row["slowed_kinds"]))


def is_valid(conn: Connection, instance: str, bucket: str, given_at: datetime) -> bool:
    """True if a place in the queue still counts: no pause was set or lifted since it was given."""
    row = conn.execute(
        _SQL["is_valid"], {"instance": instance, "bucket": bucket, "given_at": given_at}
    ).fetchone()
    return row is not None and bool(row["valid"])


def change(
    conn: Connection,
    instance: str,
    bucket: str,
    decide: Callable[[Bucket, datetime], Bucket],
    *,
    rate: float,
    tokens: float,
    refused: bool = False,
) -> tuple[Bucket, Bucket]:
    """Let ``decide`` make a new bucket of the one that is there and the database's time, while nobody else
    touches it; returns both. A server that was not asked before begins with ``tokens`` and ``rate``.
    ``refused`` counts an answer that told us to slow down."""
    key = {"instance": instance, "bucket": bucket}
    with conn.transaction():
        while (row := conn.execute(_SQL["lock"], key).fetchone()) is None:
            conn.execute(_SQL["create"], key | {"tokens": tokens, "rate": rate})
        before = Bucket(**row)
        after = decide(before, database_time(conn))
        if refused or after != before:
            conn.execute(_SQL["change"], {**asdict(after), **key, "refused": refused})
    return before, after


def of_tenant(tenant: str) -> str:
    """The bucket of one tenant at a GitLab."""
    return _TENANT + tenant


def is_of_tenant(bucket: str) -> bool:
    """True if ``bucket`` is that of a tenant."""
    return bucket.startswith(_TENANT)


def note(
    conn: Connection, instance: str, action: str, *, actor: str, reason: str, until: datetime | None = None
) -> None:
    """Write down what a person did to the limits of a server."""
    params = {"instance": instance, "action": action, "until": until, "actor": actor, "reason": reason}
    conn.execute(_SQL["note"], params)


def events(conn: Connection, instance: str | None, limit: int) -> list[dict[str, Any]]:
    """The newest ``limit`` changes by people to the limits of one server, or of all (None)."""
    return conn.execute(_SQL["events"], {"instance": instance, "limit": limit}).fetchall()


def servers(conn: Connection) -> set[tuple[str, str]]:
    """Every server of the catalog with its bucket."""
    buckets = {Kind.GITLAB: ALL, Kind.SVN: SVN}
    return {(row["instance"], buckets[Kind(row["kind"])]) for row in conn.execute(_SQL["servers"]).fetchall()}


def listed(conn: Connection) -> Sequence[Listed]:
    """Every bucket there is."""
    rows = conn.execute(_SQL["list"]).fetchall()
    return [read_row(Listed, row, bucket=read_row(Bucket, row)) for row in rows]
