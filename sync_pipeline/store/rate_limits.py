"""The buckets that all processes share: ``scm.sync_rate_limits``.

Belongs here: a token or a place in the queue taken in one statement by the database's clock, and a bucket
changed under its lock. Does not belong here: what an answer changes (:mod:`sync_pipeline.policy.rate_limits`,
whose ``take`` says in Python what :func:`acquire` does) and the waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from typing import Any

from sync_pipeline.model import Bucket, Kind
from sync_pipeline.store.database import Connection, database_time

ALL, SVN = "all", "svn"
"""Buckets of a whole server: of a GitLab, and of an SVN server, which may be the same host."""

_TENANT = "tenant:"

# One request asks for a token, or for a place in the queue of those that will flow in. The clock is read
# behind the lock: whoever waits for it must not see a moment that others have used up. Nothing is taken where
# the wait is too long, or where this kind of request has a bucket of its own and comes without its token.
# The commit is not waited for: a token that a crash of the server forgets is not worth a flush per request.
_ACQUIRE = """
WITH held AS MATERIALIZED (
    SELECT tokens, rate, refilled_at, changed_at
      FROM scm.sync_rate_limits
     WHERE instance = %(instance)s AND endpoint_class = %(bucket)s
       FOR UPDATE
), clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now, set_config('synchronous_commit', 'off', TRUE) AS unflushed
      FROM (SELECT count(*) FROM held) AS locked
), filled AS MATERIALIZED (
    SELECT c.now, greatest(h.refilled_at, c.now) AS refilled_at, h.changed_at, h.rate AS old_rate,
           least(%(burst)s::float8, h.tokens + h.rate
                 * greatest(0, extract(epoch FROM c.now - h.refilled_at)::float8)) AS tokens,
           CASE WHEN h.changed_at IS NULL THEN %(rate)s::float8
                ELSE least(%(rate)s::float8, h.rate + %(raised_per_minute)s::float8 * %(rate)s::float8 / 60
                           * greatest(0, extract(epoch FROM c.now - h.changed_at)::float8)) END AS rate
      FROM held AS h CROSS JOIN clock AS c
), queued AS MATERIALIZED (
    SELECT f.now, f.refilled_at, f.rate,
           CASE WHEN f.rate < %(rate)s::float8 THEN greatest(f.changed_at, f.now) END AS changed_at,
           CASE WHEN f.tokens < 0 THEN f.tokens * f.rate / f.old_rate ELSE f.tokens END AS tokens
      FROM filled AS f
), judged AS MATERIALIZED (
    SELECT q.*,
           extract(epoch FROM q.refilled_at - q.now)::float8 + greatest(0, 1 - q.tokens) / q.rate AS wait,
           EXISTS (SELECT
                     FROM scm.sync_rate_limits AS own
                    WHERE own.instance = %(instance)s AND own.endpoint_class = %(kind)s
                      AND (own.changed_at IS NOT NULL OR own.paused_until > q.now)) AS has_own
      FROM queued AS q
)
UPDATE scm.sync_rate_limits AS b
   SET tokens = j.tokens - CASE WHEN j.wait <= %(longest)s AND NOT j.has_own THEN 1 ELSE 0 END,
       rate = j.rate, refilled_at = j.refilled_at, changed_at = j.changed_at,
       consumed = b.consumed + (j.wait <= %(longest)s AND NOT j.has_own)::integer,
       rejected = b.rejected + (j.wait > %(longest)s AND NOT j.has_own)::integer
  FROM judged AS j
 WHERE b.instance = %(instance)s AND b.endpoint_class = %(bucket)s
RETURNING j.wait, j.has_own, j.now AS given_at, b.paused_until, b.pause_reason, b.consecutive_429
"""

# The first request to a server.
_CREATE = """
INSERT INTO scm.sync_rate_limits (instance, endpoint_class, tokens, rate)
VALUES (%(instance)s, %(bucket)s, %(tokens)s, %(rate)s)
ON CONFLICT DO NOTHING
"""

# Whether a place in the queue still counts when its time has come.
_IS_VALID = """
SELECT paused_at IS NULL OR paused_at < %(given_at)s AS valid
  FROM scm.sync_rate_limits
 WHERE instance = %(instance)s AND endpoint_class = %(bucket)s
"""

# A bucket is changed by what an answer said, or by a person.
_LOCK = """
SELECT tokens, rate, refilled_at, paused_until, paused_at, pause_reason, changed_at, consecutive_429,
       last_429_at, server_limit, server_remaining
  FROM scm.sync_rate_limits
 WHERE instance = %(instance)s AND endpoint_class = %(bucket)s
   FOR UPDATE
"""

_CHANGE = """
UPDATE scm.sync_rate_limits
   SET tokens = %(tokens)s, rate = %(rate)s, refilled_at = %(refilled_at)s, paused_until = %(paused_until)s,
       paused_at = %(paused_at)s, pause_reason = left(%(pause_reason)s, 2000), changed_at = %(changed_at)s,
       consecutive_429 = %(consecutive_429)s, last_429_at = %(last_429_at)s,
       server_limit = %(server_limit)s, server_remaining = %(server_remaining)s,
       limited = limited + %(refused)s::integer
 WHERE instance = %(instance)s AND endpoint_class = %(bucket)s
"""

# The servers that a person may name.
_SERVERS = """
SELECT DISTINCT instance, kind FROM scm.repos ORDER BY instance, kind
"""

# What people did to the limits of a server.
_NOTE = """
INSERT INTO scm.rate_limit_events (instance, action, until, actor, reason)
VALUES (%(instance)s, %(action)s, %(until)s, %(actor)s, left(%(reason)s, 2000))
"""
_EVENTS = """
SELECT created_at, instance, action, until, actor, reason
  FROM scm.rate_limit_events
 WHERE %(instance)s::text IS NULL OR instance = %(instance)s
 ORDER BY event_id DESC
 LIMIT %(limit)s
"""

# What a person sees.
_LIST = """
SELECT * FROM scm.sync_rate_limits ORDER BY instance, endpoint_class
"""


@dataclass(frozen=True, slots=True)
class Permit:
    """What the bucket says to one request: send it in ``wait`` seconds, or, where that is longer than it may
    be, do not. ``needs_own`` is True where nothing was taken, because this kind of request has a bucket of
    its own. ``given_at`` is the database's clock."""

    wait: float
    needs_own: bool
    given_at: datetime
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
    *,
    rate: float,
    burst: float,
    raised_per_minute: float,
    longest: float,
    kind: str | None = None,
) -> Permit:
    """Take a token or a place in the queue, unless that takes longer than ``longest`` seconds; then the
    bucket counts a request that was turned away. ``rate`` and ``burst`` are those of the settings, ``kind``
    is the kind of request where it may have a bucket of its own whose token it does not hold yet."""
    values = {
        "instance": instance,
        "bucket": bucket,
        "rate": rate,
        "burst": burst,
        "raised_per_minute": raised_per_minute,
        "longest": longest,
        "kind": kind,
    }
    while (row := conn.execute(_ACQUIRE, values).fetchone()) is None:
        conn.execute(_CREATE, {"instance": instance, "bucket": bucket, "tokens": burst, "rate": rate})
    return Permit(
        wait=row["wait"],
        needs_own=row["has_own"],
        given_at=row["given_at"],
        paused_until=row["paused_until"],
        pause_reason=row["pause_reason"],
        consecutive_429=row["consecutive_429"],
    )


def is_valid(conn: Connection, instance: str, bucket: str, given_at: datetime) -> bool:
    """True if a place in the queue still counts: no pause was set or lifted since it was given."""
    row = conn.execute(_IS_VALID, {"instance": instance, "bucket": bucket, "given_at": given_at}).fetchone()
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
        while (row := conn.execute(_LOCK, key).fetchone()) is None:
            conn.execute(_CREATE, key | {"tokens": tokens, "rate": rate})
        before = Bucket(**row)
        after = decide(before, database_time(conn))
        if refused or after != before:
            conn.execute(_CHANGE, {**asdict(after), **key, "refused": refused})
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
    conn.execute(_NOTE, params)


def events(conn: Connection, instance: str | None, limit: int) -> list[dict[str, Any]]:
    """What people did to the limits of one server or of all (None), the newest ``limit`` of it."""
    return conn.execute(_EVENTS, {"instance": instance, "limit": limit}).fetchall()


def servers(conn: Connection) -> set[tuple[str, str]]:
    """Every server of the catalog with its bucket."""
    buckets = {Kind.GITLAB: ALL, Kind.SVN: SVN}
    return {(row["instance"], buckets[Kind(row["kind"])]) for row in conn.execute(_SERVERS).fetchall()}


def listed(conn: Connection) -> Sequence[Listed]:
    """Every bucket there is."""
    names = [field.name for field in fields(Bucket)]
    return [_listed(row, names) for row in conn.execute(_LIST).fetchall()]


def _listed(row: dict[str, Any], names: Sequence[str]) -> Listed:
    return Listed(
        instance=row["instance"],
        endpoint_class=row["endpoint_class"],
        bucket=Bucket(**{name: row[name] for name in names}),
        consumed=row["consumed"],
        rejected=row["rejected"],
        limited=row["limited"],
    )
