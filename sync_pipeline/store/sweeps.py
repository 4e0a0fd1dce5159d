"""The progress of the reconcile schedule, and the snapshot from which it plans.

Belongs here: ``scm.sweeps``, the snapshot query over catalog, coverage and open differences, and the
figures that the fleet-wide asset shows. Does not belong here: any decision;
that is :mod:`sync_pipeline.policy.reconcile_schedule`. Results and differences are written by
:mod:`sync_pipeline.store.reconciliations`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sync_pipeline.model import JobType
from sync_pipeline.store.database import Connection
from sync_pipeline.store.windows import from_multiranges

_NOW = "SELECT now() AS now"

# Every asset with its coverage, its progress in the rolling scan and its open differences. An open difference
# is due if a repair ended since it was seen last. So is one that is gone at the source and not believed to be
# yet, each so often that the last check comes when time is up. Jobs of repair count since the oldest open
# difference was found.
_ASSETS = """
WITH found AS (
    SELECT d.repo_id, d.job_type, count(*) AS open, min(d.found_at) AS found_at,
           count(*) FILTER (WHERE d.repairs >= %(repairs)s) AS escalated
      FROM scm.discrepancies AS d
     WHERE d.resolved_at IS NULL
     GROUP BY d.repo_id, d.job_type
), repaired AS (
    SELECT f.*, j.ended_at, j.died_at, coalesce(j.active, FALSE) AS active
      FROM found AS f
      LEFT JOIN LATERAL (
           SELECT max(finished_at) FILTER (WHERE status = 'completed') AS ended_at,
                  max(finished_at) FILTER (WHERE status = 'dead') AS died_at,
                  bool_or(status IN ('pending', 'running', 'failed')) AS active
             FROM scm.sync_jobs
            WHERE repo_id = f.repo_id AND job_type = f.job_type AND heals AND created_at >= f.found_at
           ) AS j ON TRUE
), due AS (
    SELECT d.repo_id, d.job_type, d.revs, d.period,
           row_number() OVER (PARTITION BY d.repo_id, d.job_type
                              ORDER BY d.last_seen_at, d.discrepancy_id) AS number
      FROM scm.discrepancies AS d
      JOIN repaired AS r USING (repo_id, job_type)
     WHERE d.resolved_at IS NULL
       AND ((d.repairs > 0 AND r.ended_at > d.last_seen_at)
            OR (d.kind = 'extra' AND d.repairs = 0
                AND d.last_seen_at <= now() - make_interval(secs => %(look_again)s)
                AND (d.looks < %(looks)s OR d.found_at > now() - make_interval(secs => %(believed)s))))
), places AS (
    SELECT repo_id, job_type, bool_or(num_nonnulls(revs, period) = 0) AS anywhere,
           range_agg(revs) FILTER (WHERE revs IS NOT NULL) AS revs,
           range_agg(period) FILTER (WHERE period IS NOT NULL) AS period
      FROM due
     WHERE number <= %(places)s
     GROUP BY repo_id, job_type
), probing AS (
    SELECT DISTINCT repo_id, job_type FROM scm.sync_jobs
     WHERE status = 'running' AND mode = 'probe' AND claim_expires_at > now()
)
SELECT w.repo_id, w.job_type, r.kind, r.instance, r.lifecycle, w.access, w.visited_at,
       w.watermark_rev, w.watermark_time, lower(w.covered_revs) AS covered_rev,
       lower(w.covered_time) AS covered_time,
       coalesce(f.open, 0) AS open, coalesce(f.escalated, 0) AS escalated, f.found_at,
       coalesce(f.active, FALSE) AS repairing, f.died_at AS repair_died_at,
       coalesce(p.anywhere, FALSE) AS anywhere, p.revs, p.period, b.repo_id IS NOT NULL AS probed,
       s.next_rev, s.next_time, s.round_began_at, s.round_ended_at, coalesce(s.round_rows, 0) AS round_rows,
       coalesce(s.round_done, 0) AS round_done, s.history_at, s.recent_at, s.places_at
  FROM scm.sync_watermarks AS w
  JOIN scm.repos AS r USING (repo_id)
  LEFT JOIN scm.sweeps AS s USING (repo_id, job_type)
  LEFT JOIN repaired AS f USING (repo_id, job_type)
  LEFT JOIN places AS p USING (repo_id, job_type)
  LEFT JOIN probing AS b USING (repo_id, job_type)
 ORDER BY w.repo_id, w.job_type
"""

# Requests of all comparisons, by a schedule or a person, in this hour and in the one before.
_SENT = """
SELECT r.instance,
       coalesce(sum(c.calls) FILTER (WHERE c.hour = date_trunc('hour', now())), 0)::bigint AS now,
       coalesce(sum(c.calls) FILTER (WHERE c.hour < date_trunc('hour', now())), 0)::bigint AS before
  FROM (SELECT run_id, repo_id, max(calls) AS calls, date_trunc('hour', max(compared_at)) AS hour
          FROM scm.reconciliations
         WHERE compared_at >= date_trunc('hour', now()) - interval '1 hour'
         GROUP BY run_id, repo_id) AS c
  JOIN scm.repos AS r USING (repo_id)
 GROUP BY r.instance
"""

# A task of this kind started.
_STARTED = """
INSERT INTO scm.sweeps AS s (repo_id, job_type, places_at, recent_at, history_at)
VALUES (%(repo_id)s, %(job_type)s,
        CASE WHEN %(why)s = 'places' THEN now() END,
        CASE WHEN %(why)s = 'recent' THEN now() END,
        CASE WHEN %(why)s = 'history' THEN now() END)
ON CONFLICT (repo_id, job_type) DO UPDATE
   SET places_at = coalesce(EXCLUDED.places_at, s.places_at),
       recent_at = coalesce(EXCLUDED.recent_at, s.recent_at),
       history_at = coalesce(EXCLUDED.history_at, s.history_at)
"""

# A round begins: its rows are counted now.
_BEGIN = """
UPDATE scm.sweeps
   SET round_began_at = now(), round_rows = %(rows)s, round_done = 0, next_rev = NULL, next_time = NULL
 WHERE repo_id = %(repo_id)s AND job_type = %(job_type)s
"""

# The round got so far, or to its end.
_MOVE = """
UPDATE scm.sweeps
   SET next_rev = %(next_rev)s, next_time = %(next_time)s, round_done = round_done + %(rows)s,
       round_ended_at = CASE WHEN %(ends)s THEN now() ELSE round_ended_at END
 WHERE repo_id = %(repo_id)s AND job_type = %(job_type)s
"""

# Whether a repair of it waits or runs.
_REPAIRING = """
SELECT EXISTS (SELECT FROM scm.sync_jobs
                WHERE repo_id = %(repo_id)s AND job_type = %(job_type)s AND mode = 'repair' AND heals
                  AND status IN ('pending', 'running', 'failed')) AS repairing
"""

# The differences of the fleet.
_OPEN = """
SELECT count(*) FILTER (WHERE resolved_at IS NULL) AS open,
       count(*) FILTER (WHERE resolved_at IS NULL AND repairs >= %(repairs)s) AS escalated,
       count(*) FILTER (WHERE resolved_at IS NULL AND kind = 'extra' AND repairs = 0) AS waiting,
       count(*) FILTER (WHERE outcome = 'deleted') AS tombstones
  FROM scm.discrepancies
"""

# Rows that differed, by the day on which a comparison saw them.
_BY_DAY = """
SELECT compared_at::date AS day, sum(missing)::bigint AS missing, sum(extra)::bigint AS extra,
       sum(changed)::bigint AS changed
  FROM scm.reconciliations
 WHERE compared_at >= date_trunc('day', now()) - make_interval(days => %(days)s)
 GROUP BY compared_at::date
 ORDER BY compared_at::date
"""


@dataclass(frozen=True, slots=True)
class ReconcileRows:
    """The rows of one plan. ``now`` is the database's clock. ``assets`` have the columns of the first query
    above, with ``watermark``, ``covered_from`` and ``next`` in place of pairs of columns, and ``places`` as
    windows. ``sent`` are requests of comparisons by instance: those of this hour, and of the one before."""

    now: datetime
    assets: list[dict[str, Any]]
    sent: dict[str, tuple[int, int]]


def snapshot(
    conn: Connection,
    *,
    repairs: int,
    looks: int,
    believed: float,
    places: int = 200,
) -> ReconcileRows:
    """The data of a plan, read at one moment.

    A difference is left to a person after so many ``repairs``. A row has to be gone in ``looks`` comparisons
    and for ``believed`` seconds. At most so many ``places`` of an asset are due, first those that were not
    compared for the longest time.
    """
    params = {
        "repairs": repairs,
        "looks": looks,
        "believed": believed,
        "look_again": believed / max(1, looks - 1),
        "places": places,
    }
    with conn.transaction():
        now = conn.execute(_NOW).fetchone()
        assert now is not None
        assets = conn.execute(_ASSETS, params).fetchall()
        sent = {row["instance"]: (row["now"], row["before"]) for row in conn.execute(_SENT)}
    for asset in assets:
        for name, first, second in (
            ("watermark", "watermark_rev", "watermark_time"),
            ("covered_from", "covered_rev", "covered_time"),
            ("next", "next_rev", "next_time"),
        ):
            revision, moment = asset.pop(first), asset.pop(second)
            asset[name] = moment if revision is None else revision
        asset["places"] = from_multiranges(asset.pop("revs") or (), asset.pop("period") or ())
    return ReconcileRows(now["now"], assets, sent)


def mark_started(conn: Connection, repo_id: int, job_type: JobType, why: str) -> None:
    """A task of the kind ``why`` starts now, whatever its result."""
    conn.execute(_STARTED, {"repo_id": repo_id, "job_type": str(job_type), "why": why})


def begin(conn: Connection, repo_id: int, job_type: JobType, rows: int) -> None:
    """A round over ``rows`` stored rows begins. Its task was marked as started before."""
    conn.execute(_BEGIN, {"repo_id": repo_id, "job_type": str(job_type), "rows": rows})


def move(
    conn: Connection, repo_id: int, job_type: JobType, next: int | datetime | None, *, rows: int
) -> None:
    """The round got to ``next``, over ``rows`` more stored rows; None: it is at its end."""
    conn.execute(
        _MOVE,
        {
            "repo_id": repo_id,
            "job_type": str(job_type),
            "next_rev": next if isinstance(next, int) else None,
            "next_time": next if isinstance(next, datetime) else None,
            "rows": rows,
            "ends": next is None,
        },
    )


def is_repairing(conn: Connection, repo_id: int, job_type: JobType) -> bool:
    """True if a repair of differences waits or runs."""
    row = conn.execute(_REPAIRING, {"repo_id": repo_id, "job_type": str(job_type)}).fetchone()
    assert row is not None
    return bool(row["repairing"])


def totals(conn: Connection, *, repairs: int) -> dict[str, int]:
    """How many differences are ``open``, ``escalated`` among them and ``waiting`` until a deletion is
    believed, and how many ``tombstones`` came of others."""
    row = conn.execute(_OPEN, {"repairs": repairs}).fetchone()
    assert row is not None
    return dict(row)


def mismatches_by_day(conn: Connection, days: int) -> list[dict[str, Any]]:
    """Rows that differed on each of the last ``days`` days that have any comparison: ``day``, ``missing``,
    ``extra``, ``changed``."""
    return conn.execute(_BY_DAY, {"days": days}).fetchall()
