-- Statements of sync_pipeline/facts/stored_rows.py. They count the stored rows of an asset and read when
-- its source last changed.

-- name: last_change
-- Reads the date of the newest revision, or the last activity of the project.
SELECT CASE r.kind
       WHEN 'svn' THEN (SELECT s.ts FROM scm.svn_revisions AS s
                         WHERE s.repo_id = r.repo_id ORDER BY s.rev_num DESC LIMIT 1)
       ELSE greatest(w.activity_at, h.activity_at) END AS changed_at
  FROM scm.sync_watermarks AS w
  JOIN scm.repos AS r USING (repo_id)
  LEFT JOIN scm.change_hints AS h USING (repo_id)
 WHERE w.repo_id = %(repo_id)s AND w.job_type = %(job_type)s
