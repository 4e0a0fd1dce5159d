-- Statements of sync_pipeline/ledger/runs.py. They read attempts and their batches for a person
-- (``scm.sync_runs`` and ``scm.sync_batches``).

-- name: runs
-- Lists attempts with their jobs, newest first.
SELECT r.run_id, r.job_id, r.attempt, r.repo_id, r.job_type, r.mode, r.status, r.started_at, r.finished_at,
       r.worker, r.dagster_run_id, r.rows_read, r.inserted, r.updated, r.unchanged, r.regressed, r.quarantined,
       r.batches, r.calls, r.error_code, r.error, r.notice, r.code_version, j.revs, j.period, j.trigger, j.actor,
       j.reason, j.from_raw,
       extract(epoch FROM coalesce(r.finished_at, clock_timestamp()) - r.started_at)::float8 AS seconds
  FROM scm.sync_runs AS r
  JOIN scm.sync_jobs AS j USING (job_id)
 WHERE (%(run_id)s::uuid IS NULL OR r.run_id = %(run_id)s)
   AND (%(dagster_run_id)s::text IS NULL OR r.dagster_run_id = %(dagster_run_id)s)
   AND (%(repo_id)s::bigint IS NULL OR r.repo_id = %(repo_id)s)
   AND (%(job_type)s::text IS NULL OR r.job_type = %(job_type)s)
 ORDER BY r.started_at DESC, r.run_id
 LIMIT %(limit)s

-- name: batches
-- Lists batches in the order in which they were written.
SELECT batch_id, run_id, batch_no, job_type, fence, revs, period, covers, rows_read, inserted, updated,
       unchanged, regressed, quarantined, deferred AS owed, position, first_key, last_key, read_time, calls, seconds,
       committed_at
  FROM scm.sync_batches
 WHERE (%(batch_id)s::bigint IS NULL OR batch_id = %(batch_id)s)
   AND (%(run_ids)s::uuid[] IS NULL OR run_id = ANY (%(run_ids)s))
 ORDER BY run_id, batch_no
 LIMIT %(limit)s

-- name: exists_batch
-- Returns whether a deleted run or batch existed, because events of coverage still name it.
SELECT 1 FROM scm.sync_watermark_events WHERE run_id = %(run_id)s OR batch_id = %(batch_id)s LIMIT 1

-- name: begun
-- Lists the jobs with an attempt that began since a given time.
SELECT DISTINCT job_id FROM scm.sync_runs
 WHERE repo_id = %(repo_id)s AND job_type = %(job_type)s AND mode = %(mode)s AND started_at >= %(since)s

-- name: pace
-- The largest runs of a month tell the pace of much work; idle looks only how long a look takes. Those of the
-- repository itself come first, then its neighbours on the same server.
SELECT sum(seconds)::float8 / nullif(sum(rows_read), 0) AS seconds_per_row
  FROM (SELECT s.rows_read, extract(epoch FROM s.finished_at - s.started_at) AS seconds
          FROM scm.sync_runs AS s
          JOIN scm.repos AS r USING (repo_id)
         WHERE r.instance = (SELECT instance FROM scm.repos WHERE repo_id = %(repo_id)s)
           AND s.job_type = %(job_type)s AND s.status = 'completed' AND s.calls > 0 AND s.rows_read > 0
           AND s.started_at > now() - interval '30 days'
         ORDER BY s.repo_id = %(repo_id)s DESC, s.rows_read DESC
         LIMIT 5) AS largest
