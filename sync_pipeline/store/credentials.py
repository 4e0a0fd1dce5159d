"""Tokens that a server refused: ``scm.credential_stops``.

Belongs here: stopping a token, clearing it once it is accepted again, and which are stopped. A token is known
by its fingerprint only. Does not belong here: what follows for the plan (:mod:`sync_pipeline.policy`).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sync_pipeline.store.database import Connection

# Remembers that a server refused a token; one that was refused before keeps the time of the first refusal.
_STOP = """
INSERT INTO scm.credential_stops AS s (instance, fingerprint, reason)
VALUES (%(instance)s, %(fingerprint)s, left(%(reason)s, 2000))
ON CONFLICT (instance, fingerprint) DO UPDATE
   SET reason = EXCLUDED.reason, last_seen_at = clock_timestamp()
"""

# The server accepted this token.
_CLEAR = "DELETE FROM scm.credential_stops WHERE instance = %(instance)s AND fingerprint = %(fingerprint)s"

# Every token that is stopped, for the plan and for the health of what depends on it.
_STOPS = """
SELECT instance, fingerprint, reason, stopped_at, last_seen_at
  FROM scm.credential_stops
 ORDER BY instance, fingerprint
"""


# The latest refusal of each server, until a complete look or a reading that began after it: that took another
# token. For those who do not hold the tokens.
_UNANSWERED = """
SELECT DISTINCT ON (s.instance) s.instance, s.fingerprint, s.reason, s.stopped_at, s.last_seen_at
  FROM scm.credential_stops AS s
 WHERE NOT EXISTS (
       SELECT 1 FROM scm.sync_watermarks AS w JOIN scm.repos AS r USING (repo_id)
        WHERE r.kind = 'gitlab' AND r.instance = s.instance AND w.verified_at > s.last_seen_at)
   AND NOT EXISTS (
       SELECT 1 FROM scm.sync_runs AS n JOIN scm.repos AS r USING (repo_id)
        WHERE r.kind = 'gitlab' AND r.instance = s.instance AND n.started_at > s.last_seen_at
          AND n.status IN ('completed', 'no_data') AND n.calls > 0)
 ORDER BY s.instance, s.last_seen_at DESC
"""


@dataclass(frozen=True, slots=True)
class Stop:
    """A token that ``instance`` refused, first at ``stopped_at`` and last at ``last_seen_at`` (UTC, by the
    database's clock). ``reason`` is one redacted line."""

    instance: str
    fingerprint: str
    reason: str
    stopped_at: datetime
    last_seen_at: datetime


def stop(conn: Connection, instance: str, fingerprint: str, reason: str) -> None:
    """Remember that ``instance`` refused the token with this fingerprint just now."""
    conn.execute(_STOP, {"instance": instance, "fingerprint": fingerprint, "reason": reason})


def clear(conn: Connection, instance: str, fingerprint: str) -> bool:
    """The token was accepted; True if it was stopped before."""
    params = {"instance": instance, "fingerprint": fingerprint}
    return conn.execute(_CLEAR, params).rowcount > 0


def stops(conn: Connection) -> list[Stop]:
    """Every token that is stopped, by instance."""
    return [Stop(**row) for row in conn.execute(_STOPS).fetchall()]


def unanswered(conn: Connection) -> list[Stop]:
    """The latest refusal of each server where no complete look came after it, by instance."""
    return [Stop(**row) for row in conn.execute(_UNANSWERED).fetchall()]
