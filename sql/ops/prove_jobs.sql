-- Jobs that contradict their attempts. A completed job has a successful attempt, or lost its worker after its window was
-- covered. A running job has exactly one running attempt, any other job none. Empty if the records agree.
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
