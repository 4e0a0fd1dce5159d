-- Statements of sync_pipeline/ledger/resync.py. They read the facts that decide which assets are read
-- again.

-- name: units
-- Lists assets that may be read again. They are active and readable. ``reason`` selects the jobs of one
-- kind of rereading.
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

-- name: take_lock
-- Makes two processes decide one after the other, so that the second sees the queued jobs.
SELECT pg_advisory_xact_lock(%(lock)s)
