-- Jobs that are not what their attempts say: a completed one has an attempt that succeeded, or lost its worker when its
-- window was covered already; a running one has exactly one attempt that runs, any other has none. Empty when all is
-- well.
WITH runs AS (
    SELECT job_id, count(*) FILTER (WHERE status = 'running') AS running,
           count(*) FILTER (WHERE status IN ('completed', 'no_data')) AS succeeded,
           max(attempt) AS attempt,
           (array_agg(error_code ORDER BY attempt DESC))[1] = 'worker_lost' AS lost
      FROM scm.sync_runs
     GROUP BY job_id
)
SELECT j.repo_id, j.job_type, j.mode, j.job_id, j.status, p.problem
  FROM scm.sync_jobs AS j
  LEFT JOIN runs AS r USING (job_id)
 CROSS JOIN LATERAL (VALUES
       ('no attempt succeeded',
        j.status = 'completed' AND coalesce(r.succeeded, 0) = 0 AND NOT coalesce(r.lost, FALSE)),
       ('an attempt succeeded', j.status <> 'completed' AND r.succeeded > 0),
       ('an attempt runs', j.status <> 'running' AND r.running > 0),
       (coalesce(r.running, 0) || ' attempts run', j.status = 'running' AND coalesce(r.running, 0) <> 1),
       ('it was claimed ' || j.attempts || ' times and has attempt ' || r.attempt, r.attempt > j.attempts)
       ) AS p (problem, holds)
 WHERE p.holds
UNION ALL
SELECT r.repo_id, r.job_type, r.mode, r.job_id, r.status, 'attempt ' || r.attempt || ' read something else'
  FROM scm.sync_runs AS r
  JOIN scm.sync_jobs AS j USING (job_id)
 WHERE (r.repo_id, r.job_type, r.mode) IS DISTINCT FROM (j.repo_id, j.job_type, j.mode)
 ORDER BY repo_id, job_type, job_id;
