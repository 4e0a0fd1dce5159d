-- Statements of sync_pipeline/facts/remap.py. They read stored GitLab rows with their raw objects, to
-- derive the columns again.

-- name: next_merge_requests
-- Lists the next merge requests, each with the number of rows that it has with its children.
SELECT m.iid,
       1 + (SELECT count(*) FROM scm.mr_versions AS v
             WHERE v.repo_id = m.repo_id AND v.mr_iid = m.iid AND v.replaced_id = 0)
         + (SELECT count(*) FROM scm.mr_commits AS c
             WHERE c.repo_id = m.repo_id AND c.mr_iid = m.iid AND c.replaced_id = 0) AS rows
  FROM scm.mrs AS m
 WHERE m.repo_id = %(repo_id)s AND m.replaced_id = 0 AND (%(after)s::bigint IS NULL OR m.iid > %(after)s)
   AND (%(since)s::timestamptz IS NULL OR m.updated_at >= %(since)s)
 ORDER BY m.iid
 LIMIT %(limit)s

-- name: next_reviews
-- Lists the next reviews, each with its number of events.
SELECT mr_iid AS iid, count(*) AS rows
  FROM scm.review_events
 WHERE repo_id = %(repo_id)s AND replaced_id = 0 AND (%(after)s::bigint IS NULL OR mr_iid > %(after)s)
 GROUP BY mr_iid
HAVING %(since)s::timestamptz IS NULL OR bool_or(ts IS NULL OR ts >= %(since)s)
 ORDER BY mr_iid
 LIMIT %(limit)s

-- name: resolve
-- Ends the quarantine of raw objects that can be parsed now.
UPDATE scm.quarantine SET resolved_at = now()
 WHERE repo_id = %(repo_id)s AND job_type = %(job_type)s AND resolved_at IS NULL
   AND natural_key = ANY (%(keys)s)
