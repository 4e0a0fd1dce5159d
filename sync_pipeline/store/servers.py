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
INSERT INTO scm.server_failures AS s (instance, kind, error_code, error, confirmed_at)
VALUES (%(instance)s, %(kind)s, %(error_code)s, left(%(error)s, 2000),
        CASE WHEN %(was_patient)s THEN now() END)
ON CONFLICT (instance, kind) DO UPDATE
   SET error_code = EXCLUDED.error_code, error = EXCLUDED.error, failures = s.failures + 1,
       observed_at = EXCLUDED.observed_at, confirmed_at = coalesce(EXCLUDED.confirmed_at, s.confirmed_at)
"""

# A server that is about to be looked at: only short looks timed out so far.
_IS_DOUBTED = """
SELECT EXISTS (SELECT FROM scm.server_failures
                WHERE instance = %(instance)s AND kind = %(kind)s AND error_code = 'timeout'
                  AND confirmed_at IS NULL) AS is_doubted
"""

# The server answers again.
_ANSWERED = "DELETE FROM scm.server_failures WHERE instance = %(instance)s AND kind = %(kind)s"

# The servers that do not answer and that an active repository is on, with the number of these repositories.
# Looks have little time, so they time out at a server that is healthy and slow. Their time-outs are believed
# once a patient look, or live syncing, ended without an answer too, and until live syncing gets one.
_FAILING = """
SELECT s.instance, s.kind, s.error_code, s.error, s.failures, s.failed_at, s.observed_at,
       count(*) AS repositories,
       s.error_code <> 'timeout'
       OR (s.confirmed_at IS NOT NULL AND NOT EXISTS (
            SELECT FROM scm.sync_runs AS run
              JOIN scm.repos AS live USING (repo_id)
             WHERE live.instance = s.instance AND live.kind = s.kind AND run.mode = 'incremental'
               AND run.status IN ('completed', 'no_data') AND run.finished_at >= s.confirmed_at))
       OR coalesce((
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
    active ones on it. ``is_confirmed`` is False for time-outs that neither a patient look nor live syncing
    shares."""

    instance: str
    kind: Kind
    error_code: str
    error: str
    failures: int
    failed_at: datetime
    observed_at: datetime
    repositories: int
    is_confirmed: bool


def record_failure(
    conn: Connection, instance: str, kind: Kind, error_code: str, error: str, *, was_patient: bool = False
) -> None:
    """Write down that a look at a server got no usable answer. ``was_patient``: it waited several times as
    long as usual."""
    params = {"instance": instance, "kind": str(kind), "error_code": error_code, "error": error}
    conn.execute(_FAILED, params | {"was_patient": was_patient})


def is_doubted(conn: Connection, instance: str, kind: Kind) -> bool:
    """True if short looks at the server timed out, and no patient one has said yet whether it answers."""
    row = conn.execute(_IS_DOUBTED, {"instance": instance, "kind": str(kind)}).fetchone()
    return row is not None and bool(row["is_doubted"])


def record_answer(conn: Connection, instance: str, kind: Kind) -> None:
    """Write down that a server answers."""
    conn.execute(_ANSWERED, {"instance": instance, "kind": str(kind)})


def failing(conn: Connection) -> list[ServerFailure]:
    """The servers that do not answer, by name."""
    return [ServerFailure(**{**row, "kind": Kind(row["kind"])}) for row in conn.execute(_FAILING).fetchall()]
