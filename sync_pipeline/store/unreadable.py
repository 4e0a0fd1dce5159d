"""Details that a server refuses for every merge request of a repository: one state each, not one per row.

Belongs here: ``scm.unreadable_details``, and which merge requests lack such a detail once it can be read
again. A detail of one merge request that cannot be read is a deferred fetch
(:mod:`sync_pipeline.store.quarantine`). Writes run inside the caller's fenced transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sync_pipeline.model import JobType, Refusal
from sync_pipeline.store import reviews
from sync_pipeline.store.database import Connection

_KNOWN = """
SELECT detail, since, readable_at, error,
       probe_at <= now() OR fingerprint IS DISTINCT FROM %(fingerprint)s AS is_due
  FROM scm.unreadable_details
 WHERE repo_id = %(repo_id)s AND job_type = %(job_type)s
 ORDER BY detail
"""

# A repeated refusal keeps ``since``. Deferred fetches of the detail end, because this one row replaces those
# of each merge request.
_REFUSED = """
INSERT INTO scm.unreadable_details AS u
       (repo_id, job_type, detail, error_code, error, fingerprint, probe_at)
VALUES (%(repo_id)s, %(job_type)s, %(detail)s, %(code)s, left(%(error)s, 2000), %(fingerprint)s,
        now() + %(pause)s)
ON CONFLICT (repo_id, job_type, detail) DO UPDATE
   SET error_code = EXCLUDED.error_code, error = EXCLUDED.error, fingerprint = EXCLUDED.fingerprint,
       probe_at = EXCLUDED.probe_at, readable_at = NULL
"""
_SETTLE = """
UPDATE scm.obligations SET resolved_at = now()
 WHERE repo_id = %(repo_id)s AND job_type = %(job_type)s AND detail = %(detail)s AND resolved_at IS NULL
"""

_POSTPONE = """
UPDATE scm.unreadable_details SET probe_at = now() + %(pause)s, fingerprint = %(fingerprint)s
 WHERE repo_id = %(repo_id)s AND job_type = %(job_type)s AND detail = %(detail)s
"""

_READABLE = """
UPDATE scm.unreadable_details SET readable_at = coalesce(readable_at, now())
 WHERE repo_id = %(repo_id)s AND job_type = %(job_type)s AND detail = %(detail)s
"""

_FORGET = """
DELETE FROM scm.unreadable_details
 WHERE repo_id = %(repo_id)s AND job_type = %(job_type)s AND detail = %(detail)s
"""

# Merge requests whose latest reading lacks the detail; a deferred one is read again on its own. Those that
# were read since the detail can be read are done: they come last, or not at all.
_REVIEWS_WITHOUT = """
SELECT r.mr_iid AS iid
  FROM scm.mr_reviews AS r
  LEFT JOIN scm.mrs AS m ON m.repo_id = r.repo_id AND m.iid = r.mr_iid AND m.replaced_id = 0
 WHERE r.repo_id = %(repo_id)s AND r.replaced_id = 0
   AND NOT r.whole @> ARRAY[%(part)s] AND m.deleted_at IS NULL
   AND (%(again)s OR r.read_at < %(since)s)
   AND NOT EXISTS (SELECT FROM scm.obligations AS o
                    WHERE o.repo_id = r.repo_id AND o.job_type = 'reviews' AND o.detail = %(detail)s
                      AND o.natural_key = r.mr_iid::text AND o.resolved_at IS NULL)
 ORDER BY r.read_at >= %(since)s, r.mr_iid DESC
 LIMIT %(limit)s
"""
_MERGE_REQUESTS_WITHOUT = """
SELECT m.iid
  FROM scm.mrs AS m
 WHERE m.repo_id = %(repo_id)s AND m.deleted_at IS NULL AND m.head_sha IS NOT NULL
   AND (m.children_head, m.children_target) IS DISTINCT FROM (m.head_sha, m.target_branch)
   AND (%(again)s OR m.read_at < %(since)s)
   AND NOT EXISTS (SELECT FROM scm.obligations AS o
                    WHERE o.repo_id = m.repo_id AND o.job_type = 'merge_requests' AND o.detail = %(detail)s
                      AND o.natural_key = m.iid::text AND o.resolved_at IS NULL)
 ORDER BY m.read_at >= %(since)s, m.iid DESC
 LIMIT %(limit)s
"""

# Those that were asked for and did not come do not keep others from being read.
_ASKED_REVIEWS = """
UPDATE scm.mr_reviews SET read_at = now()
 WHERE repo_id = %(repo_id)s AND mr_iid = ANY (%(iids)s) AND replaced_id = 0
"""
_ASKED_MERGE_REQUESTS = """
UPDATE scm.mrs SET read_at = now() WHERE repo_id = %(repo_id)s AND iid = ANY (%(iids)s) AND replaced_id = 0
"""


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
    return {row["detail"]: Unreadable(**row) for row in conn.execute(_KNOWN, params)}


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
    conn.execute(_REFUSED, params)
    conn.execute(_SETTLE, params)


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
    conn.execute(_POSTPONE, params | {"fingerprint": fingerprint, "pause": pause})


def readable(conn: Connection, repo_id: int, job_type: JobType, detail: str) -> None:
    """The detail can be read again; merge requests lack it until :func:`forget`."""
    conn.execute(_READABLE, {"repo_id": repo_id, "job_type": str(job_type), "detail": detail})


def forget(conn: Connection, repo_id: int, job_type: JobType, detail: str) -> None:
    """Every merge request that lacks the detail was read since it can be read, or has it deferred."""
    conn.execute(_FORGET, {"repo_id": repo_id, "job_type": str(job_type), "detail": detail})


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
    query = _REVIEWS_WITHOUT if job_type is JobType.REVIEWS else _MERGE_REQUESTS_WITHOUT
    params = {"repo_id": repo_id, "detail": detail, "part": reviews.part_of(detail), "again": again}
    return [row["iid"] for row in conn.execute(query, params | {"since": since, "limit": limit})]


def mark_asked(conn: Connection, repo_id: int, job_type: JobType, iids: Sequence[int]) -> None:
    """These were asked for, whether they came or not."""
    query = _ASKED_REVIEWS if job_type is JobType.REVIEWS else _ASKED_MERGE_REQUESTS
    conn.execute(query, {"repo_id": repo_id, "iids": list(iids)})
