"""Quarantine and obligations: what could not be stored, and what is still owed.

Belongs here: writing both in the batch's transaction, and finding the obligations that are due. They are
resolved by the module that stores the row or the detail after all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sync_pipeline.model import JobType, Obligation, QuarantinedRow
from sync_pipeline.store.database import Connection

_QUARANTINE = """
INSERT INTO scm.quarantine AS q (repo_id, job_type, natural_key, reason, detail, payload, batch_id)
VALUES (%(repo_id)s, %(job_type)s, %(natural_key)s, %(reason)s, left(%(detail)s, 2000), %(payload)s,
        %(batch_id)s)
ON CONFLICT (repo_id, job_type, natural_key) WHERE resolved_at IS NULL DO UPDATE
   SET reason = EXCLUDED.reason, detail = EXCLUDED.detail, payload = EXCLUDED.payload,
       batch_id = EXCLUDED.batch_id, seen = q.seen + 1, last_seen_at = now()
"""

# Met again: the next try waits longer each time, a day at most.
_OWE = """
INSERT INTO scm.obligations AS o (repo_id, job_type, natural_key, detail, last_error)
VALUES (%(repo_id)s, %(job_type)s, %(natural_key)s, %(detail)s, left(%(error)s, 2000))
ON CONFLICT (repo_id, job_type, natural_key, detail) WHERE resolved_at IS NULL DO UPDATE
   SET attempts = o.attempts + 1, last_error = EXCLUDED.last_error,
       not_before = now() + least(interval '1 day', interval '1 minute' * power(2, least(o.attempts, 12)))
"""

_DUE = """
SELECT natural_key, detail FROM scm.obligations
 WHERE repo_id = %(repo_id)s AND job_type = %(job_type)s AND resolved_at IS NULL AND not_before <= now()
 ORDER BY not_before
 LIMIT %(limit)s
"""


@dataclass(frozen=True, slots=True)
class Due:
    """A detail that is to be read now."""

    natural_key: str
    detail: str


def quarantine(
    conn: Connection, *, repo_id: int, job_type: JobType, batch_id: int, rows: Iterable[QuarantinedRow]
) -> int:
    """Set rows aside; a row that is there already is updated. Returns how many came."""
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


def owe(conn: Connection, *, repo_id: int, job_type: JobType, obligations: Iterable[Obligation]) -> None:
    """Write down details that could not be read; one that is owed already waits longer."""
    for item in obligations:
        conn.execute(
            _OWE,
            {
                "repo_id": repo_id,
                "job_type": str(job_type),
                "natural_key": item.natural_key,
                "detail": item.detail,
                "error": item.error,
            },
        )


def due(conn: Connection, repo_id: int, job_type: JobType, limit: int) -> list[Due]:
    """At most ``limit`` obligations whose next try has come, the longest waiting first."""
    params = {"repo_id": repo_id, "job_type": str(job_type), "limit": limit}
    return [Due(r["natural_key"], r["detail"]) for r in conn.execute(_DUE, params)]
