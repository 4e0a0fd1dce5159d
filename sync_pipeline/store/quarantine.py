"""Quarantine and deferred fetches: rows that could not be stored, and details that are still to be read.

Belongs here: writing both in the batch's transaction, finding the fetches that are due, and looking
through quarantine. They are resolved by the module that stores the row or the detail after all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from sync_pipeline.model import DeferredFetch, JobType, QuarantinedRow, Window
from sync_pipeline.store.database import Connection
from sync_pipeline.store.raw import recordset
from sync_pipeline.store.windows import from_ranges

_QUARANTINE = """
INSERT INTO scm.quarantine AS q (repo_id, job_type, natural_key, reason, detail, payload, batch_id)
VALUES (%(repo_id)s, %(job_type)s, %(natural_key)s, %(reason)s, left(%(detail)s, 2000), %(payload)s,
        %(batch_id)s)
ON CONFLICT (repo_id, job_type, natural_key) WHERE resolved_at IS NULL DO UPDATE
   SET reason = EXCLUDED.reason, detail = EXCLUDED.detail, payload = EXCLUDED.payload,
       batch_id = EXCLUDED.batch_id, seen = q.seen + 1, last_seen_at = now()
"""

# Met again: the next try waits longer each time, a day at most.
_DEFER = """
INSERT INTO scm.obligations AS o (repo_id, job_type, natural_key, detail, last_error)
VALUES (%(repo_id)s, %(job_type)s, %(natural_key)s, %(detail)s, left(%(error)s, 2000))
ON CONFLICT (repo_id, job_type, natural_key, detail) WHERE resolved_at IS NULL DO UPDATE
   SET attempts = o.attempts + 1, last_error = EXCLUDED.last_error,
       not_before = now() + least(interval '1 day', interval '1 minute' * power(2, least(o.attempts, 12)))
"""

_DUE = """
SELECT natural_key, detail, last_error AS error FROM scm.obligations
 WHERE repo_id = %(repo_id)s AND job_type = %(job_type)s AND resolved_at IS NULL AND not_before <= now()
 ORDER BY not_before
 LIMIT %(limit)s
"""

# A look through quarantine, the latest met first; the number of all that fit comes with each row. The payload
# is left out: it may be large.
_ENTRIES = """
SELECT q.quarantine_id, q.repo_id, q.job_type, q.natural_key, q.reason, q.detail,
       length(q.payload) AS payload_bytes, q.batch_id, q.seen, q.created_at, q.last_seen_at, q.resolved_at,
       b.revs, b.period, b.run_id, count(*) OVER () AS total
  FROM scm.quarantine AS q
  LEFT JOIN scm.sync_batches AS b USING (batch_id)
 WHERE (%(ids)s::bigint[] IS NULL OR q.quarantine_id = ANY (%(ids)s))
   AND (%(repo_id)s::bigint IS NULL OR q.repo_id = %(repo_id)s)
   AND (%(job_type)s::text IS NULL OR q.job_type = %(job_type)s)
   AND (%(reason)s::text IS NULL OR q.reason = %(reason)s)
   AND (%(resolved)s OR q.resolved_at IS NULL)
 ORDER BY q.last_seen_at DESC, q.quarantine_id DESC
 LIMIT %(limit)s
"""

_PAYLOAD = "SELECT payload FROM scm.quarantine WHERE quarantine_id = %(id)s"

# The source was asked for all that the row could be among, and it is there no more.
_RESOLVE = """
UPDATE scm.quarantine SET resolved_at = now(), detail = %(gone)s || left(detail, 1900)
 WHERE quarantine_id = ANY (%(ids)s) AND resolved_at IS NULL
"""

# Everything of an asset that is quarantined.
_OPEN_KEYS = """
SELECT natural_key FROM scm.quarantine
 WHERE repo_id = %(repo_id)s AND job_type = %(job_type)s AND resolved_at IS NULL
"""

# A row that could be stored after all leaves quarantine; a detail that was read is no longer deferred.
_SETTLE = """
WITH settled AS (
    UPDATE scm.obligations AS o SET resolved_at = now()
      FROM json_to_recordset(%(fetched)s) AS s (natural_key text, detail text)
     WHERE o.repo_id = %(repo_id)s AND o.job_type = %(job_type)s AND o.resolved_at IS NULL
       AND o.natural_key = s.natural_key AND o.detail = s.detail
)
UPDATE scm.quarantine SET resolved_at = now()
 WHERE repo_id = %(repo_id)s AND job_type = %(job_type)s AND resolved_at IS NULL
   AND natural_key = ANY (%(keys)s)
"""

# Deferred fetches and quarantine of rows that are gone from their source. All that belongs to a merge request
# begins with its number.
_SETTLE_DEFERRED = """
UPDATE scm.obligations SET resolved_at = now()
 WHERE repo_id = %(repo_id)s AND job_type = ANY (%(job_types)s) AND natural_key = ANY (%(keys)s)
   AND resolved_at IS NULL
"""
_SETTLE_ASIDE = """
UPDATE scm.quarantine SET resolved_at = now(), detail = %(gone)s || left(detail, 1900)
 WHERE repo_id = %(repo_id)s AND job_type = ANY (%(job_types)s) AND resolved_at IS NULL
   AND (natural_key = ANY (%(keys)s)
        OR (job_type IN ('merge_requests', 'reviews') AND split_part(natural_key, ':', 1) = ANY (%(keys)s)))
"""

# The same for a merge request that is not stored, once it was requested often enough: no comparison finds
# that it was deleted. A row that is there gets its tombstone first.
_UNSTORED = """
SELECT natural_key FROM scm.obligations AS o
 WHERE o.repo_id = %(repo_id)s AND o.job_type = %(job_type)s AND o.natural_key = %(iid)s::text
   AND o.resolved_at IS NULL AND o.attempts >= %(looks)s AND o.created_at <= now() - %(time)s
   AND NOT EXISTS (SELECT FROM scm.mrs AS m
                    WHERE m.repo_id = o.repo_id AND m.iid = %(iid)s AND m.replaced_id = 0
                      AND m.deleted_at IS NULL)
"""

GONE = "no longer at the source; "
"""How the detail of an entry begins that left quarantine without being stored."""


@dataclass(frozen=True, slots=True)
class QuarantineEntry:
    """An entry of quarantine without its payload. ``window`` is that of the batch that last met it, None
    where that is unknown; ``run_id`` is the run of that batch."""

    quarantine_id: int
    repo_id: int
    job_type: JobType
    natural_key: str
    reason: str
    detail: str
    payload_bytes: int
    batch_id: int | None
    run_id: UUID | None
    window: Window | None
    seen: int
    created_at: datetime
    last_seen_at: datetime
    resolved_at: datetime | None


def quarantine(
    conn: Connection, *, repo_id: int, job_type: JobType, batch_id: int, rows: Iterable[QuarantinedRow]
) -> int:
    """Put rows into quarantine; a row that is there already is updated. Returns how many came."""
    number = 0
    for row in rows:
        number += 1
        conn.execute(
            _QUARANTINE,
            {
                "repo_id": repo_id,
                "job_type": str(job_type),
                "natural_key": row.natural_key,
                "reason": row.reason,
                "detail": row.detail,
                "payload": row.payload,
                "batch_id": batch_id,
            },
        )
    return number


def defer(conn: Connection, *, repo_id: int, job_type: JobType, fetches: Iterable[DeferredFetch]) -> None:
    """Record details that could not be read. One that is recorded already waits longer each time."""
    for item in fetches:
        conn.execute(
            _DEFER,
            {
                "repo_id": repo_id,
                "job_type": str(job_type),
                "natural_key": item.natural_key,
                "detail": item.detail,
                "error": item.error,
            },
        )


def due(conn: Connection, repo_id: int, job_type: JobType, limit: int) -> list[DeferredFetch]:
    """At most ``limit`` fetches whose next try has come, the longest waiting first."""
    params = {"repo_id": repo_id, "job_type": str(job_type), "limit": limit}
    return [DeferredFetch(**row) for row in conn.execute(_DUE, params)]


def entries(
    conn: Connection,
    *,
    ids: Sequence[int] | None = None,
    repo_id: int | None = None,
    job_type: JobType | None = None,
    reason: str | None = None,
    resolved: bool = False,
    limit: int | None = None,
) -> tuple[list[QuarantineEntry], int]:
    """Entries of quarantine that fit every filter, the latest met first, at most ``limit``; and how many fit
    in all. Those that were stored after all only with ``resolved``."""
    params = {
        "ids": None if ids is None else list(ids),
        "repo_id": repo_id,
        "job_type": None if job_type is None else str(job_type),
        "reason": reason,
        "resolved": resolved,
        "limit": limit,
    }
    rows = conn.execute(_ENTRIES, params).fetchall()
    return [_entry(row) for row in rows], rows[0]["total"] if rows else 0


def _entry(row: dict[str, Any]) -> QuarantineEntry:
    values = {name: row[name] for name in row if name in QuarantineEntry.__dataclass_fields__}
    window = from_ranges(row["revs"], row["period"])
    return QuarantineEntry(**values | {"job_type": JobType(row["job_type"]), "window": window})


def payload_of(conn: Connection, quarantine_id: int) -> bytes:
    """The row as received, after redaction; empty where the entry is none."""
    row = conn.execute(_PAYLOAD, {"id": quarantine_id}).fetchone()
    return bytes(row["payload"]) if row is not None else b""


def resolve(conn: Connection, ids: Sequence[int]) -> None:
    """These entries leave quarantine although nothing was stored: their rows are no longer at the source."""
    conn.execute(_RESOLVE, {"ids": list(ids), "gone": GONE})


def settle(
    conn: Connection,
    repo_id: int,
    job_type: JobType,
    keys: Iterable[str],
    fetched: Iterable[tuple[str, str]] = (),
) -> None:
    """Take these keys out of quarantine. End the deferred fetches of what was ``fetched``: pairs of a key and
    a detail."""
    found = recordset({"natural_key": key, "detail": detail} for key, detail in fetched)
    params = {"repo_id": repo_id, "job_type": str(job_type), "keys": list(keys), "fetched": found}
    conn.execute(_SETTLE, params)


def settle_gone(
    conn: Connection, repo_id: int, job_types: Sequence[JobType], keys: Sequence[int | str]
) -> None:
    """End the deferred fetches and the quarantine of rows that are gone from their source. The key of a
    merge request is its number, and stands for all that belongs to it."""
    if not keys:
        return
    params = {
        "repo_id": repo_id,
        "job_types": [str(one) for one in job_types],
        "keys": [str(key) for key in keys],
        "gone": GONE,
    }
    conn.execute(_SETTLE_DEFERRED, params)
    conn.execute(_SETTLE_ASIDE, params)


def settle_unstored(
    conn: Connection, *, repo_id: int, job_type: JobType, iid: int, looks: int, time: timedelta
) -> None:
    """The source says now that there is no such merge request. Its deferred fetches end if it is not stored
    and it was requested ``looks`` times, over ``time`` at least."""
    params = {"repo_id": repo_id, "job_type": str(job_type), "iid": iid, "looks": looks, "time": time}
    if conn.execute(_UNSTORED, params).fetchone() is not None:
        settle_gone(conn, repo_id, [job_type], [iid])


def open_keys(conn: Connection, repo_id: int, job_type: JobType) -> set[str]:
    """The keys of everything of an asset that is in quarantine."""
    rows = conn.execute(_OPEN_KEYS, {"repo_id": repo_id, "job_type": str(job_type)})
    return {row["natural_key"] for row in rows}
