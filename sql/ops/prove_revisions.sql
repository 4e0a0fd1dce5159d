-- Covered windows of whole repositories that lack revisions, unless those are in quarantine or a person set the
-- coverage. Empty if the records agree.
WITH base AS (
    SELECT DISTINCT ON (repo_id, job_type) repo_id, job_type, covered_revs
      FROM scm.sync_watermark_events
     WHERE direction IN ('register', 'set', 'reset') AND job_type = 'revisions'
     ORDER BY repo_id, job_type, event_id DESC
), claimed AS (
    SELECT w.repo_id, c.revs
      FROM scm.sync_watermarks AS w
      JOIN scm.repos AS r ON r.repo_id = w.repo_id AND r.svn_prefix = ''
      JOIN base AS b ON b.repo_id = w.repo_id AND b.job_type = w.job_type
     CROSS JOIN LATERAL unnest((w.covered_revs - b.covered_revs)
                               * int8multirange(int8range(1, w.head_rev + 1))) AS c (revs)
     WHERE w.head_rev IS NOT NULL
)
SELECT c.repo_id, c.revs::text AS revs, upper(c.revs) - lower(c.revs) - s.stored - q.quarantined AS missing,
       (SELECT min(n)
          FROM generate_series(lower(c.revs), upper(c.revs) - 1) AS n
         WHERE NOT EXISTS (SELECT FROM scm.svn_revisions AS r WHERE r.repo_id = c.repo_id AND r.rev_num = n)
           AND NOT EXISTS (SELECT FROM scm.quarantine AS o
                            WHERE o.repo_id = c.repo_id AND o.job_type = 'revisions' AND o.resolved_at IS NULL
                              AND o.natural_key = n::text)) AS first_missing
  FROM claimed AS c
 CROSS JOIN LATERAL (SELECT count(*) AS stored
                       FROM scm.svn_revisions AS r
                      WHERE r.repo_id = c.repo_id
                        AND r.rev_num >= lower(c.revs) AND r.rev_num < upper(c.revs)) AS s
 CROSS JOIN LATERAL (SELECT count(*) AS quarantined
                       FROM scm.quarantine AS o
                      WHERE o.repo_id = c.repo_id AND o.job_type = 'revisions' AND o.resolved_at IS NULL
                        AND CASE WHEN o.natural_key ~ '^[0-9]{1,18}$' THEN c.revs @> o.natural_key::bigint END
                        AND NOT EXISTS (SELECT FROM scm.svn_revisions AS r
                                         WHERE r.repo_id = o.repo_id AND r.rev_num::text = o.natural_key)) AS q
 WHERE s.stored + q.quarantined < upper(c.revs) - lower(c.revs)
 ORDER BY c.repo_id, lower(c.revs);
