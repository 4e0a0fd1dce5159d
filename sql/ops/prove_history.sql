-- Missing parents and tips that a complete walk or a covered ref claims to be stored, unless they are in quarantine.
-- Empty if the records agree.
WITH claimed AS (
    SELECT c.repo_id, 'parent of ' || c.commit_sha AS claim, p.sha
      FROM scm.ref_walks AS w
      JOIN scm.git_commits AS c USING (walk_id)
     CROSS JOIN LATERAL unnest(c.parents) AS p (sha)
     WHERE w.completed_at IS NOT NULL
    UNION ALL
    SELECT repo_id, 'tip of walk ' || walk_id, tip FROM scm.ref_walks WHERE completed_at IS NOT NULL AND tip <> ''
    UNION ALL
    SELECT repo_id, 'covered tip of ' || kind || ' ' || name, covered_tip FROM scm.refs WHERE covered_tip IS NOT NULL
)
SELECT d.repo_id, d.claim, d.sha AS missing
  FROM claimed AS d
  LEFT JOIN scm.git_commits AS c ON c.repo_id = d.repo_id AND c.commit_sha = d.sha
 WHERE c.repo_id IS NULL
   -- A commit of which not even the name could be read is there as <tip>:<page>:<number>.
   AND NOT EXISTS (SELECT FROM scm.quarantine AS q
                    WHERE q.repo_id = d.repo_id AND q.job_type = 'commits' AND q.resolved_at IS NULL
                      AND (q.natural_key = d.sha OR q.natural_key ~ '^[0-9a-f]+:[0-9]+:[0-9]+$'))
 ORDER BY d.repo_id, d.claim;
