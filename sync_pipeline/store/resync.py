"""What is known about each (repository, job type) when it is decided whether it is read again.

Belongs here: one query, and the lock that makes two who decide harmless. Does not belong here: the decision
(:mod:`sync_pipeline.policy.resync`); the jobs are made by :mod:`sync_pipeline.store.jobs`.
"""

from __future__ import annotations

from typing import Any

from sync_pipeline.store.database import Connection

_LOCK = 0x5C3_0007

# What may be read again: active and readable. ``reason`` tells the jobs of one kind of rereading from others.
_UNITS = """
SELECT w.repo_id, w.job_type, r.kind, r.url, r.project_id, r.instance, r.tenant, w.watermark_rev,
       w.watermark_time, mine.queued_at, coalesce(mine.open, FALSE) AS open, ran.failed_at, ran.succeeded_at
  FROM scm.sync_watermarks AS w
  JOIN scm.repos AS r USING (repo_id)
 CROSS JOIN LATERAL (
       SELECT max(j.created_at) AS queued_at,
              bool_or(j.status IN ('pending', 'running', 'failed')) AS open
         FROM scm.sync_jobs AS j
        WHERE j.repo_id = w.repo_id AND j.job_type = w.job_type AND j.mode = 'backfill' AND j.reread
          AND j.reason = %(reason)s) AS mine
 CROSS JOIN LATERAL (
       SELECT max(s.finished_at) FILTER (WHERE s.status = 'failed') AS failed_at,
              max(s.finished_at) FILTER (WHERE s.status IN ('completed', 'no_data')) AS succeeded_at
         FROM scm.sync_runs AS s
        WHERE s.repo_id = w.repo_id AND s.job_type = w.job_type AND s.mode = 'incremental'
          AND s.started_at > now() - make_interval(hours => 24) - make_interval(secs => %(look_back)s)) AS ran
 WHERE r.lifecycle = 'active' AND w.access IN ('ok', 'archived', 'pending_deletion', 'moved')
 ORDER BY w.repo_id, w.job_type
"""

# One decides after the other, so that the second sees what the first has queued.
_TAKE_LOCK = "SELECT pg_advisory_xact_lock(%(lock)s)"


def assets(conn: Connection, reason: str, look_back: float) -> list[dict[str, Any]]:
    """The rows of every (repository, job type) that may be read, with ``watermark`` in place of the two
    columns; runs of the last ``look_back`` seconds are looked at, and a day more."""
    rows = conn.execute(_UNITS, {"reason": reason, "look_back": look_back}).fetchall()
    for row in rows:
        revision, moment = row.pop("watermark_rev"), row.pop("watermark_time")
        row["watermark"] = moment if revision is None else revision
    return rows


def lock(conn: Connection) -> None:
    """Be the only one who decides until the caller's transaction ends."""
    conn.execute(_TAKE_LOCK, {"lock": _LOCK})
