-- Valid leases without a running job, and batches that were written after the fence was raised. Empty if the records
-- agree.
SELECT l.repo_id, l.job_type, l.fence, 'held by ' || l.locked_by || ', who has no running job' AS problem
  FROM scm.sync_locks AS l
  LEFT JOIN scm.sync_jobs AS j
    ON j.claim_token = l.holder AND j.repo_id = l.repo_id AND j.job_type = l.job_type AND j.status = 'running'
 WHERE l.locked_by IS NOT NULL AND l.expires_at > clock_timestamp() AND j.job_id IS NULL
UNION ALL
SELECT b.repo_id, b.job_type, b.fence, 'batch ' || b.batch_id || ' was written after fence ' || b.latest
  FROM (SELECT repo_id, job_type, batch_id, fence,
               max(fence) OVER (PARTITION BY repo_id, job_type ORDER BY batch_id) AS latest
          FROM scm.sync_batches) AS b
 WHERE b.fence < b.latest
UNION ALL
SELECT b.repo_id, b.job_type, b.fence, 'a batch has it, and the lease is at ' || coalesce(l.fence::text, 'none')
  FROM (SELECT repo_id, job_type, max(fence) AS fence FROM scm.sync_batches GROUP BY repo_id, job_type) AS b
  LEFT JOIN scm.sync_locks AS l USING (repo_id, job_type)
 WHERE b.fence > coalesce(l.fence, 0)
 ORDER BY repo_id, job_type, fence;
