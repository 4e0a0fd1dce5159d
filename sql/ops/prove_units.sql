-- Repositories without a watermark for one of their job types, and watermarks without such a repository. Empty if the
-- records agree.
WITH expected AS (
    SELECT r.repo_id, t.job_type
      FROM scm.repos AS r
      JOIN scm.job_types AS t USING (kind)
     WHERE NOT t.optional OR t.job_type = ANY (r.optional_job_types)
)
SELECT repo_id, job_type,
       CASE WHEN w.repo_id IS NULL THEN 'no watermark' ELSE 'no such job type' END AS problem
  FROM expected AS e
  FULL JOIN scm.sync_watermarks AS w USING (repo_id, job_type)
 WHERE w.repo_id IS NULL OR e.repo_id IS NULL
 ORDER BY repo_id, job_type;
