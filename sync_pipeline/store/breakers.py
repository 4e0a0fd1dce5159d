"""The circuit breakers as they were last stored.

Belongs here: ``scm.breakers`` and ``scm.breaker_events``. When one opens and closes is decided in
:mod:`sync_pipeline.policy.breaker`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sync_pipeline.store.database import Connection

# Read by every plan and by the status report.
_ALL = """
SELECT scope, key, state, since, opened_at, failure_rate, rate_limit_rate, timeout_rate, samples, judged_upto,
       half_open_successes, reason, updated_at
  FROM scm.breakers
 ORDER BY scope, key
"""

# The state before the change goes into the history, where it is another one.
_SAVE = """
WITH before AS (
    SELECT coalesce((SELECT state FROM scm.breakers WHERE scope = %(scope)s AND key = %(key)s),
                    'closed') AS state
), saved AS (
    INSERT INTO scm.breakers AS b (scope, key, state, since, opened_at, failure_rate, rate_limit_rate,
                                   timeout_rate, samples, judged_upto, half_open_successes, reason)
    VALUES (%(scope)s, %(key)s, %(state)s, %(since)s, %(opened_at)s, %(failure_rate)s, %(rate_limit_rate)s,
            %(timeout_rate)s, %(samples)s, %(judged_upto)s, %(half_open_successes)s, left(%(reason)s, 2000))
    ON CONFLICT (scope, key) DO UPDATE
       SET state = EXCLUDED.state, since = EXCLUDED.since, opened_at = EXCLUDED.opened_at,
           failure_rate = EXCLUDED.failure_rate, rate_limit_rate = EXCLUDED.rate_limit_rate,
           timeout_rate = EXCLUDED.timeout_rate, samples = EXCLUDED.samples,
           judged_upto = EXCLUDED.judged_upto, half_open_successes = EXCLUDED.half_open_successes,
           reason = EXCLUDED.reason, updated_at = clock_timestamp()
)
INSERT INTO scm.breaker_events (scope, key, old_state, new_state, reason, actor)
SELECT %(scope)s, %(key)s, before.state, %(state)s, left(coalesce(%(reason)s, 'no reason given'), 2000),
       %(actor)s
  FROM before
 WHERE before.state <> %(state)s
"""

# An operator found the cause: what happened until now is no evidence any more. One that is closed stays as it
# is.
_RESET = """
WITH before AS MATERIALIZED (
    SELECT state FROM scm.breakers WHERE scope = %(scope)s AND key = %(key)s FOR UPDATE
), closed AS (
    UPDATE scm.breakers AS b
       SET state = 'closed', since = clock_timestamp(), failure_rate = 0, rate_limit_rate = 0,
           timeout_rate = 0, samples = 0, judged_upto = NULL, half_open_successes = 0,
           reason = left(%(reason)s, 2000), updated_at = clock_timestamp()
      FROM before
     WHERE b.scope = %(scope)s AND b.key = %(key)s AND before.state <> 'closed'
), told AS (
    INSERT INTO scm.breaker_events (scope, key, old_state, new_state, reason, actor)
    SELECT %(scope)s, %(key)s, before.state, 'closed', left(%(reason)s, 2000), %(actor)s
      FROM before
     WHERE before.state <> 'closed'
)
SELECT state AS old_state FROM before
"""

# What the runs failed of that opened a breaker, the most frequent first.
_ERRORS = """
SELECT s.error_code AS code, count(*) AS runs
  FROM scm.sync_runs AS s
  JOIN scm.repos AS r USING (repo_id)
  JOIN scm.sync_jobs AS j USING (job_id)
 WHERE s.status = 'failed' AND s.mode <> 'probe' AND s.error_code = ANY (%(codes)s)
   AND s.finished_at > %(opened_at)s - make_interval(secs => %(seconds)s) AND s.finished_at <= %(opened_at)s
   AND CASE %(scope)s WHEN 'instance' THEN r.instance = %(key)s WHEN 'tenant' THEN r.tenant = %(key)s
                      WHEN 'pool' THEN j.decision ->> 'pool' = %(key)s ELSE TRUE END
 GROUP BY s.error_code
 ORDER BY runs DESC, code
 LIMIT 3
"""

# What happened lately, newest first.
_EVENTS = """
SELECT scope, key, old_state, new_state, reason, actor, created_at
  FROM scm.breaker_events
 ORDER BY event_id DESC
 LIMIT %(limit)s
"""


@dataclass(frozen=True, slots=True)
class BreakerRow:
    """A breaker as stored; the fields are those of :class:`~sync_pipeline.policy.breaker.Breaker`, rates
    apart."""

    scope: str
    key: str
    state: str
    since: datetime
    opened_at: datetime | None
    failure_rate: float
    rate_limit_rate: float
    timeout_rate: float
    samples: int
    judged_upto: datetime | None
    half_open_successes: int
    reason: str | None
    updated_at: datetime | None = None


def read(conn: Connection) -> list[BreakerRow]:
    """Every breaker that was ever judged; a scope without one is closed."""
    return [BreakerRow(**row) for row in conn.execute(_ALL).fetchall()]


def save(conn: Connection, row: BreakerRow, *, actor: str) -> None:
    """Store a breaker; a change of state becomes an event."""
    params: dict[str, Any] = {name: getattr(row, name) for name in BreakerRow.__slots__}
    conn.execute(_SAVE, params | {"actor": actor})


def reset(conn: Connection, scope: str, key: str, *, actor: str, reason: str) -> str | None:
    """Close a breaker that is not and forget its evidence; returns the state it was in, None if there is no
    such one."""
    row = conn.execute(_RESET, {"scope": scope, "key": key, "actor": actor, "reason": reason}).fetchone()
    return None if row is None else str(row["old_state"])


def errors(
    conn: Connection, row: BreakerRow, codes: Collection[str], seconds: float
) -> Sequence[dict[str, Any]]:
    """What the runs failed of that ended in the ``seconds`` before a breaker last opened: ``code``, one of
    ``codes``, and number of ``runs``, the three most frequent. Nothing for one that never opened."""
    if row.opened_at is None:
        return ()
    params = {
        "scope": row.scope,
        "key": row.key,
        "opened_at": row.opened_at,
        "codes": sorted(codes),
        "seconds": seconds,
    }
    return conn.execute(_ERRORS, params).fetchall()


def events(conn: Connection, limit: int = 20) -> Sequence[dict[str, Any]]:
    """The newest changes of state."""
    return conn.execute(_EVENTS, {"limit": limit}).fetchall()
