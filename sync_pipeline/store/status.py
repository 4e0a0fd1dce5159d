"""What the status report tells beyond the facts behind the verdicts.

Belongs here: one query over every (repository, job type), one over the jobs and one over those at work. What
is missing, and the verdict, come from :mod:`sync_pipeline.store.health` by way of
:mod:`sync_pipeline.quality.health`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sync_pipeline.store.database import Connection
from sync_pipeline.store.jobs import GIVEN_UP, SETTLED
from sync_pipeline.store.windows import from_multiranges

# One row per (repository, job type): the covered range with the origin, what tells whether a visit is due,
# and the latest attempt at any job that reads; comparisons have results of their own.
_UNITS = """
SELECT w.repo_id, w.job_type, r.kind, r.url, r.project_id, r.project_path, r.instance, r.tenant, r.slug,
       r.instance_slug, r.lifecycle, r.created_at AS registered_at, w.origin_rev, w.origin_time,
       w.activity_at, h.head_rev AS hint_head, h.activity_at AS hint_activity_at,
       h.observed_at AS hint_at, h.error_code IS NOT NULL AS hint_failed, d.listed_at, d.listed_down_to,
       (SELECT lower(covered) FROM unnest(w.covered_revs) AS covered
         WHERE covered @> w.origin_rev) AS covered_from_rev,
       (SELECT lower(covered) FROM unnest(w.covered_time) AS covered
         WHERE covered @> w.origin_time) AS covered_from_time,
       coalesce((SELECT range_agg(covered) FROM unnest(w.covered_revs) AS covered
                  WHERE NOT covered @> w.origin_rev), '{}') AS apart_revs,
       coalesce((SELECT range_agg(covered) FROM unnest(w.covered_time) AS covered
                  WHERE NOT covered @> w.origin_time), '{}') AS apart_time,
       run.mode AS run_mode, run.status AS run_status, run.started_at AS run_started_at,
       run.finished_at AS run_finished_at, run.rows_read AS run_read, run.inserted AS run_inserted,
       run.updated AS run_updated, run.unchanged AS run_unchanged, run.poorer AS run_poorer,
       run.quarantined AS run_quarantined, run.calls AS run_calls, run.error_code AS run_error_code,
       run.error AS run_error, run.dagster_run_id AS run_dagster_run_id
  FROM scm.sync_watermarks AS w
  JOIN scm.repos AS r USING (repo_id)
  LEFT JOIN scm.sync_hints AS h USING (repo_id)
  LEFT JOIN scm.discovery_roots AS d ON d.root_id = r.root_id AND d.lifecycle = 'active'
  LEFT JOIN LATERAL (
       SELECT s.mode, s.status, s.started_at, s.finished_at, s.rows_read, s.inserted, s.updated, s.unchanged,
              s.poorer, s.quarantined, s.calls, s.error_code, s.error, s.dagster_run_id
         FROM scm.sync_runs AS s
        WHERE s.repo_id = w.repo_id AND s.job_type = w.job_type AND s.mode <> 'probe'
        ORDER BY s.started_at DESC
        LIMIT 1) AS run ON TRUE
 WHERE %(repo_ids)s::bigint[] IS NULL OR w.repo_id = ANY (%(repo_ids)s)
"""

# How many jobs there are, without dead ones that need nobody, and how many of them read a window: where they
# wait, these are queued history. Live syncing that failed waits for its next attempt.
_JOBS = (
    """
SELECT repo_id, job_type, status, count(*) AS jobs,
       count(*) FILTER (WHERE revs IS NOT NULL OR period IS NOT NULL) AS with_window,
       max(not_before) FILTER (WHERE mode = 'incremental' AND status = 'failed' AND not_before > now())
           AS retry_at
  FROM scm.sync_jobs AS j
 WHERE (%(repo_ids)s::bigint[] IS NULL OR repo_id = ANY (%(repo_ids)s))
   -- A comparison that failed needs nobody: the next one tells.
   AND NOT (mode = 'probe' AND status = 'dead')
   AND NOT """
    + SETTLED
    + """
 GROUP BY repo_id, job_type, status
"""
)

# The jobs that somebody has claimed, with the owner; ``claimed`` is False once the claim has run out.
_RUNNING = """
SELECT repo_id, job_type, job_id, mode, attempts, claimed_by, claimed_at, claim_expires_at,
       claim_expires_at > now() AS claimed
  FROM scm.sync_jobs
 WHERE status = 'running' AND (%(repo_ids)s::bigint[] IS NULL OR repo_id = ANY (%(repo_ids)s))
 ORDER BY claimed_at, job_id
"""


def assets(conn: Connection, repo_ids: Sequence[int] | None = None) -> list[dict[str, Any]]:
    """The rows of these repositories, or of all; ``apart`` is what is covered beside the range
    with the origin; the columns ``run_...`` are NULL where nothing ran yet."""
    rows = conn.execute(_UNITS, _params(repo_ids)).fetchall()
    for row in rows:
        row["apart"] = from_multiranges(row.pop("apart_revs"), row.pop("apart_time"))
    return rows


def jobs(conn: Connection, repo_ids: Sequence[int] | None = None) -> list[dict[str, Any]]:
    """Number of jobs per (repository, job type, status); ``with_window`` counts those that read one, and
    ``retry_at`` is when the incremental one is tried again, None where it need not wait."""
    return conn.execute(_JOBS, _params(repo_ids) | {"given_up": list(GIVEN_UP)}).fetchall()


def running(conn: Connection, repo_ids: Sequence[int] | None = None) -> list[dict[str, Any]]:
    """The jobs at work and their owners, the one that has been longest at it first."""
    return conn.execute(_RUNNING, _params(repo_ids)).fetchall()


def _params(repo_ids: Sequence[int] | None) -> dict[str, Any]:
    return {"repo_ids": None if repo_ids is None else list(repo_ids)}
