-- Statements of sync_pipeline/ledger/retention.py: records of finished work that are older than they are
-- kept: the queries that find and delete them.

-- name: jobs
-- Finished jobs that may go. These stay: the latest of each (repository, job type, mode), also if its latest
-- attempt was at another one; a dead one whose window is still missing, because it needs a person; one whose
-- batch says where a row in quarantine was read; and repairs while differences are open, which they count for.
WITH stays AS (
    (SELECT DISTINCT ON (repo_id, job_type, mode) job_id FROM scm.sync_jobs
      ORDER BY repo_id, job_type, mode, created_at DESC, job_id)
    UNION
    (SELECT DISTINCT ON (repo_id, job_type, mode) job_id FROM scm.sync_jobs
      WHERE status IN ('completed', 'dead')
      ORDER BY repo_id, job_type, mode, created_at DESC, job_id)
    UNION
    (SELECT DISTINCT ON (repo_id, job_type, mode) job_id FROM scm.sync_runs
      ORDER BY repo_id, job_type, mode, started_at DESC)
    UNION
    SELECT r.job_id
      FROM scm.quarantine AS q
      JOIN scm.sync_batches AS b USING (batch_id)
      JOIN scm.sync_runs AS r USING (run_id)
     WHERE q.resolved_at IS NULL
)
SELECT j.job_id, r.runs, r.batches
  FROM scm.sync_jobs AS j
  JOIN scm.sync_watermarks AS w USING (repo_id, job_type)
 CROSS JOIN LATERAL (
       SELECT count(*) AS runs, coalesce(sum(s.batches), 0)::bigint AS batches,
              coalesce(bool_or(s.status = 'running'), FALSE) AS open
         FROM scm.sync_runs AS s WHERE s.job_id = j.job_id) AS r
 WHERE j.status IN ('completed', 'dead')
   AND j.finished_at < clock_timestamp() - make_interval(secs => %(age)s)
   AND NOT r.open
   AND j.job_id NOT IN (SELECT job_id FROM stays)
   AND NOT (j.status = 'dead' AND coalesce(j.last_error_code, '') <> ALL (%(given_up)s)
            AND j.mode IN ('backfill', 'repair') AND j.quarantine_ids IS NULL AND NOT (j.from_raw OR j.only_differences)
            AND NOT coalesce(w.covered_revs @> (j.revs * int8range(1, w.head_rev + 1)),
                             w.covered_time @> j.period, FALSE))
   AND NOT (j.only_differences AND EXISTS (
           SELECT FROM scm.discrepancies AS d
            WHERE d.repo_id = j.repo_id AND d.job_type = j.job_type AND d.resolved_at IS NULL))
 ORDER BY j.finished_at, j.job_id
 LIMIT %(limit)s::bigint

-- name: lock_jobs
-- Somebody may take a dead job up again; one that is looked at this moment has its turn the next time.
SELECT job_id FROM scm.sync_jobs
 WHERE job_id = ANY (%(job_ids)s) AND status IN ('completed', 'dead')
   FOR UPDATE SKIP LOCKED

-- name: delete_batches
DELETE FROM scm.sync_batches AS b USING scm.sync_runs AS r
 WHERE r.run_id = b.run_id AND r.job_id = ANY (%(job_ids)s)

-- name: delete_runs
DELETE FROM scm.sync_runs WHERE job_id = ANY (%(job_ids)s)

-- name: delete_jobs
DELETE FROM scm.sync_jobs WHERE job_id = ANY (%(job_ids)s)

-- name: count_pauses
-- Pauses that somebody ended, or that ended by themselves.
SELECT count(*) AS n FROM scm.pauses
 WHERE least(ended_at, until) < clock_timestamp() - make_interval(secs => %(age)s)

-- name: delete_pauses
DELETE FROM scm.pauses
 WHERE pause_id IN (
       SELECT pause_id FROM scm.pauses
        WHERE least(ended_at, until) < clock_timestamp() - make_interval(secs => %(age)s)
        ORDER BY pause_id LIMIT %(limit)s)

-- name: count_edges
-- Edges of circuit breakers; the latest of each says since when it is as it is.
SELECT count(*) AS n FROM scm.breaker_events AS e
 WHERE created_at < clock_timestamp() - make_interval(secs => %(age)s)
   AND EXISTS (SELECT FROM scm.breaker_events AS later
                WHERE later.scope = e.scope AND later.key = e.key AND later.event_id > e.event_id)

-- name: delete_edges
DELETE FROM scm.breaker_events
 WHERE event_id IN (
       SELECT e.event_id FROM scm.breaker_events AS e
        WHERE created_at < clock_timestamp() - make_interval(secs => %(age)s)
          AND EXISTS (SELECT FROM scm.breaker_events AS later
                       WHERE later.scope = e.scope AND later.key = e.key AND later.event_id > e.event_id)
        ORDER BY e.event_id LIMIT %(limit)s)

-- name: count_differences
-- Differences from a source that are no more.
SELECT count(*) AS n FROM scm.discrepancies
 WHERE resolved_at < clock_timestamp() - make_interval(secs => %(age)s)

-- name: delete_differences
DELETE FROM scm.discrepancies
 WHERE discrepancy_id IN (
       SELECT discrepancy_id FROM scm.discrepancies
        WHERE resolved_at < clock_timestamp() - make_interval(secs => %(age)s)
        ORDER BY discrepancy_id LIMIT %(limit)s)
