"""Servers that gave no usable answer to the latest look: ``scm.server_failures``.

Belongs here: its rows. Does not belong here: which failures mean that a server is away, and what follows for
the health of its repositories (:mod:`sync_pipeline.quality.health`).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sync_pipeline.model import Kind
from sync_pipeline.store.database import Connection

# One more look that failed.
_FAILED = """
INSERT INTO scm.server_failures AS s (instance, kind, error_code, error)
VALUES (%(instance)s, %(kind)s, %(error_code)s, left(%(error)s, 2000))
ON CONFLICT (instance, kind) DO UPDATE
   SET error_code = EXCLUDED.error_code, error = EXCLUDED.error, failures = s.failures + 1,
       observed_at = EXCLUDED.observed_at
"""

# The server answers again.
_ANSWERED = "DELETE FROM scm.server_failures WHERE instance = %(instance)s AND kind = %(kind)s"

# The servers that do not answer and that an active repository is on, with the number of these repositories.
# Looks have little time, so they time out at a server that is healthy and slow. Their time-outs are believed
# once live syncing, which has more, ended without an answer too, and until it gets one.
_FAILING = """
SELECT s.instance, s.kind, s.error_code, s.error, s.failures, s.failed_at, s.observed_at,
       count(*) AS repositories,
       s.error_code <> 'timeout' OR coalesce((
            SELECT run.status = 'failed'
              FROM scm.sync_runs AS run
              JOIN scm.repos AS live USING (repo_id)
             WHERE live.instance = s.instance AND live.kind = s.kind AND run.mode = 'incremental'
               AND run.status <> 'running' AND run.finished_at >= s.failed_at
               AND (run.status IN ('completed', 'no_data')
                    OR (run.status = 'failed' AND run.error_code IN ('timeout', 'connection')))
             ORDER BY run.finished_at DESC
             LIMIT 1), FALSE) AS is_confirmed
  FROM scm.server_failures AS s
  JOIN scm.repos AS r ON r.instance = s.instance AND r.kind = s.kind AND r.lifecycle = 'active'
 GROUP BY s.instance, s.kind
 ORDER BY s.instance, s.kind
"""


@dataclass(frozen=True, slots=True)
class ServerFailure:
    """A server whose last ``failures`` looks failed, the first at ``failed_at``, the latest at
    ``observed_at`` (UTC, by the database's clock). ``error`` is one redacted line; ``repositories`` are the
    active ones on it. ``is_confirmed`` is False for time-outs that live syncing does not share."""

    instance: str
    kind: Kind
    error_code: str
    error: str
    failures: int
    failed_at: datetime
    observed_at: datetime
    repositories: int
    is_confirmed: bool


def record_failure(conn: Connection, instance: str, kind: Kind, error_code: str, error: str) -> None:
    """Write down that a look at a server got no usable answer."""
    params = {"instance": instance, "kind": str(kind), "error_code": error_code, "error": error}
    conn.execute(_FAILED, params)


def record_answer(conn: Connection, instance: str, kind: Kind) -> None:
    """Write down that a server answers."""
    conn.execute(_ANSWERED, {"instance": instance, "kind": str(kind)})


def failing(conn: Connection) -> list[ServerFailure]:
    """The servers that do not answer, by name."""
    return [ServerFailure(**{**row, "kind": Kind(row["kind"])}) for row in conn.execute(_FAILING).fetchall()]
